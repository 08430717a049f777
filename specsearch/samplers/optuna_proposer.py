"""Optuna's samplers as a proposer: asked with rows, never told anything twice, never wrong about the space."""

import warnings
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import cast

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState

from specsearch.objective import Objective
from specsearch.samplers.optuna_study import distribution, study_of_rows
from specsearch.search_space import Parameter, Point, SearchSpace, Value, point_key
from specsearch.study import known_keys
from specsearch.trial import TrialRequest, TrialResult

MakeSampler = Callable[[int], BaseSampler]

# Launches before the model is believed. Optuna's own 10 would be a quarter of a usual budget; the start
# baseline and the seed points count.
STARTUP_TRIALS = 6
# A sampler that came back with known points so often is stuck on its favourite.
FRUITLESS_ASKS = 10
# Spaces up to so many combinations are listed, so that exhaustion is known and not guessed.
LISTED_COMBINATIONS = 20_000
# In a larger space, so many random points without a new valid one: fewer than one in a thousand is left.
RANDOM_POINTS = 5_000


def make_tpe(seed: int) -> BaseSampler:
    """TPE that models knobs jointly, each set of active knobs by itself, and reckons with running trials."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Argument ``group`` is an experimental feature", ExperimentalWarning)
        return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS)


def make_random(seed: int) -> BaseSampler:
    """Every free knob uniformly at random."""
    return RandomSampler(seed=seed)


class OptunaProposer:
    """A proposer around an Optuna sampler, which is made anew for each proposal.

    The sampler's seed is mixed with the number of rows and pending trials, so the same rows give the same
    proposal and a resumed run goes on instead of replaying.
    """

    def __init__(self, make_sampler: MakeSampler, seed: int = 0) -> None:
        self._make_sampler = make_sampler
        self._seed = seed
        self._listed: tuple[SearchSpace, list[dict[str, Value]] | None] | None = None

    def propose(
        self, space: SearchSpace, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], objective: Objective
    ) -> Point | None:
        """A valid canonical point that is neither in the rows nor pending; None when the space is exhausted."""
        known = known_keys(rows, pending)
        points = self._points(space)
        left = None if points is None else [point for point in points if point_key(point) not in known]
        if left is not None and len(left) <= 1:
            return left[0] if left else None
        chance = Random(f"{self._seed} {len(rows) + len(pending)}")
        study = study_of_rows(space, rows, pending, objective, self._make_sampler(chance.getrandbits(31)))
        for _ in range(FRUITLESS_ASKS):
            trial = study.ask()
            point = _asked_point(space, trial)
            if _is_new(space, point, known):
                return point
            study.tell(trial, state=TrialState.FAIL)
        return chance.choice(left) if left else _random_point(space, known, chance)

    def _points(self, space: SearchSpace) -> list[dict[str, Value]] | None:
        if self._listed is None or self._listed[0] != space:
            self._listed = (space, space.valid_points(LISTED_COMBINATIONS))
        return self._listed[1]


def _asked_point(space: SearchSpace, trial: Trial) -> dict[str, Value]:
    def choose(parameter: Parameter) -> Value:
        match distribution(parameter):
            case CategoricalDistribution() as choice:
                return cast(Value, trial.suggest_categorical(parameter.name, choice.choices))
            case IntDistribution() as integer:
                return int(
                    trial.suggest_int(parameter.name, integer.low, integer.high, step=integer.step, log=integer.log)
                )

    return space.walk(choose)


def _is_new(space: SearchSpace, point: Point, known: Collection[str]) -> bool:
    return point_key(point) not in known and not space.problems(point)


def _random_point(space: SearchSpace, known: Collection[str], chance: Random) -> dict[str, Value] | None:
    for _ in range(RANDOM_POINTS):
        point = space.walk(lambda parameter: chance.choice(parameter.all_values()))
        if _is_new(space, point, known):
            return point
    return None
