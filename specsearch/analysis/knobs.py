"""Which searched knobs made no difference that the noise of repeats would not make as well."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specsearch.analysis.graphs import judges_graphs
from specsearch.analysis.stability import Ratio, objective_ratio, relative_range, values_at
from specsearch.objective import Objective
from specsearch.search_space import Point, Value, is_speculative_knob, point_key
from specsearch.trial import TrialResult, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobGap:
    """Best over worst among trials that differ in one knob alone, where they are furthest apart."""

    knob: str
    best: Value
    worst: Value
    best_trial: int
    worst_trial: int
    gap: Ratio
    comparisons: int  # groups of trials that are equal but for the knob
    measurable: bool  # whether the gap of any group is outside the noise within a launch


def knob_gaps(rows: Sequence[TrialResult], objective: Objective) -> tuple[KnobGap, ...]:
    """The gaps of the non-speculative knobs whose values were measured with all other knobs equal, and repeated.

    Nothing is compared where requests waited to be admitted, and a trial that fell out of its graphs judges no graphs.
    """
    good = [row for row in rows if row.status == TrialStatus.OK and objective.score(row.measurements) is not None]
    names = sorted({name for row in good for name in row.point if not is_speculative_knob(name)})
    return tuple(gap for name in names if (gap := _gap_of(name, good, objective)))


def noise_floor(baseline: TrialResult | None, objective: Objective) -> float | None:
    """How far apart the baseline's repeats are at the objective's worst load point, over their mean.

    None where nothing was repeated. Launches may differ by more: nothing here was launched twice.
    """
    points = objective.values(baseline.measurements) or {} if baseline else {}
    repeats = [values_at(baseline.measurements, objective.metric, point) for point in points] if baseline else []
    return max((relative_range(values) for values in repeats if len(values) > 1 and min(values) > 0), default=None)


def _gap_of(knob: str, rows: Sequence[TrialResult], objective: Objective) -> KnobGap | None:
    gaps = [found for group in _groups(knob, rows) if (found := _widest(group, objective))]
    if not gaps:
        return None
    best, worst, gap = max(gaps, key=lambda found: found[2].value)
    return KnobGap(
        knob=knob,
        best=best.point[knob],
        worst=worst.point[knob],
        best_trial=best.number,
        worst_trial=worst.number,
        gap=gap,
        comparisons=len(gaps),
        measurable=any(found.is_above for _, _, found in gaps),
    )


def _groups(knob: str, rows: Sequence[TrialResult]) -> Iterator[list[TrialResult]]:
    """Trials that have the knob and are equal in all else, one for each value."""
    groups: dict[str, dict[str, TrialResult]] = {}
    for row in rows:
        if knob in row.point and ("cuda_graph" not in knob or judges_graphs(row)):
            rest: Point = {name: value for name, value in row.point.items() if name != knob}
            groups.setdefault(point_key(rest), {}).setdefault(point_key({knob: row.point[knob]}), row)
    yield from (list(group.values()) for group in groups.values() if len(group) > 1)


def _widest(group: Sequence[TrialResult], objective: Objective) -> tuple[TrialResult, TrialResult, Ratio] | None:
    """The best, the worst and how far apart they are; None where that is not known beside the noise."""
    ordered = sorted(group, key=lambda row: objective.score(row.measurements) or 0.0)
    worst, best = ordered[0], ordered[-1]
    gap = objective_ratio(best, worst, objective)
    return (best, worst, gap) if gap is not None and gap.known and not gap.queue_limited else None
