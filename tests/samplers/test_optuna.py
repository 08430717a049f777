"""Optuna's samplers behind the proposer, and the study that is made of rows."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from specsearch.objective import Bound, Objective
from specsearch.samplers import SAMPLERS, OptunaProposer, export_journal, make_random, make_tpe, study_of_rows
from specsearch.samplers.optuna_study import CANNOT_RUN, WORST
from specsearch.search_space import ChoiceParameter, Constraint, IntParameter, Point, SearchSpace, point_key
from specsearch.trial import Measurement, TrialKind, TrialRequest, TrialResult, TrialStatus

OBJECTIVE = Objective(subject_to=(Bound.parse("ttft_p99_ms <= 500"),))
EAGLE3 = {"speculative_algorithm": "EAGLE3"}
# SR-04's space: which draft tokens are allowed depends on the steps and on top-k.
TREES = SearchSpace(
    (
        ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")),
        ChoiceParameter("num_steps", (1, 3, 5)),
        ChoiceParameter("eagle_topk", (1, 2, 4, 8)),
        ChoiceParameter("num_draft_tokens", (2, 4, 8, 16, 32)),
        ChoiceParameter("cuda_graph", (True, False)),
    ),
    (Constraint("num_draft_tokens - 1 <= eagle_topk + (num_steps - 1) * eagle_topk * eagle_topk"),),
)
CHAINS = SearchSpace((ChoiceParameter("speculative_algorithm", ("EAGLE3",)), IntParameter("num_steps", 1, 8)))
# More combinations than are listed.
LARGE = SearchSpace(tuple(IntParameter(f"flag_{name}", 1, 64, log=True) for name in "abcd"))


def row(
    number: int,
    point: Point,
    status: str = "ok",
    speed: float = 50.0,
    *,
    ttft_ms: float = 100.0,
    reason: str | None = None,
) -> TrialResult:
    values = {"output_tokens_per_s": speed, "ttft_p99_ms": ttft_ms}
    measurement = Measurement(
        workload="chat", workload_digest="0" * 12, workload_kind="text", concurrency=1, repeat=0, values=values
    )
    return TrialResult(
        number=number,
        attempt=1,
        kind=TrialKind.SEARCH,
        point=point,
        status=TrialStatus(status),
        reason=reason,
        started_at=1e9 + number,
        ended_at=1e9 + number + 1,
        measurements=(measurement,) if status == "ok" else (),
    )


def chain(steps: int) -> dict[str, Any]:
    return {"num_steps": steps, **EAGLE3}


def search(
    space: SearchSpace,
    make: Callable[[int], BaseSampler],
    count: int,
    status_of: Callable[[Point], str] = lambda _: "ok",
) -> list[TrialResult]:
    """Rows of so many proposals, fewer when the space is exhausted."""
    proposer = OptunaProposer(make, seed=3)
    rows: list[TrialResult] = []
    for number in range(count):
        point = proposer.propose(space, rows, (), OBJECTIVE)
        if point is None:
            break
        rows.append(row(number, point, status_of(point), 50.0 + number % 7))
    return rows


def test_each_status_is_told_as_the_contract_says() -> None:
    rows = [
        row(0, chain(1)),
        row(1, chain(2), "infeasible"),
        row(2, chain(3), "invalid"),
        row(3, chain(4), "failed"),
        row(4, chain(5), "aborted"),
        row(5, chain(6), "skipped_duplicate"),
        row(6, chain(9), "rejected"),
        row(7, chain(7), "stopped_early", reason="hopeless"),
        row(8, chain(8), "stopped_early", reason="constraint_violated"),
    ]
    trials = study_of_rows(CHAINS, rows, (), OBJECTIVE, make_random(0)).trials
    states = [trial.state.name for trial in trials]
    assert states == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "FAIL", "FAIL", "FAIL", "PRUNED", "PRUNED"]
    assert [trial.constraints.get(CANNOT_RUN) for trial in trials] == [
        0,
        WORST,
        WORST,
        None,
        None,
        None,
        None,
        0,
        WORST,
    ]
    assert trials[0].value == pytest.approx(50.0)
    assert trials[0].params == {"speculative_algorithm": "EAGLE3", "num_steps": 1}
    assert trials[6].params == {}  # num_steps 9 is not in the space


def test_a_measured_bound_is_a_constraint_that_samplers_see() -> None:
    rows = [row(0, chain(1), ttft_ms=750.0), row(1, chain(2), ttft_ms=250.0)]
    late, early = study_of_rows(CHAINS, rows, (), OBJECTIVE, make_random(0)).trials
    assert late.constraints["ttft_p99_ms <= 500"] == pytest.approx(0.5)
    assert early.constraints["ttft_p99_ms <= 500"] == pytest.approx(-0.5)
    assert late.state == TrialState.COMPLETE  # it has its value, and loses by the constraint


def test_nothing_that_is_not_a_number_reaches_the_study() -> None:
    """SR-02: NaN and infinities leave trials RUNNING or poison sums; they are FAIL, or cut to a finite violation."""
    rows = [row(0, chain(1), speed=math.nan), row(1, chain(2), speed=math.inf), row(2, chain(3), speed=0.0)]
    unknown = row(3, chain(4))
    del unknown.measurements[0].values["ttft_p99_ms"]  # type: ignore[attr-defined]
    trials = study_of_rows(CHAINS, [*rows, unknown], (), OBJECTIVE, make_random(0)).trials
    assert [trial.state.name for trial in trials] == ["FAIL", "FAIL", "FAIL", "COMPLETE"]
    assert trials[3].constraints["ttft_p99_ms <= 500"] == WORST
    numbers = [number for trial in trials for number in (*(trial.values or ()), *trial.constraints.values())]
    assert all(map(math.isfinite, numbers))


def test_what_runs_is_running_and_nothing_else_is() -> None:
    """SR-05: a study made of rows alone has no RUNNING trial."""
    request = TrialRequest(number=1, attempt=1, kind=TrialKind.SEARCH, point=chain(2))
    study = study_of_rows(CHAINS, [row(0, chain(1))], [request], OBJECTIVE, make_random(0))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "RUNNING"]
    assert study.trials[1].params["num_steps"] == 2


def test_a_baseline_outside_the_space_counts_without_parameters() -> None:
    space = SearchSpace(
        (ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")), ChoiceParameter("page", (1, 64)))
    )
    inside, outside = (
        row(0, {"page": 1, "speculative_algorithm": "none"}),
        row(1, {"page": "unset", "speculative_algorithm": "none"}),
    )
    trials = study_of_rows(space, [inside, outside], (), OBJECTIVE, make_random(0)).trials
    assert [trial.state for trial in trials] == 2 * [TrialState.COMPLETE]
    assert trials[0].params == {"speculative_algorithm": "none", "page": 1}
    assert trials[1].params == {}


@pytest.mark.parametrize("name", SAMPLERS)
def test_fifty_proposals_are_valid_and_new(name: str) -> None:
    """SR-04: dependent choices cost no launch, and raise nothing."""
    rows = search(TREES, SAMPLERS[name], 50)
    assert len(rows) == 50
    assert [problem for made in rows for problem in TREES.problems(made.point)] == []
    assert len({point_key(made.point) for made in rows}) == 50


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_small_space_is_visited_once_and_then_exhausted(name: str) -> None:
    """SR-03: exhaustion is exact, not a guess after many fruitless asks."""
    rows = search(CHAINS, SAMPLERS[name], 20)
    assert sorted(int(made.point["num_steps"]) for made in rows) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_running_trial_is_not_proposed_again() -> None:
    rows = [row(steps, chain(steps)) for steps in range(1, 7)]
    request = TrialRequest(number=7, attempt=1, kind=TrialKind.SEARCH, point=chain(7))
    assert OptunaProposer(make_tpe).propose(CHAINS, rows, [request], OBJECTIVE) == chain(8)
    last = TrialRequest(number=8, attempt=1, kind=TrialKind.SEARCH, point=chain(8))
    assert OptunaProposer(make_tpe).propose(CHAINS, rows, [request, last], OBJECTIVE) is None


def test_the_same_rows_give_the_same_proposal_and_another_row_another_seed() -> None:
    """SR-01: a resumed run goes on where the killed one was; it does not replay the first proposals."""
    rows = search(LARGE, make_tpe, 9)
    assert OptunaProposer(make_tpe, 1).propose(LARGE, rows, (), OBJECTIVE) == OptunaProposer(make_tpe, 1).propose(
        LARGE, rows, (), OBJECTIVE
    )
    assert len({point_key(made.point) for made in rows}) == 9
    proposals = [OptunaProposer(make_random, seed).propose(LARGE, (), (), OBJECTIVE) for seed in range(5)]
    assert len({point_key(point) for point in proposals if point}) == 5


class Stuck(BaseSampler):
    """Chooses the lowest value, whatever it knows."""

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return param_distribution.low if hasattr(param_distribution, "low") else param_distribution.choices[0]


@pytest.mark.parametrize("space", [CHAINS, LARGE], ids=["listed", "large"])
def test_a_sampler_that_is_stuck_on_its_favourite_is_helped_out_at_random(space: SearchSpace) -> None:
    rows = search(space, lambda seed: Stuck(), 8)
    assert len({point_key(made.point) for made in rows}) == 8


def test_a_large_space_without_a_valid_point_is_exhausted() -> None:
    impossible = SearchSpace(LARGE.parameters, (Constraint("flag_a > 64"),))
    assert OptunaProposer(make_random).propose(impossible, (), (), OBJECTIVE) is None


def test_the_sampler_learns_to_keep_away_from_what_cannot_run() -> None:
    """Told as FAIL such points would be proposed at the rate of chance, half of them here, as if never tried."""
    space = SearchSpace((*LARGE.parameters, ChoiceParameter("cuda_graph", (True, False))))
    rows = search(space, make_tpe, 40, lambda point: "infeasible" if point["cuda_graph"] else "ok")
    late = [made.status for made in rows[15:]]
    assert late.count(TrialStatus.INFEASIBLE) <= len(late) // 4


def test_an_integer_with_steps_is_proposed_within_its_steps() -> None:
    space = SearchSpace((IntParameter("blocks", 3, 20, step=5),))
    values = sorted(int(made.point["blocks"]) for made in search(space, make_tpe, 9))
    assert values == [3, 8, 13, 18]


def test_the_exported_journal_holds_every_row_and_nothing_that_runs(tmp_path: Path) -> None:
    rows: Sequence[TrialResult] = [row(0, chain(1)), row(1, chain(2), "infeasible"), row(2, chain(3), "failed")]
    path = tmp_path / "study.journal"
    for _ in range(2):  # the second export replaces the first
        export_journal(path, "chains", CHAINS, rows, OBJECTIVE)
    study = optuna.load_study(study_name="chains", storage=JournalStorage(JournalFileBackend(str(path))))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL"]
    assert study.best_trial.user_attrs["trial"] == "t0000 EAGLE3 1"
    assert study.trials[1].user_attrs["status"] == "infeasible"
    assert [entry.name for entry in tmp_path.iterdir()] == ["study.journal"]
