"""The Optuna study as a function of the rows: made when it is needed, never kept.

ok → COMPLETE, its values and by how much it breaks each bound
infeasible, invalid → PRUNED with a violated constraint: samplers learn to keep away
stopped_early → PRUNED
failed, aborted, skipped_duplicate, rejected → FAIL, which samplers ignore
running → RUNNING
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from specsearch.objective import Objective
from specsearch.search_space import ChoiceParameter, Parameter, Point, SearchSpace, Value
from specsearch.trial import TrialRequest, TrialResult, TrialStatus

optuna.logging.set_verbosity(optuna.logging.WARNING)  # every study that is made would say so on stderr

Distribution = CategoricalDistribution | IntDistribution

CANNOT_RUN = "cannot_run"  # the constraint that a point violates when it brought no number to be trusted
# The largest violation told: more than any kept number, and finite, since samplers add violations up.
WORST = 1e3

_STATES: Mapping[TrialStatus, TrialState] = {
    TrialStatus.OK: TrialState.COMPLETE,
    TrialStatus.STOPPED_EARLY: TrialState.PRUNED,
    TrialStatus.INFEASIBLE: TrialState.PRUNED,
    TrialStatus.INVALID: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.REJECTED: TrialState.FAIL,
    TrialStatus.SKIPPED_DUPLICATE: TrialState.FAIL,
    TrialStatus.ABORTED: TrialState.FAIL,
}


def study_of_rows(
    space: SearchSpace,
    rows: Iterable[TrialResult],
    pending: Iterable[TrialRequest],
    objective: Objective,
    sampler: BaseSampler,
) -> optuna.Study:
    """An in-memory study to be maximised, with one trial per row and one per pending request, in that order."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials(_finished(space, row, objective) for row in rows)
    for request in pending:
        params = free_values(space, request.point) or {}
        study.add_trial(
            create_trial(state=TrialState.RUNNING, params=params, distributions=_distributions(space, params))
        )
    return study


def export_journal(
    path: Path, name: str, space: SearchSpace, rows: Iterable[TrialResult], objective: Objective
) -> None:
    """Write the rows as an Optuna journal, for optuna-dashboard; nothing ever reads it back."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(partial)))
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize")
    study.add_trials(_finished(space, row, objective) for row in rows)
    partial.replace(path)


def distribution(parameter: Parameter) -> Distribution:
    """The parameter as Optuna sees it: one distribution per name, the same in every trial."""
    if isinstance(parameter, ChoiceParameter):
        return CategoricalDistribution(parameter.values)
    high = parameter.all_values()[-1]  # Optuna wants a high that the steps reach
    return IntDistribution(parameter.low, int(high), log=parameter.log and parameter.step == 1, step=parameter.step)


def free_values(space: SearchSpace, point: Point) -> dict[str, Value] | None:
    """What a sampler would have had to choose for this point; None for a point that the space cannot express."""
    chosen: dict[str, Value] = {}

    def choose(parameter: Parameter) -> Value:
        chosen[parameter.name] = point.get(parameter.name, parameter.all_values()[0])
        return chosen[parameter.name]

    expressed = space.walk(choose) == dict(point)
    return chosen if expressed and all(space.by_name[name].admits(value) for name, value in chosen.items()) else None


def _distributions(space: SearchSpace, names: Iterable[str]) -> dict[str, BaseDistribution]:
    return {name: distribution(space.by_name[name]) for name in names}


def _finished(space: SearchSpace, row: TrialResult, objective: Objective) -> FrozenTrial:
    """A point outside the space, such as a baseline that leaves a flag unset, counts but teaches no parameter."""
    params = free_values(space, row.point) or {}
    state, score = _STATES[row.status], None
    if state == TrialState.COMPLETE:
        score = objective.score(row.measurements)
        state = TrialState.FAIL if score is None else state
    trial = create_trial(
        state=state,
        value=score,
        params=params,
        distributions=_distributions(space, params),
        constraints=_constraints(row, state, objective),
        user_attrs=_attributes(row),
    )
    trial.datetime_start = datetime.fromtimestamp(row.started_at, UTC).replace(tzinfo=None)
    trial.datetime_complete = datetime.fromtimestamp(row.ended_at, UTC).replace(tzinfo=None)
    return trial


def _constraints(row: TrialResult, state: TrialState, objective: Objective) -> dict[str, float]:
    """Constraint → violation, 0 or less where it is kept."""
    if state == TrialState.COMPLETE:
        violations = objective.violations(row.measurements)
        kept = {str(bound): min(v, WORST) for bound, v in zip(objective.subject_to, violations, strict=True)}
        return kept | {CANNOT_RUN: 0.0}
    if state == TrialState.PRUNED:
        hopeless_but_lawful = row.status == TrialStatus.STOPPED_EARLY and row.reason != "constraint_violated"
        return {CANNOT_RUN: 0.0 if hopeless_but_lawful else WORST}
    return {}


def _attributes(row: TrialResult) -> dict[str, object]:
    attributes = {
        "trial": row.name,
        "attempt": row.attempt,
        "kind": row.kind.value,
        "status": row.status.value,
        "reason": row.reason,
        **{name: value for name, value in row.facts.items() if value is not None and math.isfinite(value)},
    }
    return {name: value for name, value in attributes.items() if value is not None}
