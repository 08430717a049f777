"""A cluster of two nodes with 8 logical GPUs each, on one machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from specsearch.clock import SystemClock
from specsearch.errors import HostNotFit
from specsearch.executors.driver import Event, TrialEnded, TrialMoved, TrialStarted
from specsearch.executors.ray_cluster import Demand, Node, places, ray_session, wait_for_room
from specsearch.trial import StopFlag, TrialStatus
from tests.executors.ray_kit import WHOLE_NODE, run
from tests.executors.table import GO_ON, MemoryStore, Table, driver, study

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes; the driver is connected as to a cluster that somebody else has started."""
    node = {"num_cpus": 2, "num_gpus": 8, "include_dashboard": False, "object_store_memory": 100 << 20}
    soon = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
    made = Cluster(initialize_head=True, head_node_args={**node, "_system_config": soon})
    made.add_node(**{name: value for name, value in node.items() if name != "include_dashboard"})
    with ray_session(made.address, demand=WHOLE_NODE, gpus=None):
        yield made
    made.shutdown()


@pytest.mark.usefixtures("cluster")
def test_two_nodes_run_two_trials_at_once_and_never_more(tmp_path: Path) -> None:
    """SR-10: at most two asks are open, and their trials overlap on distinct nodes."""
    store, running, most = MemoryStore(), set(), 0

    def count(event: Event) -> None:
        nonlocal most
        match event:
            case TrialStarted(request):
                running.add(request.number)
                most = max(most, len(running))
            case TrialEnded(result):
                running.discard(result.number)

    meet = Table({f"EAGLE3 {n}": ("meet",) for n in (1, 2, 3)}, marks=tmp_path)
    run(driver(study(trials=3), store, observers=[count]), meet)
    first, second = store.rows[1:3]
    assert max(first.started_at, second.started_at) < min(first.ended_at, second.ended_at)
    assert first.node != second.node
    assert most == 2
    assert {row.host_facts["gpus"] for row in store.rows} == {"0,1,2,3,4,5,6,7"}
    assert all("nice 15" in row.warnings[0] for row in store.rows)  # as this cluster was started without our help


@pytest.mark.usefixtures("cluster")
def test_gpus_of_two_nodes_are_not_added_up() -> None:
    """SR-09: sixteen are there, eight on each node."""
    with pytest.raises(HostNotFit, match=r"16 GPUs on one node, the largest node has 8: \S+ has 8, \S+ has 8"):
        run(driver(study()), Table(), demand=Demand(16))
    began = SystemClock().monotonic()
    with pytest.raises(HostNotFit, match="16 GPUs"):
        wait_for_room({"CPU": 1, "GPU": 16}, timeout_s=60, clock=SystemClock(), stop=StopFlag())
    assert SystemClock().monotonic() - began < 15  # an infeasible group is not waited for


@pytest.mark.usefixtures("cluster")
def test_the_study_goes_on_without_the_node_that_keeps_memory() -> None:
    """RC-01: the unfit node's GPUs stay reserved, so that no further trial lands there."""
    store = MemoryStore()
    done = run(driver(study(), store), Table({"plain": ("node unfit",)}))
    assert "exhausted" in done.why
    assert len(store.rows) == 4
    assert store.rows[0].node not in {row.node for row in store.rows[1:]}
    assert store.running == {}


def test_a_trial_whose_node_is_lost_is_repeated_on_another(cluster: Cluster, tmp_path: Path) -> None:
    """RS-09; the last of the tests with this cluster, since it loses a node."""
    store = MemoryStore()
    raylet = next(iter(cluster.worker_nodes)).all_processes["raylet"][0].process
    both_running: set[int] = set()

    def lose_it(event: Event) -> None:
        match event:
            case TrialMoved(request) if request.number:
                both_running.add(request.number)
                if len(both_running) == 2 and raylet.poll() is None:
                    raylet.kill()
            case TrialEnded(result) if result.status == TrialStatus.FAILED:
                (tmp_path / GO_ON).touch()

    table = Table({f"EAGLE3 {n}": ("until told", "ok") for n in (1, 2, 3)}, marks=tmp_path)
    done = run(driver(study(), store, observers=[lose_it]), table)
    assert "exhausted" in done.why
    lost = [row for row in store.rows if row.status == TrialStatus.FAILED]
    assert len(lost) == 1
    assert lost[0].reason == "node_lost"
    assert {row.status for row in store.rows if row is not lost[0]} == {TrialStatus.OK}
    assert (lost[0].number, 2) in {(row.number, row.attempt) for row in store.rows}
    assert lost[0].node not in {row.node for row in store.rows if row.started_at > lost[0].ended_at}


def test_each_trial_reserves_its_share_of_a_node_where_it_would_else_have_company() -> None:
    large, middle, small = Node("a", "a", 8, 64), Node("b", "b", 6, 64), Node("c", "c", 4, 16)
    assert places(Demand(8), [large, large]) == ({"CPU": 1, "GPU": 8}, 2)
    assert places(Demand(4), [large]) == ({"CPU": 1, "GPU": 4}, 1)
    assert places(Demand(4), [large, large]) == ({"CPU": 1, "GPU": 8}, 2)
    assert places(Demand(4, 2), [large, large]) == ({"CPU": 1, "GPU": 4}, 4)
    assert places(Demand(4), [large, middle]) == ({"CPU": 1, "GPU": 6}, 2)
    assert places(Demand(4), [large, small]) == ({"CPU": 1, "GPU": 8}, 1)
    assert places(Demand(4), [small, small]) == ({"CPU": 1, "GPU": 4}, 2)
    assert places(Demand(0, 2), [large, small]) == ({"CPU": 8}, 4)
