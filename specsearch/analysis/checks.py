"""What a reader of the verdict has to be warned of; each warning ends with what to do."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from specsearch.analysis.settings import Override, overrides
from specsearch.analysis.speedup import SPEED, MatchedPlain, StepCost, most_tokens_per_step
from specsearch.analysis.stability import relative_range, values_at
from specsearch.metrics import METRICS
from specsearch.objective import Objective, per_load_point
from specsearch.search_space import is_plain, point_key
from specsearch.trial import TrialResult, TrialStatus
from specsearch.workload import RANDOM

LEAST_BREAK_EVEN = 0.98  # a speculative step contains a plain one; below 1 by more than the noise of a repeat
MOST_REPEAT_RANGE = 0.10
MOST_LAUNCH_RANGE = 0.05
NEARLY_ALL_ACCEPTED = 0.97  # of the longest possible
_MOST_CHANGES = 3  # of one setting, that are spelled out


def warnings_of(rows: Sequence[TrialResult], objective: Objective) -> Iterator[str]:
    """Warnings that any study may give, from the last attempts of its trials."""
    good = [row for row in rows if row.status == TrialStatus.OK]
    yield from _random_prompts(good)
    yield from _repeats_differ(good)
    yield from _launches_differ(good)
    yield from _nearly_all_accepted(good)
    yield from _beyond_bounds(good, objective)
    yield from _said_by_trials(rows)
    yield from _changed_by_servers(rows)
    for row in rows:
        if row.node_unfit:
            yield f"node {row.node} takes no more trials since t{row.number:04d}: {row.node_unfit}"


def warnings_of_step_costs(name: str, costs: Sequence[StepCost], plain: MatchedPlain) -> Iterator[str]:
    """Warnings about the arithmetic of one speculative trial."""
    for cost in costs:
        if cost.break_even < LEAST_BREAK_EVEN:
            yield (
                f"{name} at {cost.load_point}: break-even accept length {cost.break_even:.2f} is below 1, so a step "
                f"would be cheaper than a plain one; plain decoding was {plain}: run both again before you believe it"
            )
        if cost.step_times_disagree and cost.step_time_ratio is not None:
            yield (
                f"{name} at {cost.load_point}: by throughput a step costs {cost.break_even:.2f} plain steps, by the "
                f"client's step times {cost.step_time_ratio:.2f}; prefill or queueing plays a part, judge by throughput"
            )


def _random_prompts(good: Sequence[TrialResult]) -> Iterator[str]:
    names = sorted({m.workload for row in good for m in row.measurements if m.workload_kind == RANDOM})
    if names:
        yield f"{', '.join(names)}: random prompts say nothing about acceptance on real traffic; give real text"


def _repeats_differ(good: Sequence[TrialResult]) -> Iterator[str]:
    ranges = []
    for row in good:
        for point in dict.fromkeys(m.load_point for m in row.measurements):
            values = values_at(row.measurements, SPEED, point)
            if len(values) > 1 and min(values) > 0:
                ranges.append((relative_range(values), row.number, point))
    unstable = [entry for entry in ranges if entry[0] > MOST_REPEAT_RANGE]
    if unstable:
        worst, number, point = max(unstable)
        trials = len({entry[1] for entry in unstable})
        yield (
            f"repeats differ by more than {MOST_REPEAT_RANGE:.0%} in {trials} of {len(good)} trials, "
            f"most in t{number:04d} at {point} ({worst:.0%}); give more repeats, or look for another load on the node"
        )


def _launches_differ(good: Sequence[TrialResult]) -> Iterator[str]:
    """Drift: one configuration launched more than once."""
    same: dict[str, list[TrialResult]] = defaultdict(list)
    for row in good:
        same[point_key(row.point)].append(row)
    for launches in same.values():
        speeds = [per_load_point(row.measurements, SPEED) or {} for row in launches]
        for point in set.intersection(*(set(speed) for speed in speeds)) if len(launches) > 1 else ():
            apart = relative_range([speed[point] for speed in speeds])
            if apart > MOST_LAUNCH_RANGE:
                names = " and ".join(f"t{row.number:04d}" for row in launches)
                yield f"{names} ran one configuration and differ by {apart:.0%} at {point}; trust no smaller difference"


def _nearly_all_accepted(good: Sequence[TrialResult]) -> Iterator[str]:
    for row in good:
        longest = most_tokens_per_step(row.point)
        if longest is None or is_plain(row.point):
            continue
        for point, accept in (per_load_point(row.measurements, "accept_length") or {}).items():
            if accept >= NEARLY_ALL_ACCEPTED * longest:
                yield (
                    f"t{row.number:04d} accepts {accept:.2f} of at most {longest} tokens at {point}; "
                    "read its replies: text that repeats itself is easy to draft"
                )


def _beyond_bounds(good: Sequence[TrialResult], objective: Objective) -> Iterator[str]:
    """The best of what the bounds exclude, where it would have won."""
    scored = [(score, row) for row in good if (score := objective.score(row.measurements)) is not None]
    kept = [score for score, row in scored if all(v <= 0 for v in objective.violations(row.measurements))]
    beyond = [(score, row) for score, row in scored if any(v > 0 for v in objective.violations(row.measurements))]
    better = [entry for entry in beyond if not kept or entry[0] > max(kept)]
    if better:
        _, row = max(better, key=lambda entry: entry[0])
        said = " and ".join(f"{bound} ({value})" for bound, value in broken_bounds(row, objective).items())
        yield f"{row.name} scores higher than every ranked trial and breaks {said}; loosen the bound if you can"


def broken_bounds(row: TrialResult, objective: Objective) -> dict[str, str]:
    """Each bound that a measured trial breaks, with what it has instead where that is worst."""
    pairs = zip(objective.subject_to, objective.violations(row.measurements), strict=True)
    return {str(bound): _worst(row, objective, bound.metric) for bound, violation in pairs if violation > 0}


def _worst(row: TrialResult, objective: Objective, metric: str) -> str:
    chosen = [m for m in row.measurements if not objective.at or m.load_point in objective.at]
    values = (per_load_point(chosen, metric) or {}).values()
    if not values:
        return "not measured"
    pick = max if METRICS[metric].better < 0 else min
    return METRICS[metric].format(pick(values))


def _said_by_trials(rows: Sequence[TrialResult]) -> Iterator[str]:
    said: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        for warning in row.warnings:
            if not (row.lesson and row.lesson in warning):  # what trials taught has a place of its own
                said[warning].append(row.number)
    for warning, numbers in said.items():
        yield f"{warning.rstrip('.')} ({_where(numbers)})"


def _changed_by_servers(rows: Sequence[TrialResult]) -> Iterator[str]:
    """One sentence for each setting, however many trials and values it was changed in."""
    changes: dict[str, list[Override]] = defaultdict(list)
    for override in overrides(rows):
        changes[override.name].append(override)
    for name, found in changes.items():
        numbers = sorted({number for override in found for number in override.trials})
        told = [f"asked {override.asked}, runs {override.runs}" for override in found if override.asked is not None]
        more = f"; and {len(told) - _MOST_CHANGES} more" if len(told) > _MOST_CHANGES else ""
        what = f": {'; '.join(told[:_MOST_CHANGES])}{more}" if told else ""
        yield f"the server changed {name}{what} ({_where(numbers)})"


def _where(numbers: Sequence[int]) -> str:
    return f"t{numbers[0]:04d}" if len(numbers) == 1 else f"{len(numbers)} trials, first t{numbers[0]:04d}"
