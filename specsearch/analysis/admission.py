"""Where requests waited to be admitted, so that a number tells of a server's limit and not of its speed."""

from specsearch.analysis.settings import overrides
from specsearch.trial import TrialResult

_LIMIT = "max_running_requests"


def admitted(row: TrialResult) -> int | None:
    """How many requests the server ran at once, which memory may limit below what was asked; None: not told."""
    runs = [override.runs for override in overrides([row]) if override.name == _LIMIT]
    text = (runs[0] if runs else None) or row.effective.get(_LIMIT, "")
    return int(text) if text.isdecimal() else None


def waited_at(row: TrialResult) -> tuple[str, ...]:
    """The load points at which requests waited to be admitted.

    The row only says whether they did. Where a limit that the server told explains it, these are the load points
    beyond the limit, otherwise all with more than one request in flight.
    """
    if not row.queue_limited:
        return ()
    sent = {measurement.load_point: measurement.concurrency for measurement in row.measurements}
    limit = admitted(row)
    beyond = [name for name, count in sent.items() if limit is not None and count > limit]
    return tuple(beyond or [name for name, count in sent.items() if count > 1] or sent)
