"""Speed-up, accept length and break-even accept length of trials, against the right plain run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specsearch import speculation
from specsearch.analysis.differences import knobs_apart
from specsearch.analysis.stability import Ratio, ratio, values_at, waiting
from specsearch.objective import per_load_point
from specsearch.search_space import Point, is_plain
from specsearch.trial import TrialKind, TrialResult, TrialStatus

SPEED = "output_tokens_per_s"
MOST_STEP_DISAGREEMENT = 0.15  # relative; beyond it prefill or occupancy plays a part that a step time does not show


@dataclass(frozen=True, slots=True)
class MatchedPlain:
    """The plain run that a speculative trial is held against."""

    row: TrialResult
    differs_in: tuple[str, ...] = ()  # non-speculative knobs in which it differs; none: measured, not predicted

    @property
    def predicted(self) -> bool:
        return bool(self.differs_in)

    def __str__(self) -> str:
        trial = f"t{self.row.number:04d}"
        if not self.predicted:
            return f"measured as {trial}"
        return f"predicted from {trial}, which differs in {', '.join(self.differs_in)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one speculative step costs at a load point, and what it brings."""

    load_point: str
    accept_length: float
    output_tokens_per_s: float
    plain_output_tokens_per_s: float
    speed_up: Ratio
    break_even: float  # relative step cost = break-even accept length
    margin: float  # accept length beyond break-even; negative where speculation loses
    step_time_ratio: float | None  # the client's own step times, one over the other

    @property
    def step_times_disagree(self) -> bool:
        """Whether the step times seen by the client tell another relative step cost."""
        if self.step_time_ratio is None:
            return False
        return abs(self.step_time_ratio / self.break_even - 1) > MOST_STEP_DISAGREEMENT


def start_baseline(rows: Iterable[TrialResult]) -> TrialResult | None:
    """Plain decoding with the pinned settings and defaults, if it was measured."""
    return next((row for row in rows if row.kind == TrialKind.BASELINE and row.status == TrialStatus.OK), None)


def matched_plain(row: TrialResult, rows: Iterable[TrialResult]) -> MatchedPlain | None:
    """The plain run with the same non-speculative knobs, else the one that differs in fewest; None without any.

    A run counts for every point that was skipped because its server would have run the same configuration.
    """
    rows = [other for other in rows if is_plain(other.point)]
    twins = [other for other in rows if other.status == TrialStatus.SKIPPED_DUPLICATE and other.effective_key]
    runs = []
    for other in (other for other in rows if other.status == TrialStatus.OK):
        asked = [other.point, *(twin.point for twin in twins if twin.effective_key == other.effective_key)]
        runs.append(MatchedPlain(other, min((knobs_apart(row.point, point) for point in asked), key=len)))
    return min(runs, key=lambda run: (len(run.differs_in), run.row.number), default=None)


def step_costs(row: TrialResult, plain: TrialResult) -> list[StepCost]:
    """The arithmetic of a speculative trial at each load point that both measured with an accept length."""
    accepts = _means(row, "accept_length")
    speeds, plain_speeds = _means(row, SPEED), _means(plain, SPEED)
    steps, plain_steps = _means(row, "step_time_ms"), _means(plain, "step_time_ms")
    costs = []
    for point in [name for name in speeds if name in accepts and name in plain_speeds]:
        repeats = (values_at(trial.measurements, SPEED, point) for trial in (row, plain))
        break_even = speculation.relative_step_cost(accepts[point], speeds[point], plain_speeds[point])
        both = point in steps and point in plain_steps
        costs.append(
            StepCost(
                load_point=point,
                accept_length=accepts[point],
                output_tokens_per_s=speeds[point],
                plain_output_tokens_per_s=plain_speeds[point],
                speed_up=waiting(ratio(*repeats), row, plain, [point]),
                break_even=break_even,
                margin=accepts[point] - break_even,
                step_time_ratio=steps[point] / plain_steps[point] if both else None,
            )
        )
    return costs


def most_tokens_per_step(point: Point) -> int | None:
    """The longest accept length a configuration can have: one token for each draft step, and the bonus token.

    None where it is not known, as with adaptive speculation, whose steps move.
    """
    if point.get("speculative_adaptive") is True:
        return None
    steps, tokens = point.get("num_steps"), point.get("num_draft_tokens")
    bounds = [value + extra for value, extra in ((steps, 1), (tokens, 0)) if isinstance(value, int)]
    return min(bounds, default=None)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that keeps speed-up = accept length / relative step cost true over several load points."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _means(row: TrialResult, metric: str) -> dict[str, float]:
    """Mean over repeats at each load point that has the metric in every repeat and above zero."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(measurement.load_point for measurement in row.measurements):
        values = per_load_point((m for m in row.measurements if m.load_point == name), metric) or {}
        found |= {point: value for point, value in values.items() if value > 0}
    return found
