"""The driver, without any executor."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specsearch.errors import HostNotFit
from specsearch.executors.driver import (
    BUDGET,
    USER,
    Event,
    StudyDriver,
    StudyEnded,
    TrialEnded,
    TrialMoved,
    TrialStarted,
    union_s,
)
from specsearch.objective import Objective
from specsearch.search_space import Point, SearchSpace
from specsearch.study import Budget, Done, Study, Wait
from specsearch.trial import Phase, Progress, TrialKind, TrialRequest, TrialResult, TrialStatus
from tests.executors.table import CHAINS, MemoryStore, measured, study
from tests.fakes import FakeClock

BASELINE = {"speculative_algorithm": "none"}


def made(what: Study | None = None, store: MemoryStore | None = None, **more: object) -> StudyDriver:
    clock = more.pop("clock", FakeClock(1000.0))
    chosen = store if store is not None else MemoryStore()
    return StudyDriver(what or study(), chosen, clock, engine="simulated", gpus_per_trial=8, **more)  # type: ignore[arg-type]


def asked(driver: StudyDriver) -> TrialRequest:
    request = driver.next()
    assert isinstance(request, TrialRequest)
    return request


def ok(request: TrialRequest, speed: float = 50.0, *, node: str = "a", key: str | None = None) -> TrialResult:
    return TrialResult(
        number=request.number,
        attempt=request.attempt,
        kind=request.kind,
        point=request.point,
        status=TrialStatus.OK,
        measurements=measured(speed),
        node=node,
        effective_key=key,
    )


def failed(request: TrialRequest, reason: str, *, node: str = "a") -> TrialResult:
    return TrialResult(
        number=request.number,
        attempt=request.attempt,
        kind=request.kind,
        point=request.point,
        status=TrialStatus.FAILED,
        reason=reason,
        message="made up",
        node=node,
    )


def test_what_a_dead_run_left_running_becomes_a_failed_row_and_is_repeated() -> None:
    """SR-05: no ghost stays, and the trial keeps its number."""
    store = MemoryStore()
    request = TrialRequest(number=0, attempt=1, kind=TrialKind.BASELINE, point=BASELINE)
    store.note_running(request)
    driver = made(store=store, unfinished=[request])
    assert [(row.status, row.reason) for row in store.rows] == [(TrialStatus.FAILED, "interrupted")]
    assert store.running == {}
    again = asked(driver)
    assert (again.number, again.attempt, again.kind) == (0, 2, TrialKind.BASELINE)


def test_a_trial_that_died_with_three_runs_is_given_up() -> None:
    point = {"speculative_algorithm": "EAGLE3", "num_steps": 2}
    rows = [ok(TrialRequest(number=0, attempt=1, kind=TrialKind.BASELINE, point=BASELINE))]
    for attempt in (1, 2, 3):
        left = TrialRequest(number=1, attempt=attempt, kind=TrialKind.SEARCH, point=point)
        driver = made(results=rows, unfinished=[left])
        rows = driver.results
    assert asked(driver).number == 2


def test_a_note_whose_row_was_already_written_makes_no_second_row() -> None:
    """The run was killed after the commit and before the note was gone."""
    store = MemoryStore()
    request = TrialRequest(number=0, attempt=1, kind=TrialKind.BASELINE, point=BASELINE)
    store.note_running(request)
    driver = made(store=store, results=[ok(request)], unfinished=[request])
    assert store.rows == []
    assert store.running == {}
    assert asked(driver).number == 1


def test_a_seed_point_that_cannot_run_gets_a_rejected_row_and_no_launch() -> None:
    store = MemoryStore()
    bad, good = ({"speculative_algorithm": "EAGLE3", "num_steps": steps} for steps in (9, 2))
    what = Study(CHAINS, Objective(), Budget(), study().proposer, seed_points=(bad, good))
    driver = made(what, store)
    baseline = asked(driver)
    driver.finish(baseline, ok(baseline))
    seed = asked(driver)
    assert (seed.kind, seed.point) == (TrialKind.SEED, good)
    rejected = store.rows[1]
    assert (rejected.status, rejected.reason, rejected.gpu_count) == (TrialStatus.REJECTED, "infeasible_params", 0)
    assert "num_steps 9 is not an integer from 1 to 3" in str(rejected.message)


class StuckProposer:
    """Always proposes the same."""

    def propose(
        self, space: SearchSpace, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], objective: Objective
    ) -> Point:
        return {"speculative_algorithm": "EAGLE3", "num_steps": 1}


def test_a_sampler_that_is_stuck_launches_nothing_twice_and_the_study_ends() -> None:
    """SR-03: ten proposals in a row that are known end the search."""
    store = MemoryStore()
    driver = made(Study(CHAINS, Objective(), Budget(), StuckProposer()), store)
    launches = 0
    while isinstance(request := driver.next(), TrialRequest):
        driver.finish(request, ok(request))
        launches += 1
    assert isinstance(request, Done)
    assert launches == 2
    statuses = [row.status for row in store.rows]
    assert statuses == 2 * [TrialStatus.OK] + 10 * [TrialStatus.SKIPPED_DUPLICATE]


def test_a_row_is_stored_before_anybody_hears_of_it() -> None:
    store = MemoryStore()
    heard: list[tuple[Event, int]] = []
    driver = made(store=store, observers=[lambda event: heard.append((event, len(store.rows)))])
    request = asked(driver)
    driver.progressed(request, Progress(Phase.READY))
    driver.finish(request, ok(request))
    assert [(type(event), rows) for event, rows in heard] == [(TrialStarted, 0), (TrialMoved, 0), (TrialEnded, 1)]


def test_the_end_of_a_study_is_told_once() -> None:
    events: list[Event] = []
    driver = made(observers=[events.append])
    driver.stop.reason = USER
    assert driver.next() == driver.next() == Done("stopped by the user")
    assert events == [StudyEnded("stopped by the user")]


def test_a_lost_trial_has_a_row_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    """RS-09: status, reason, phase, times, log path, by the driver, since the trial can no longer say them."""
    store, clock = MemoryStore(), FakeClock(1000.0)
    driver = made(store=store, clock=clock, logs_dir=tmp_path)
    request = asked(driver)
    (tmp_path / request.log_name).touch()
    driver.progressed(request, Progress(Phase.MEASURE))
    clock.sleep(30)
    driver.lost(request, "actor_died", "killed", node="a")
    row = store.rows[0]
    assert (row.status, row.reason, row.phase, row.node) == (TrialStatus.FAILED, "actor_died", Phase.MEASURE, "a")
    assert (row.started_at, row.ended_at, row.gpu_seconds) == (1000.0, 1030.0, 240.0)
    assert row.log_path == str(tmp_path / "t0000-1.log")
    assert row.engine == "simulated"
    assert asked(driver).attempt == 2


def test_what_was_measured_is_kept_before_the_teardown_and_once() -> None:
    """A node that does not give its memory back must not cost the numbers that were had before."""
    store = MemoryStore()
    driver = made(store=store)
    request = asked(driver)
    for _ in range(3):
        driver.progressed(request, Progress(Phase.TEARDOWN, measured=ok(request)))
    assert store.happened == ["note 0", "measured 0"]
    driver.finish(request, ok(request))
    assert store.kept == {}


def test_a_trial_that_is_lost_in_its_teardown_keeps_what_it_had_measured() -> None:
    driver = made()
    request = asked(driver)
    driver.progressed(request, Progress(Phase.TEARDOWN, measured=ok(request)))
    driver.lost(request, "node_lost", "its node is gone")
    (row,) = driver.results
    assert (row.status, row.measurements) == (TrialStatus.OK, ok(request).measurements)
    assert row.warnings == ("measured in full; the end of its server was not seen: its node is gone",)


def test_a_run_that_died_in_a_teardown_is_not_measured_again() -> None:
    store = MemoryStore()
    before = made(store=store)
    request = asked(before)
    before.progressed(request, Progress(Phase.TEARDOWN, measured=ok(request)))
    after = made(store=store, unfinished=[request])
    assert [row.status for row in after.results] == [TrialStatus.OK]
    assert asked(after).number == 1
    assert (store.running.keys(), store.kept) == ({(1, 1)}, {})


def test_a_trial_that_is_lost_while_the_study_stops_is_aborted_and_not_failed() -> None:
    store = MemoryStore()
    driver = made(store=store)
    request = asked(driver)
    driver.stop.reason = USER
    driver.lost(request, "actor_died", "killed")
    assert (store.rows[0].status, store.rows[0].reason) == (TrialStatus.ABORTED, "user")


def test_nothing_starts_after_a_stop_and_the_study_waits_for_what_runs() -> None:
    driver = made()
    request = asked(driver)
    driver.stop.reason = USER
    assert isinstance(driver.next(), Wait)
    driver.finish(request, ok(request))
    assert isinstance(driver.next(), Done)


def test_time_is_counted_from_when_trials_can_start_and_overlaps_count_once() -> None:
    """Ray's start is not charged, nor is a night between two runs; two nodes at once are not two times."""
    clock = FakeClock(1000.0)
    rows = [
        TrialResult(
            number=number,
            attempt=1,
            kind=TrialKind.BASELINE if number == 0 else TrialKind.SEARCH,
            point=BASELINE,
            status=TrialStatus.OK,
            started_at=start,
            ended_at=end,
        )
        for number, (start, end) in enumerate([(0.0, 10.0), (20.0, 40.0), (30.0, 50.0)])
    ]
    driver = made(clock=clock, results=rows, what=study(wall_time_s=100))
    clock.sleep(15)
    driver.begin()
    assert driver.elapsed_s == 40
    clock.sleep(59)
    assert driver.stop.reason is None
    clock.sleep(1)
    assert driver.stop.reason == BUDGET


def test_the_union_of_intervals_counts_gaps_and_overlaps_right() -> None:
    assert union_s([]) == 0
    assert union_s([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4


def test_two_host_failures_in_a_row_take_a_node_out_and_a_success_between_them_does_not() -> None:
    driver = made(study(trials=None))
    driver.nodes = {"a"}
    request = asked(driver)
    for result in (failed(request, "gpu_not_free"), None, failed(request, "gpu_not_free")):
        driver.finish(request, result or ok(request))
        request = asked(driver)
    assert driver.unfit == {}
    driver.finish(request, failed(request, "port_taken"))
    assert set(driver.unfit) == {"a"}
    with pytest.raises(HostNotFit, match="the last: made up"):
        driver.next()


def test_a_configuration_that_hangs_does_not_take_the_node_out() -> None:
    driver = made()
    driver.nodes = {"a"}
    for _ in range(3):
        request = asked(driver)
        driver.finish(request, failed(request, "hang"))
    assert driver.unfit == {}


def test_two_configurations_in_a_row_that_hang_at_their_start_take_the_node_out() -> None:
    """LF-09: a first collective that never completes costs every trial its whole patience."""
    driver = made(study(trials=None))
    driver.nodes = {"a"}
    driver.finish(request := asked(driver), ok(request))
    for reason in ("nccl_hang", None, "nccl_hang", "startup_hang"):
        assert driver.unfit == {}
        request = TrialRequest(
            number=len(driver.results), attempt=3, kind=TrialKind.SEED, point={"n": len(driver.results)}
        )
        driver.finish(request, ok(request) if reason is None else failed(request, reason))
    assert "hung one after the other" in driver.unfit["a"]


def test_one_configuration_that_hangs_three_times_does_not() -> None:
    driver = made()
    driver.nodes = {"a"}
    for _ in range(3):
        request = asked(driver)
        driver.finish(request, failed(request, "nccl_hang"))
    assert driver.unfit == {}


def test_the_study_ends_without_a_node_only_once_nothing_runs() -> None:
    driver = made()
    driver.nodes = {"a", "b"}
    baseline = asked(driver)
    driver.finish(baseline, ok(baseline))
    first, second = asked(driver), asked(driver)
    driver.node_unfit("a", "keeps memory")
    driver.node_unfit("b", "is gone")
    driver.finish(first, ok(first))
    assert isinstance(driver.next(), Wait)
    driver.finish(second, ok(second))
    with pytest.raises(HostNotFit, match="keeps memory") as raised:
        driver.next()
    assert "b: is gone" in str(raised.value)


def test_a_study_that_is_done_needs_no_node() -> None:
    driver = made(study(trials=1))
    driver.nodes = {"a"}
    for _ in range(2):
        request = asked(driver)
        driver.finish(request, ok(request))
    driver.node_unfit("a", "keeps memory")
    assert isinstance(driver.next(), Done)


def test_of_two_equal_configurations_that_ran_at_once_the_second_is_a_duplicate() -> None:
    """Neither could know of the other when it was launched."""
    store = MemoryStore()
    driver = made(store=store)
    baseline = asked(driver)
    driver.finish(baseline, ok(baseline, key="plain"))
    first, second = asked(driver), asked(driver)
    driver.finish(second, ok(second, key="same"))
    driver.finish(first, ok(first, key="same"))
    assert [row.status for row in store.rows[1:]] == [TrialStatus.OK, TrialStatus.SKIPPED_DUPLICATE]
    assert store.rows[2].reason == "same_effective_configuration"


def test_what_is_handed_back_is_asked_for_again_and_leaves_no_row() -> None:
    store = MemoryStore()
    driver = made(store=store)
    request = asked(driver)
    driver.hand_back(request)
    assert asked(driver) == request
    assert store.rows == []


def test_the_sampler_is_not_asked_again_while_there_is_only_to_wait() -> None:
    class Counting(StuckProposer):
        asks = 0

        def propose(self, *state: object) -> None:  # type: ignore[override]
            self.asks += 1

    proposer = Counting()
    point = {"speculative_algorithm": "EAGLE3", "num_steps": 1}
    driver = made(Study(CHAINS, Objective(), Budget(), proposer, seed_points=(point,)))
    baseline = asked(driver)
    driver.finish(baseline, ok(baseline))
    seed = asked(driver)
    for _ in range(5):
        assert isinstance(driver.next(), Wait)
    assert proposer.asks == 1
    driver.finish(seed, ok(seed))
    assert isinstance(driver.next(), Done)
