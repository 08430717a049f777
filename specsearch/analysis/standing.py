"""How trials stand under an objective: against the start baseline, the best plain run and their own break-even."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specsearch.analysis.admission import waited_at
from specsearch.analysis.speedup import (
    MatchedPlain,
    StepCost,
    geometric_mean,
    matched_plain,
    start_baseline,
    step_costs,
)
from specsearch.analysis.stability import Ratio, objective_ratio
from specsearch.metrics import METRICS
from specsearch.objective import Objective
from specsearch.search_space import is_plain
from specsearch.study import ranked
from specsearch.trial import TrialResult, short_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A ranked trial and how it stands."""

    trial: int
    attempt: int
    name: str  # the configuration in a few words
    plain: bool
    objective: float | None  # in the metric's own unit; None for a trial that has no score
    values: Mapping[str, float]  # the metric at each load point of the objective
    over_start: Ratio | None  # against the start baseline; above 1 is better, whatever the metric
    over_best_plain: Ratio | None
    accept_length: float | None  # geometric means over the objective's load points; None in plain decoding
    break_even: float | None
    margin: float | None
    predicted: bool  # break-even and margin are against a plain run that differs in other knobs, too
    queue_limited: bool  # requests waited to be admitted at a load point of the objective
    command: str | None

    @property
    def title(self) -> str:
        return f"t{self.trial:04d} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Who is fastest at one load point."""

    load_point: str
    contender: Contender
    best: Contender  # the study's best, as it stands here
    best_breaks_bound: bool  # of the objective, at this load point


@dataclass(frozen=True, slots=True)
class Judge:
    """Rows under one objective, best first."""

    rows: Sequence[TrialResult]
    objective: Objective
    order: Sequence[TrialResult]

    @property
    def start(self) -> TrialResult | None:
        return start_baseline(self.rows)

    def best(self, *, plain: bool) -> TrialResult | None:
        return next((row for row in self.order if is_plain(row.point) == plain), None)

    def costs(self, row: TrialResult) -> tuple[MatchedPlain | None, list[StepCost]]:
        """The plain run a speculative trial is held against, and the arithmetic at every load point."""
        match = matched_plain(row, self.rows)
        return match, step_costs(row, match.row) if match else []

    def contender(self, row: TrialResult) -> Contender:
        score = self.objective.score(row.measurements)
        best_plain = self.best(plain=True)
        accept_length, break_even = (None, None) if is_plain(row.point) else self._lengths(row)
        return Contender(
            trial=row.number,
            attempt=row.attempt,
            name=short_name(row.point),
            plain=is_plain(row.point),
            objective=_natural(score, self.objective) if score is not None else None,
            values=self.objective.values(row.measurements) or {},
            over_start=objective_ratio(row, self.start, self.objective) if self.start else None,
            over_best_plain=objective_ratio(row, best_plain, self.objective) if best_plain else None,
            accept_length=accept_length,
            break_even=break_even,
            margin=accept_length - break_even if accept_length is not None and break_even is not None else None,
            predicted=break_even is not None and self._is_predicted(row),
            queue_limited=not set(waited_at(row)).isdisjoint(self.objective.values(row.measurements) or {}),
            command=row.serve_command or row.command,
        )

    def _lengths(self, row: TrialResult) -> tuple[float | None, float | None]:
        """Accept length and break-even accept length over the objective's load points."""
        costs = [cost for cost in self.costs(row)[1] if not self.objective.at or cost.load_point in self.objective.at]
        if not costs:
            return None, None
        return geometric_mean([c.accept_length for c in costs]), geometric_mean([c.break_even for c in costs])

    def _is_predicted(self, row: TrialResult) -> bool:
        match = matched_plain(row, self.rows)
        return match is not None and match.predicted

    def over_plain_at(self, row: TrialResult, load_point: str) -> Ratio | None:
        """A trial against the best plain one at a load point outside the objective, where its bounds do not hold."""
        objective = replace(self.objective, at=(load_point,), subject_to=())
        plain = next((other for other in ranked(self.rows, objective) if is_plain(other.point)), None)
        return objective_ratio(row, plain, objective) if plain else None

    def winners(self, best: int) -> list[Winner]:
        """The winner at each of several load points, where they are not all the study's best trial.

        It is one of the ranked trials, and keeps the bounds at this load point, too.
        """
        found = []
        best_row = next(row for row in self.order if row.number == best)
        for point in dict.fromkeys(m.load_point for m in best_row.measurements):
            objective = replace(self.objective, at=(point,))
            order = ranked(self.order, objective)
            if order:
                judge = Judge(self.rows, objective, order)
                winner, own = judge.contender(order[0]), judge.contender(best_row)
                breaks = any(violation > 0 for violation in objective.violations(best_row.measurements))
                found.append(Winner(load_point=point, contender=winner, best=own, best_breaks_bound=breaks))
        return found if len(found) > 1 and any(winner.contender.trial != best for winner in found) else []


def _natural(score: float, objective: Objective) -> float:
    """A score, of which more is always better, in the metric's own sense."""
    return 1 / score if METRICS[objective.metric].better < 0 else score
