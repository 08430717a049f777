"""The decode step by the server's own clock, and whether the client's clock agrees."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from specsearch.trial import Measurement

StepTimes = Mapping[int, Sequence[float]]  # batch size → seconds of a step, each a mean over one log interval

# Prefill of other requests, the way through two processes and a loaded client make up that much without anything wrong.
MOST_DISAGREEMENT = 0.1


def server_step_time_ms(before: StepTimes | None, after: StepTimes | None, *, concurrency: int) -> float | None:
    """The median step between two readings, as most streams meet it; None where the server tells nothing new.

    Where the full batch was there for half of the intervals, these count; else all sizes do, each by its requests.
    """
    if before is None or after is None:
        return None
    new = list(_without_idle({size: after[size][len(before.get(size, ())) :] for size in after}))
    full = [(seconds, size) for seconds, size in new if size == concurrency]
    return _weighted_median_ms(full if 2 * len(full) >= len(new) else new)


def _without_idle(new: StepTimes) -> Iterator[tuple[float, int]]:
    """(seconds, batch size) but for the interval that began before the repeat and holds the idle time.

    The sizes do not tell their order in time: of the first of each size, the idle one is the longest.
    """
    usable = {size: [s for s in times if math.isfinite(s) and s > 0] for size, times in new.items() if size > 0}
    firsts = {size: times[0] for size, times in usable.items() if times}
    idle = max(firsts, key=firsts.__getitem__, default=None)
    for size, times in usable.items():
        yield from ((seconds, size) for seconds in (times[1:] if size == idle else times))


def _weighted_median_ms(weighted: Sequence[tuple[float, int]]) -> float | None:
    if not weighted:
        return None
    ordered = sorted(weighted)
    reached = list(itertools.accumulate(weight for _, weight in ordered))
    half = reached[-1] / 2
    low = next(index for index, total in enumerate(reached) if total >= half)
    high = low + 1 if reached[low] == half and low + 1 < len(ordered) else low
    return 1e3 * (ordered[low][0] + ordered[high][0]) / 2


def step_time_warnings(measurements: Sequence[Measurement], log_interval: int | None) -> Iterator[str]:
    """A sentence for each load point at which the two clocks differ by more than the repeats do among themselves."""
    for point in dict.fromkeys(m.load_point for m in measurements):
        repeats = [m for m in measurements if m.load_point == point]
        ratios = list(_ratios(repeats))
        if not ratios:
            continue
        middle = sorted(ratios)[len(ratios) // 2]
        error = MOST_DISAGREEMENT + (max(ratios) - min(ratios)) / 2
        if middle > 1 + error:
            yield (
                f"{point}: a decode step takes longer by the client's clock than by the server's: prefill of other "
                "requests lies between, the stream is held up on its way, or the client's machine is busy; "
                "compare step_time_ms with server_step_time_ms"
            )
        elif middle < 1 - error and not _mostly_starts(repeats[0], log_interval):
            yield (
                f"{point}: a decode step takes longer by the server's clock than by the client's: it is idle between "
                "requests, or does for itself what no stream waits for; compare step_time_ms with server_step_time_ms"
            )


def _mostly_starts(measurement: Measurement, log_interval: int | None) -> bool:
    """Whether half of the log intervals hold the start of a request, so that their median holds its prefill."""
    values = measurement.values
    steps = values.get("verify_steps") or values.get("output_tokens")
    if log_interval is None or not steps:
        return True
    return (values.get("requests_ok") or 0.0) * log_interval * measurement.concurrency >= steps / 2


def _ratios(repeats: Sequence[Measurement]) -> Iterator[float]:
    for measurement in repeats:
        client, server = measurement.values.get("step_time_ms"), measurement.values.get("server_step_time_ms")
        if client and server:
            yield client / server
