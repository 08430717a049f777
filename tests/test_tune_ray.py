"""`python -m specsearch.tune` through Ray, as its users run it: a local Ray of its own, or a cluster that is joined."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.command import run, servers_of, space, started, wait_for

pytestmark = pytest.mark.ray


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two 8-GPU nodes on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 8, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1, num_gpus=8)
        yield cluster.address
    finally:
        cluster.shutdown()


def rows(results: Path) -> list[dict[str, object]]:
    return sorted(pq.read_table(results / "trials").to_pylist(), key=lambda row: (row["trial"], row["attempt"]))


def test_a_killed_driver_leaves_its_rows_and_no_server_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """SR-01, SR-05, RC-04: SIGKILL in the middle of a study under Ray, then the same command again."""
    path, results = space(tmp_path), tmp_path / "r"
    with started("tune", path, "--results", results, "--no-dashboard") as (process, mark):
        wait_for(lambda: len(list((results / "trials").glob("*.parquet"))) >= 2, 90, "two rows")
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        wait_for(lambda: not servers_of(mark), 30, "no server left")
    before = rows(results)
    done = run("tune", path, "--results", results, "--no-dashboard")
    assert done.code == 0, done.err
    after = rows(results)
    assert after[: len(before)] == before
    measured = [row["point"] for row in after if row["status"] == "ok"]
    assert len(set(measured)) == len(measured)
    assert sum(row["kind"] in ("seed", "search") and row["status"] == "ok" for row in after) == 3
    assert [row["reason"] for row in after if row["status"] == "failed"] in ([], ["interrupted"])


def test_two_nodes_run_two_trials_at_once(tmp_path: Path, two_nodes: str) -> None:
    """SR-10: as many trials at once as there are nodes, each on a node of its own, none beside another."""
    slow = "faults: [{kind: slow_start, seconds: 6}]"  # longer than a second process of Ray's takes to start
    path, results = space(tmp_path, simulated=slow), tmp_path / "r"
    done = run("tune", path, "--results", results, "--address", two_nodes, "--trials", "6")
    assert done.code == 0, done.err
    found = [row for row in rows(results) if row["kind"] == "search"]
    assert len({row["node"] for row in found}) == 2
    spans = [(row["started_at_s"], row["ended_at_s"], row["node"]) for row in found]
    pairs = [(a, b) for i, a in enumerate(spans) for b in spans[i + 1 :]]
    overlapping = [(a, b) for a, b in pairs if a[0] < b[1] and b[0] < a[1]]
    assert overlapping
    assert all(a[2] != b[2] for a, b in overlapping)
    assert all(row["gpu_count"] == 8 for row in found)
