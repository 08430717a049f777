"""The answer of a study as one value, from its rows alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from specsearch.analysis.checks import broken_bounds, warnings_of, warnings_of_step_costs
from specsearch.analysis.closed import ClosedRegion, closed_regions
from specsearch.analysis.differences import Comparison, compare
from specsearch.analysis.draft_context import DraftContext, draft_context
from specsearch.analysis.graphs import GraphUse, graph_use
from specsearch.analysis.headline import Finding, confounded, finding_of, headline
from specsearch.analysis.knobs import KnobGap, knob_gaps, noise_floor
from specsearch.analysis.limits import Limits, limits
from specsearch.analysis.outcomes import Outcomes, count_by_status, failures, outcomes
from specsearch.analysis.settings import Override, Pin, overrides, pins
from specsearch.analysis.speedup import MatchedPlain, StepCost
from specsearch.analysis.standing import Contender, Judge, Winner
from specsearch.errors import NoRankableTrial, StorageError
from specsearch.metrics import METRICS
from specsearch.objective import Objective
from specsearch.search_space import SearchSpace, is_plain
from specsearch.study import latest_attempts, ranked
from specsearch.trial import TrialResult, TrialStatus, short_name

INTERVALS = (
    "Intervals are 95%, from the repeats within one launch. What differs between launches, and the luck of the best "
    "among many, are not in them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """What is known of a study beside its rows."""

    name: str
    results: str | None = None  # the folder, as it is to be shown
    ended: str | None = None  # why the search ended, a sentence
    notes: tuple[str, ...] = ()  # inert knobs, files that were left out: sentences to pass on
    unfinished: tuple[int, ...] = ()  # trials that were launched and have no row: of a live run, or of a killed one
    speculation_searched: bool = True  # whether the space has speculation at all


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
    confounded: (
        str | None
    )  # a sentence, where the best speculative trial differs elsewhere from what it is held against
    recommended: Contender  # whose command is given: plain decoding unless speculation is significantly better
    start_baseline: Contender | None
    best_plain: Contender | None
    best_speculative: Contender | None
    matched_plain: str | None  # of the best speculative trial: measured, or predicted from which run
    step_costs: tuple[StepCost, ...]  # of the best speculative trial, at every load point
    limits: Limits | None
    winners: tuple[Winner, ...]  # per load point; empty where one trial wins them all
    ranking: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]  # those that the verdict rests on first, then each speculative trial's own
    pins: tuple[Pin, ...]
    overrides: tuple[Override, ...]
    graphs: tuple[GraphUse, ...]  # of every measured trial
    draft_contexts: tuple[DraftContext, ...]  # of the trials whose drafter's context was stretched
    knobs: tuple[KnobGap, ...]  # without the speculative ones
    noise_floor: float | None  # relative range of the baseline's repeats; None where nothing was repeated
    closed_regions: tuple[ClosedRegion, ...]
    outcomes: Outcomes
    intervals: str  # what the intervals hold and what not
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values for json.dumps; every number in it is finite."""
        return asdict(self) | {"outcomes": self.outcomes.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unranked:
    """A trial that was measured and may not be ranked."""

    trial: int
    name: str
    values: Mapping[str, float]  # the metric at each load point of the objective
    broken_bounds: Mapping[str, str]  # bound → what the trial has instead; empty: it has no score


@dataclass(frozen=True, slots=True, kw_only=True)
class NoVerdict:
    """What can be said of a study of which no trial can be ranked."""

    facts: StudyFacts
    objective: str
    metric: str
    simulated: bool
    finding: Finding
    reason: str
    measured: tuple[Unranked, ...]
    closed_regions: tuple[ClosedRegion, ...]
    outcomes: Outcomes

    def to_json(self) -> dict[str, object]:
        """Plain values for json.dumps."""
        return asdict(self) | {"outcomes": self.outcomes.to_json()}


def verdict(
    results: Sequence[TrialResult], objective: Objective, facts: StudyFacts, space: SearchSpace | None = None
) -> Verdict:
    """What the rows say; with the space also how much of it they closed.

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
    finding = finding_of(best_plain, best_speculative)
    recommended = judge.contender(order[0]) if finding == Finding.FASTER or not best_plain else best_plain
    match, costs = judge.costs(speculative) if speculative else (None, [])
    measured = [row for row in rows if row.status == TrialStatus.OK]
    comparisons = list(_comparisons(judge))
    return Verdict(
        facts=facts,
        engine=order[0].engine,
        engine_version=order[0].engine_version,
        simulated=order[0].simulated,
        objective=describe(objective),
        metric=objective.metric,
        finding=finding,
        headline=headline(judge, finding, searched=facts.speculation_searched),
        confounded=confounded([c for c in comparisons if best_speculative and c.trial == best_speculative.trial]),
        recommended=recommended,
        start_baseline=judge.contender(start) if start else None,
        best_plain=best_plain,
        best_speculative=best_speculative,
        matched_plain=str(match) if match else None,
        step_costs=tuple(costs),
        limits=_limits(speculative, best_speculative),
        winners=tuple(judge.winners(recommended.trial)),
        ranking=tuple(map(judge.contender, order)),
        comparisons=tuple(comparisons),
        pins=pins(rows),
        overrides=overrides(rows),
        graphs=tuple(map(graph_use, measured)),
        draft_contexts=tuple(found for row in measured if (found := draft_context(row))),
        knobs=knob_gaps(rows, objective),
        noise_floor=noise_floor(start, objective),
        closed_regions=closed_regions(rows, space),
        outcomes=outcomes(results),
        intervals=INTERVALS,
        warnings=_warnings(rows, objective, facts, best_speculative, match, costs),
    )


def no_verdict(
    results: Sequence[TrialResult],
    objective: Objective,
    facts: StudyFacts,
    why: NoRankableTrial,
    space: SearchSpace | None = None,
) -> NoVerdict:
    """What the rows say where `verdict` found nothing to rank."""
    rows = latest_attempts(results)
    measured = [row for row in rows if row.status == TrialStatus.OK]
    return NoVerdict(
        facts=facts,
        objective=describe(objective),
        metric=objective.metric,
        simulated=any(row.simulated for row in results),
        finding=Finding.NOTHING_RANKED,
        reason=str(why),
        measured=tuple(
            Unranked(
                trial=row.number,
                name=short_name(row.point),
                values=objective.values(row.measurements) or {},
                broken_bounds=broken_bounds(row, objective),
            )
            for row in measured
        ),
        closed_regions=closed_regions(rows, space),
        outcomes=outcomes(results),
    )


def describe(objective: Objective) -> str:
    """The objective as a phrase."""
    metric = METRICS[objective.metric]
    where = f"{objective.aggregate} over " + (", ".join(objective.at) or "all load points")
    if len(objective.at) == 1:
        where = f"at {objective.at[0]}"
    bounds = "".join(f", {bound}" for bound in objective.subject_to)
    return f"{'least' if metric.better < 0 else 'most'} {metric.name}, {where}{bounds}"


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
    measured = [row for row in rows if row.status == TrialStatus.OK]
    if not measured:
        causes = (f"{cause.attempts} {cause.status} {cause.reason}: {cause.advice}" for cause in failures(results))
        return f"no trial can be ranked: {'; '.join(causes) or 'nothing was measured'}"
    if any(objective.score(row.measurements) is not None for row in measured):
        why = f"no trial keeps {' and '.join(map(str, objective.subject_to))}; loosen the bound"
    else:
        why = f"no trial has a positive {objective.metric} at every load point of the objective"
    counts = ", ".join(f"{count} {status}" for status, count in count_by_status(rows).items())
    return f"no trial can be ranked ({counts}): {why}"


def _comparisons(judge: Judge) -> Iterator[Comparison]:
    """Both best with what they are held against; then every other ranked speculative trial with its matched run."""
    best_plain, best = judge.best(plain=True), judge.best(plain=False)
    pairs = [(best, best_plain), (best, _match(judge, best)), (best, judge.start), (best_plain, judge.start)]
    pairs += [(row, _match(judge, row)) for row in judge.order if not is_plain(row.point)]
    done = set()
    for row, plain in pairs:
        if row and plain and row is not plain and (row.number, plain.number) not in done:
            done.add((row.number, plain.number))
            yield compare(row, plain)


def _match(judge: Judge, row: TrialResult | None) -> TrialResult | None:
    match = judge.costs(row)[0] if row else None
    return match.row if match else None


def _limits(row: TrialResult | None, contender: Contender | None) -> Limits | None:
    if row is None or contender is None or contender.accept_length is None or contender.break_even is None:
        return None
    return limits(row, contender.accept_length, contender.break_even)


def _whole_sentences(notes: Sequence[str]) -> list[str]:
    """The notes, those of several lines as one sentence: an indented line goes on with the one before."""
    found: list[list[str]] = []
    for line in (line for note in notes for line in note.splitlines()):
        if line.startswith(" ") and found:
            found[-1].append(line.strip())
        else:
            found.append([line.strip()])
    return [f"{first} {'; '.join(rest)}".rstrip() for first, *rest in found]


def _warnings(
    rows: Sequence[TrialResult],
    objective: Objective,
    facts: StudyFacts,
    speculative: Contender | None,
    plain: MatchedPlain | None,
    costs: Sequence[StepCost],
) -> tuple[str, ...]:
    found = [*_whole_sentences(facts.notes), *warnings_of(rows, objective)]
    if speculative and plain:
        found += warnings_of_step_costs(f"t{speculative.trial:04d}", costs, plain)
    return tuple(dict.fromkeys(found))
