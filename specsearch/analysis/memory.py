"""What several failures for memory say together: two errors of opposite remedies leave an interval, or none."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specsearch.search_space import is_plain
from specsearch.trial import TrialResult, TrialStatus

FRACTION = "mem_fraction_static"
TOO_LOW = frozenset({"oom_kv_budget"})
TOO_HIGH = frozenset({"oom_alloc", "graph_capture_oom"})
_NEEDED = "needed_mem_fraction_static"  # a fact of the failure: what the server says it would take
_NEIGHBOURS = 0.011  # two fractions that leave nothing to try between them, 0.84 and 0.85; a float's error allowed for


class _Seen(NamedTuple):
    fraction: float
    trial: int


def memory_hints(rows: Sequence[TrialResult]) -> dict[str, str]:
    """By drafter, what is left of mem_fraction_static where one fraction was too low and another too high for it.

    Nothing is said of a drafter that ran at any fraction: its failures are those of their points.
    """
    by_drafter: dict[str, list[TrialResult]] = {}
    for row in rows:
        by_drafter.setdefault(drafter(row), []).append(row)
    found = {name: _hint(name, group) for name, group in by_drafter.items()}
    return {name: hint for name, hint in found.items() if hint}


def drafter(row: TrialResult) -> str:
    """What the trial drafted with, in words."""
    if is_plain(row.point):
        return "plain decoding"
    path = row.point.get("draft_model")
    return f"the drafter {path}" if path is not None else "the drafter of the target itself"


def _hint(name: str, rows: Sequence[TrialResult]) -> str | None:
    low = max(_seen(rows, TOO_LOW), default=None)
    high = min(_seen(rows, TOO_HIGH), default=None)
    if low is None or high is None:
        return None
    least = max([low.fraction, *_needed(rows)])
    ran = [fraction for row in rows if row.status == TrialStatus.OK and (fraction := _fraction(row)) is not None]
    if ran:  # where some fraction works, the failures are those of their points
        return None
    told = (
        f"{low.fraction:g} left no room for the KV cache (t{low.trial:04d}), "
        f"{high.fraction:g} ran out of memory (t{high.trial:04d})"
    )
    if high.fraction - least < _NEIGHBOURS:
        return (
            f"no {FRACTION} works for {name}: {told}; make room with a smaller cuda_graph_max_bs, max_running_requests "
            "or context_length, or leave it out"
        )
    return f"for {name} only {FRACTION} above {least:g} and below {high.fraction:g} is left: {told}"


def _seen(rows: Sequence[TrialResult], reasons: frozenset[str]) -> list[_Seen]:
    return [
        _Seen(fraction, row.number)
        for row in rows
        if row.reason in reasons and (fraction := _fraction(row)) is not None
    ]  # fmt: skip


def _needed(rows: Sequence[TrialResult]) -> list[float]:
    told = (_number(row.failure_facts, _NEEDED) for row in rows if row.reason in TOO_LOW)
    return [fraction for fraction in told if fraction is not None]


def _fraction(row: TrialResult) -> float | None:
    """The fraction that the trial ran or died with, from wherever it is known."""
    for told in (row.point, row.pins, row.effective, row.failure_facts):
        fraction = _number(told, FRACTION)
        if fraction is not None:
            return fraction
    return None


def _number(told: Mapping[str, object], name: str) -> float | None:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
