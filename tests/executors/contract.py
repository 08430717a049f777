"""What every executor has to do; a test class of an executor inherits it."""

import pytest

from specsearch.errors import HostNotFit, SpecSearchError, StorageError
from specsearch.executors.driver import Event, RunTrial, StudyDriver, TrialEnded, TrialMoved, TrialStarted
from specsearch.samplers import make_random, study_of_rows
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace
from specsearch.study import Done
from specsearch.trial import TrialKind, TrialResult, TrialStatus
from tests.executors.table import ChainRules, MemoryStore, ShiftedClock, Table, driver, study


def told(rows: list[TrialResult]) -> list[tuple[str, int, str]]:
    """(configuration, attempt, status) of each row, as it was stored."""
    return [(row.name[6:], row.attempt, row.status.value) for row in rows]


class ExecutorContract:
    """Studies of a few trials whose results come from a table."""

    def execute(self, driver: StudyDriver, run_trial: RunTrial) -> Done:
        """Run the study to its end with the executor under test, on one node with 8 GPUs."""
        raise NotImplementedError

    def test_a_space_of_three_chains_ends_after_the_baseline_and_three_launches(self) -> None:
        """SR-03: draft tokens mean nothing at top-k 1, so twelve requests are three configurations."""
        space = SearchSpace(
            (
                ChoiceParameter("speculative_algorithm", ("EAGLE3",)),
                ChoiceParameter("num_steps", (1, 2, 3)),
                ChoiceParameter("eagle_topk", (1,)),
                ChoiceParameter("num_draft_tokens", (2, 4, 8, 16)),
            ),
            rules=ChainRules(),
        )
        store = MemoryStore()
        done = self.execute(driver(study(space, trials=20), store), Table())
        assert "exhausted" in done.why
        assert [row.kind for row in store.rows] == [TrialKind.BASELINE] + 3 * [TrialKind.SEARCH]
        assert {row.point.get("num_steps") for row in store.rows[1:]} == {1, 2, 3}
        assert {row.status for row in store.rows} == {TrialStatus.OK}

    def test_each_trial_is_told_before_the_next_is_asked_for(self) -> None:
        """SR-10: on one place nothing is proposed ahead of a result; and each row is stored before its note goes."""
        events: list[Event] = []
        store = MemoryStore()
        self.execute(driver(study(trials=2), store, observers=[events.append]), Table())
        order = [event for event in events if isinstance(event, TrialStarted | TrialEnded)]
        assert [type(event) for event in order] == 3 * [TrialStarted, TrialEnded]
        assert store.happened == [f"{what} {n}" for n in range(3) for what in ("note", "commit", "forget")]
        assert store.running == {}

    def test_the_budget_counts_launches_of_the_search_and_the_baseline_comes_on_top(self) -> None:
        store = MemoryStore()
        done = self.execute(driver(study(trials=2), store), Table())
        assert done.why == "all 2 trials of the budget are used"
        assert [row.number for row in store.rows] == [0, 1, 2]

    def test_each_way_to_fail_is_retried_as_often_as_it_may_be(self) -> None:
        """RS-09, SR-02: one row per attempt; hosts' failures three times, crashes twice, the rest once."""
        store = MemoryStore()
        fails = Table(
            {
                "EAGLE3 1": ("failed:hang",),
                "EAGLE3 2": ("failed:runtime_crash",),
                "EAGLE3 3": ("infeasible:oom_alloc",),
                "EAGLE3 4": ("no number",),
                "EAGLE3 5": ("not a number",),
                "EAGLE3 6": ("failed:hang", "ok"),
            }
        )
        steps = IntParameter("num_steps", 1, 6)
        space = SearchSpace((ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")), steps))
        made = driver(study(space), store)
        self.execute(made, fails)
        assert sorted(told(store.rows)) == [
            ("EAGLE3 1", 1, "failed"),
            ("EAGLE3 1", 2, "failed"),
            ("EAGLE3 1", 3, "failed"),
            ("EAGLE3 2", 1, "failed"),
            ("EAGLE3 2", 2, "infeasible"),
            ("EAGLE3 3", 1, "infeasible"),
            ("EAGLE3 4", 1, "invalid"),
            ("EAGLE3 5", 1, "invalid"),
            ("EAGLE3 6", 1, "failed"),
            ("EAGLE3 6", 2, "ok"),
            ("plain", 1, "ok"),
        ]
        states = [
            t.state.name for t in study_of_rows(space, store.rows, (), made.study.objective, make_random(0)).trials
        ]
        assert "RUNNING" not in states
        assert states.count("COMPLETE") == sum(row.status == TrialStatus.OK for row in store.rows) == 2

    def test_what_the_server_resolves_to_something_measured_is_a_duplicate(self) -> None:
        store = MemoryStore()
        same = {"EAGLE3 1": "a", "EAGLE3 2": "a", "EAGLE3 3": "b"}
        self.execute(driver(study(), store), Table(effective=same))
        statuses = sorted(row.status.value for row in store.rows)
        assert statuses == ["ok", "ok", "ok", "skipped_duplicate"]

    def test_a_stop_ends_the_running_trial_with_a_row_and_the_study_after_it(self) -> None:
        """SR-01, SR-05: the next run repeats the trial that was ended, and nothing else."""
        store = MemoryStore()
        made = driver(study(trials=2), store)
        made.observers.append(lambda event: _stop_in_first_search(made, event))
        wait = Table({f"EAGLE3 {steps}": ("wait", "ok") for steps in (1, 2, 3)})
        done = self.execute(made, wait)
        assert done.why == "stopped by the user"
        assert told(store.rows)[0] == ("plain", 1, "ok")
        assert (store.rows[1].status, store.rows[1].reason) == (TrialStatus.ABORTED, "user")
        assert len(store.rows) == 2
        again = MemoryStore()
        second = driver(study(trials=2), again, results=store.rows, unfinished=store.running.values())
        self.execute(second, Table())
        assert again.rows[0].number == 1
        assert (again.rows[0].attempt, again.rows[0].status) == (2, TrialStatus.OK)
        assert [row.number for row in again.rows] == [1, 2]

    def test_the_time_budget_ends_a_trial_that_is_still_running(self) -> None:
        store, clock = MemoryStore(), ShiftedClock()

        def an_hour_later(event: Event) -> None:
            if isinstance(event, TrialMoved):
                clock.shift_s = 3600

        made = driver(study(wall_time_s=1800), store, clock, observers=[an_hour_later])
        done = self.execute(made, Table({"plain": ("wait",)}))
        assert done.why == "the time budget is used up"
        assert [(row.status, row.reason) for row in store.rows] == [(TrialStatus.ABORTED, "budget")]

    def test_a_node_that_keeps_memory_takes_no_more_trials(self) -> None:
        """RC-01: the row is stored, the only node is out, and the study ends with exit code 3."""
        store = MemoryStore()
        with pytest.raises(HostNotFit, match="GPU 3 keeps 12 GiB") as raised:
            self.execute(driver(study(), store), Table({"plain": ("node unfit",)}))
        assert raised.value.exit_code == 3
        assert told(store.rows) == [("plain", 1, "ok")]

    def test_a_node_whose_gpus_are_busy_twice_in_a_row_takes_no_more_trials(self) -> None:
        store = MemoryStore()
        busy = {"plain": ("ok",), **{f"EAGLE3 {steps}": ("failed:gpu_not_free",) for steps in (1, 2, 3)}}
        with pytest.raises(HostNotFit, match="2 failures of the host in a row"):
            self.execute(driver(study(), store), Table(busy))
        assert [row.reason for row in store.rows] == [None, "gpu_not_free", "gpu_not_free"]

    def test_a_bug_in_a_trial_ends_the_study_with_its_traceback(self) -> None:
        store = MemoryStore()
        with pytest.raises(Exception, match="a bug of the runner") as raised:
            self.execute(driver(study(), store), Table({f"EAGLE3 {steps}": ("bug",) for steps in (1, 2, 3)}))
        assert not isinstance(raised.value, SpecSearchError)
        assert told(store.rows) == [("plain", 1, "ok")]
        assert len(store.running) == 1  # the next run finds it

    def test_a_row_that_cannot_be_stored_ends_the_study_with_the_reason(self) -> None:
        """RS-04: nothing more is launched on top of a result that was lost."""
        store = FullStore()
        with pytest.raises(StorageError, match="no space left"):
            self.execute(driver(study(), store), Table())
        assert told(store.rows) == [("plain", 1, "ok")]
        assert store.happened[-1] == "note 1"

    def test_a_baseline_that_cannot_run_ends_the_study(self) -> None:
        """LF-06: nothing is searched against a baseline that does not exist."""
        store = MemoryStore()
        done = self.execute(driver(study(), store), Table({"plain": ("infeasible:arg_rejected",)}))
        assert "baseline" in done.why
        assert "arg_rejected" in done.why
        assert told(store.rows) == [("plain", 1, "infeasible")]


class FullStore(MemoryStore):
    """A disk with room for one row."""

    def commit(self, result: TrialResult) -> None:
        if self.rows:
            raise StorageError("results: no space left on device")
        super().commit(result)


def _stop_in_first_search(made: StudyDriver, event: Event) -> None:
    """The user presses Ctrl-C in the first trial of the search."""
    if isinstance(event, TrialStarted) and event.request.number == 1:
        made.stop.reason = "user"
