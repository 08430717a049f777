"""What a start that falls silent is taken for."""

from pathlib import Path

import pytest

from specsearch.engines import LogFacts
from specsearch.host.gpus import GpuReading
from specsearch.launch import LaunchPlan
from specsearch.runners._readiness import hang
from specsearch.runners._record import TrialRecord, lesson_of
from specsearch.search_space import Point
from specsearch.trial import StopFlag, TrialKind, TrialRequest
from tests.fakes import FakeClock

PLAIN: Point = {"speculative_algorithm": "none"}
FULL_USE = [
    GpuReading(
        index, f"GPU-{index}", "RTX PRO 6000", 96 << 30, 1 << 30, None, "v2", utilization=1.0, power_w=92.0 + index
    )
    for index in range(8)
]


def record(point: Point, folder: Path) -> TrialRecord:
    log = folder / "t0000-1.log"
    log.write_text("loading\nnode:818:818 [7] NCCL INFO comm 0x55d7 rank 7 nranks 8 - Init COMPLETE\n")
    request = TrialRequest(number=0, attempt=1, kind=TrialKind.BASELINE, point=point)
    made = TrialRecord(request, FakeClock(), StopFlag(), on_progress=lambda progress: None)
    made.plan = LaunchPlan(argv=("server",), env={}, log_path=log, base_url="")
    return made


def test_a_first_collective_that_never_completes_is_told_from_a_slow_start(tmp_path: Path) -> None:
    """LF-09: with what the GPUs did meanwhile, full use at nearly idle power."""
    error = hang(record(PLAIN, tmp_path), LogFacts(in_collective=True), FULL_USE, 601.0, 600.0)
    assert (error.status, error.reason) == ("failed", "nccl_hang")
    assert "NCCL_P2P_DISABLE=1" in str(error.advice)
    assert "Init COMPLETE" in str(error.detail)
    assert error.facts == {
        "gpu_utilization": "100% to 100%",
        "gpu_power": "92 to 99 W",
        "gpu_memory_used": "1.0 to 1.0 GiB",
    }


@pytest.mark.parametrize("gpus", [FULL_USE, []])
def test_silence_elsewhere_is_a_hang_of_no_known_cause(tmp_path: Path, gpus: list[GpuReading]) -> None:
    error = hang(record(PLAIN, tmp_path), LogFacts(), gpus, 601.0, 600.0)
    assert (error.status, error.reason) == ("failed", "startup_hang")


def test_only_the_value_that_hangs_is_closed_where_the_space_searches_how_peers_are_reached(tmp_path: Path) -> None:
    """LF-09: the other values of NCCL_P2P_LEVEL stay in the search, and the node stays in use."""
    point: Point = {**PLAIN, "env.NCCL_P2P_LEVEL": "SYS", "env.NCCL_PROTO": "LL"}
    error = hang(record(point, tmp_path), LogFacts(in_collective=True), FULL_USE, 601.0, 600.0)
    assert (error.status, error.reason) == ("infeasible", "nccl_hang")
    assert lesson_of(error, point) == "env.NCCL_P2P_LEVEL != 'SYS'"
