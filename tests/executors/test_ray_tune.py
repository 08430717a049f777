"""The executor under Ray Tune, on one node with 8 logical GPUs."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest
import ray

from specsearch.clock import SystemClock, wait_until
from specsearch.errors import HostNotFit
from specsearch.executors.driver import Event, RunTrial, StudyDriver, TrialMoved
from specsearch.executors.ray_cluster import Demand
from specsearch.study import Done
from specsearch.trial import TrialStatus
from tests.executors.contract import ExecutorContract, told
from tests.executors.ray_kit import run
from tests.executors.table import Holder, MemoryStore, Table, driver, study

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


class TestRayTune(ExecutorContract):
    def execute(self, driver: StudyDriver, run_trial: RunTrial) -> Done:
        return run(driver, run_trial)


def test_a_trial_owns_all_its_gpus_in_ascending_order_and_its_process_is_used_again() -> None:
    store = MemoryStore()
    run(driver(study(trials=2), store), Table())
    assert {row.host_facts["gpus"] for row in store.rows} == {"0,1,2,3,4,5,6,7"}
    assert len({row.host_facts["pid"] for row in store.rows}) == 1
    assert {row.warnings for row in store.rows} == {()}  # none ran at Ray's nice 15


def test_a_trial_whose_process_is_killed_has_a_row_and_is_repeated_elsewhere() -> None:
    """RC-04, RS-09: SIGKILL of the actor ends one attempt; the study goes on in a new process."""
    store = MemoryStore()
    killed = Table({f"EAGLE3 {steps}": ("killed", "ok") for steps in (1, 2, 3)})
    run(driver(study(trials=1), store), killed)
    assert [(row.attempt, row.status.value, row.reason) for row in store.rows] == [
        (1, "ok", None),
        (1, "failed", "actor_died"),
        (2, "ok", None),
    ]
    assert store.rows[1].node == store.rows[0].node or store.rows[1].node is None
    assert len({row.host_facts["pid"] for row in (store.rows[0], store.rows[2])}) == 2


def test_progress_of_a_running_trial_arrives_while_it_runs() -> None:
    events: list[Event] = []
    run(driver(study(trials=1), observers=[events.append]), Table({"plain": ("slow",)}))
    moved = [event.progress for event in events if isinstance(event, TrialMoved)]
    assert moved
    assert (moved[0].note, moved[0].accept_length) == ("measuring", 2.0)


def test_two_trials_share_a_node_where_that_is_asked_for(tmp_path: Path) -> None:
    store = MemoryStore()
    meet = Table({f"EAGLE3 {n}": ("meet",) for n in (1, 2, 3)}, marks=tmp_path)
    run(driver(study(trials=2), store), meet, demand=Demand(4, 2))
    first, second = store.rows[1:]
    assert max(first.started_at, second.started_at) < min(first.ended_at, second.ended_at)
    assert {first.host_facts["gpus"], second.host_facts["gpus"]} == {"0,1,2,3", "4,5,6,7"}


def test_more_gpus_than_any_node_has_are_refused_before_anything_is_launched() -> None:
    """SR-09: asked and available are named."""
    store = MemoryStore()
    with pytest.raises(HostNotFit, match="needs 16 GPUs on one node, the largest node has 8"):
        run(driver(study(), store), Table(), demand=Demand(16))
    with pytest.raises(HostNotFit, match=r"needs 16 GPUs on one node \(2 trials of 8\)"):
        run(driver(study(), store), Table(), demand=Demand(8, 2))
    assert store.rows == []


def test_gpus_that_others_hold_are_waited_for_and_then_the_shortfall_is_named() -> None:
    """SR-09: another Ray user holds one GPU for the whole test."""
    holder = ray.remote(num_gpus=1, num_cpus=0)(Holder).remote()
    ray.get(holder.here.remote())
    store = MemoryStore()
    with pytest.raises(HostNotFit, match=r"8 GPUs on one node; after 0.5 s .* has 7 of 8 GPUs free"):
        run(driver(study(), store), Table(), resource_wait_s=0.5)
    ray.kill(holder)
    assert store.rows == []


def test_a_hard_stop_does_not_wait_for_the_trial_to_agree(tmp_path: Path) -> None:
    """The process of a trial that is killed while the study stops leaves an aborted row, not a failed one."""
    store = MemoryStore()
    made = driver(study(), store)

    def kill_it(event: Event) -> None:
        if isinstance(event, TrialMoved):
            made.stop.reason, made.stop.hard = "user", True
            os.kill(int(next(tmp_path.iterdir()).name.split("-")[2]), signal.SIGKILL)

    made.observers.append(kill_it)
    done = run(made, Table({"plain": ("wait",)}, marks=tmp_path))
    assert done.why == "stopped by the user"
    assert told(store.rows) == [("plain", 1, "aborted")]
    assert store.rows[0].status == TrialStatus.ABORTED


def test_a_study_can_be_followed_in_rays_metrics() -> None:
    """What Prometheus would scrape: the best so far, and each trial's state under its configuration in short."""
    run(
        driver(study(trials=1)), Table({f"EAGLE3 {n}": ("infeasible:oom_alloc",) for n in (1, 2, 3)}), study_name="seen"
    )
    url = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"
    lines: list[str] = []

    def exported() -> bool:
        with urllib.request.urlopen(url, timeout=5) as page:
            lines[:] = [line for line in page.read().decode().splitlines() if 'study="seen"' in line]
        return any('state="infeasible"' in line for line in lines) and any("_best_objective{" in line for line in lines)

    assert wait_until(exported, timeout_s=60, poll_s=0.5, clock=SystemClock())
    assert any(line.startswith("ray_specsearch_best_objective{") and 'trial="t0000 plain"' in line for line in lines)
    assert any(line.startswith("ray_specsearch_accept_length{") and line.endswith(" 2.0") for line in lines)
    assert any('state="infeasible"' in line and 'trial="t0001 EAGLE3' in line for line in lines)
