"""The answer of a study as one value, from its rows alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from specsearch.analysis.checks import warnings_of, warnings_of_step_costs
from specsearch.analysis.limits import Limits, limits
from specsearch.analysis.outcomes import Outcomes, count_by_status, failures, outcomes
from specsearch.analysis.speedup import MatchedPlain, StepCost
from specsearch.analysis.stability import Ratio
from specsearch.analysis.standing import Contender, Judge, Winner
from specsearch.errors import NoRankableTrial, StorageError
from specsearch.metrics import METRICS
from specsearch.study import Objective, latest_attempts, ranked
from specsearch.trial import TrialResult, TrialStatus

INTERVALS = (
    "Intervals are 95%, from the repeats within one launch. What differs between launches, and the luck of the best "
    "among many, are not in them."
)


class Finding(StrEnum):
    """What the study found about speculation."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no_significant_difference"
    NO_SPECULATION = "no_speculative_trial"
    NO_PLAIN = "no_plain_trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """What is known of a study beside its rows."""

    name: str
    results: str | None = None  # the folder, as it is to be shown
    ended: str | None = None  # why the search ended, a sentence
    notes: tuple[str, ...] = ()  # inert knobs, files that were left out: sentences to pass on


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything that is said at the end of a study."""

    facts: StudyFacts
    engine: str
    engine_version: str | None
    simulated: bool
    objective: str
    metric: str
    finding: Finding
    headline: str
    recommended: Contender  # whose command is given: plain decoding unless speculation is significantly better
    start_baseline: Contender | None
    best_plain: Contender | None
    best_speculative: Contender | None
    matched_plain: str | None  # of the best speculative trial: measured, or predicted from which run
    step_costs: tuple[StepCost, ...]  # of the best speculative trial, at every load point
    limits: Limits | None
    winners: tuple[Winner, ...]  # per load point; empty where one trial wins them all
    ranking: tuple[Contender, ...]
    outcomes: Outcomes
    intervals: str  # what the intervals hold and what not
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values for json.dumps; every number in it is finite."""
        return asdict(self)


def verdict(results: Sequence[TrialResult], objective: Objective, facts: StudyFacts) -> Verdict:
    """What the rows say.

    Raises NoRankableTrial when no trial can be ranked, StorageError for rows that are never compared.
    """
    rows = latest_attempts(results)
    _require_comparable(rows)
    order = ranked(rows, objective)
    if not order:
        raise NoRankableTrial(_nothing_ranked(rows, results, objective))
    judge = Judge(rows, objective, order)
    start, plain, speculative = judge.start, judge.best(plain=True), judge.best(plain=False)
    best_plain, best_speculative = (judge.contender(row) if row else None for row in (plain, speculative))
    finding = _finding(best_plain, best_speculative)
    recommended = judge.contender(order[0]) if finding == Finding.FASTER or not best_plain else best_plain
    match, costs = judge.costs(speculative) if speculative else (None, [])
    return Verdict(
        facts=facts,
        engine=order[0].engine,
        engine_version=order[0].engine_version,
        simulated=order[0].simulated,
        objective=describe(objective),
        metric=objective.metric,
        finding=finding,
        headline=_headline(finding, best_plain, best_speculative, objective) + _lengths(best_speculative, match, plain),
        recommended=recommended,
        start_baseline=judge.contender(start) if start else None,
        best_plain=best_plain,
        best_speculative=best_speculative,
        matched_plain=str(match) if match else None,
        step_costs=tuple(costs),
        limits=_limits(speculative, best_speculative),
        winners=tuple(judge.winners(recommended.trial)),
        ranking=tuple(map(judge.contender, order)),
        outcomes=outcomes(results),
        intervals=INTERVALS,
        warnings=_warnings(rows, objective, facts, best_speculative, match, costs),
    )


def describe(objective: Objective) -> str:
    """The objective as a phrase."""
    metric = METRICS[objective.metric]
    where = f"{objective.aggregate} over " + (", ".join(objective.at) or "all load points")
    if len(objective.at) == 1:
        where = f"at {objective.at[0]}"
    bounds = "".join(f", {bound}" for bound in objective.subject_to)
    return f"{'least' if metric.better < 0 else 'most'} {metric.name}, {where}{bounds}"


def show(ratio: Ratio | None) -> str:
    """A ratio with its interval, `1.42× (1.38–1.47)`."""
    if ratio is None:
        return "–"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}× (measured once)"
    digits = 2 if ratio.high - ratio.low > 0.02 else 3
    return f"{ratio.value:.{digits}f}× ({ratio.low:.{digits}f}–{ratio.high:.{digits}f})"


def _require_comparable(rows: Sequence[TrialResult]) -> None:
    measured = [row for row in rows if row.status == TrialStatus.OK]
    engines = {row.engine for row in rows if row.engine}
    versions = {row.engine_version for row in measured if row.engine_version}
    workloads = {(m.workload, m.workload_digest) for row in measured for m in row.measurements}
    for found, what in ((engines, "engines"), (versions, "engine versions")):
        if len(found) > 1:
            raise StorageError(
                f"the rows come from several {what}, {' and '.join(sorted(found))}, and are never compared; "
                "give each a results folder of its own"
            )
    if len(workloads) > len({name for name, _ in workloads}):
        raise StorageError(
            "the rows were measured with different prompts under one workload's name and are never compared; "
            "give each a results folder of its own"
        )


def _nothing_ranked(rows: Sequence[TrialResult], results: Sequence[TrialResult], objective: Objective) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in count_by_status(rows).items()) or "no trial at all"
    measured = [row for row in rows if row.status == TrialStatus.OK]
    if any(objective.score(row.measurements) is not None for row in measured):
        bounds = " and ".join(map(str, objective.subject_to))
        why = f"no trial keeps {bounds}; loosen the bound"
    elif measured:
        why = f"no trial has a positive {objective.metric} at every load point of the objective"
    else:
        causes = (f"{cause.attempts} {cause.status} {cause.reason}: {cause.advice}" for cause in failures(results))
        why = "; ".join(causes) or "nothing was measured"
    return f"no trial can be ranked ({counts}): {why}"


def _finding(plain: Contender | None, speculative: Contender | None) -> Finding:
    if speculative is None:
        return Finding.NO_SPECULATION
    if plain is None or speculative.over_best_plain is None:
        return Finding.NO_PLAIN
    if speculative.over_best_plain.is_above:
        return Finding.FASTER
    return Finding.SLOWER if speculative.over_best_plain.is_below else Finding.NO_DIFFERENCE


def _limits(row: TrialResult | None, contender: Contender | None) -> Limits | None:
    if row is None or contender is None or contender.accept_length is None or contender.break_even is None:
        return None
    return limits(row, contender.accept_length, contender.break_even)


def _headline(finding: Finding, plain: Contender | None, speculative: Contender | None, objective: Objective) -> str:
    if speculative is None:
        named = f": {plain.title}" if plain else ""
        return f"No speculative configuration could be ranked; the best is plain decoding{named}."
    if plain is None or speculative.over_best_plain is None:
        return (
            f"{speculative.title} is the best, but no plain decoding was ranked: whether speculation pays is not known."
        )
    ratio, other = show(speculative.over_best_plain), f"the best plain decoding, {plain.title}"
    match finding:
        case Finding.FASTER:
            word = "fast" if METRICS[objective.metric].unit in ("tokens/s", "ms") else "good"
            return f"Speculation pays: {speculative.title} is {ratio} as {word} as {other}."
        case Finding.SLOWER:
            return f"No speculation beats the baseline: the best, {speculative.title}, reaches {ratio} of {other}."
        case _:
            return (
                f"No speculation beats the baseline by more than the noise: the best, {speculative.title}, reaches "
                f"{ratio} of {other}."
            )


def _lengths(speculative: Contender | None, match: MatchedPlain | None, best_plain: TrialResult | None) -> str:
    """The break-even sentence, which speaks of the matched plain run and so may not repeat the ratio before it."""
    if speculative is None or speculative.margin is None or match is None:
        return ""
    kind = "the nearest plain run" if match.predicted else "its matched plain run"
    against = "It" if match.row is best_plain else f"Against t{match.row.number:04d}, {kind}, it"
    lengths = f"{speculative.accept_length:.2f} tokens per step and breaks even at {speculative.break_even:.2f}"
    side = "above" if speculative.margin >= 0 else "below"
    return f" {against} accepts {lengths}: {side} break-even by {abs(speculative.margin):.2f}."


def _warnings(
    rows: Sequence[TrialResult],
    objective: Objective,
    facts: StudyFacts,
    speculative: Contender | None,
    plain: MatchedPlain | None,
    costs: Sequence[StepCost],
) -> tuple[str, ...]:
    found = [*facts.notes, *warnings_of(rows, objective)]
    if speculative and plain:
        found += warnings_of_step_costs(f"t{speculative.trial:04d}", costs, plain)
    return tuple(dict.fromkeys(found))
