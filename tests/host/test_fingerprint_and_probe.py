"""Host facts are strings and never an error; an unfit node is refused with everything that is wrong."""

import json
from pathlib import Path

from specsearch.host.fingerprint import host_facts
from specsearch.host.gpus import NvmlGpus
from specsearch.host.probe import node_problems
from specsearch.host.simulated_gpus import SimulatedGpus
from tests.host.fake_nvml import Card, FakeNvml

GIB = 2**30
ROOMY = (64 * GIB, 60 * GIB)


def test_host_facts_say_what_the_host_is(tmp_path: Path) -> None:
    facts = host_facts(SimulatedGpus(tmp_path, (0, 1)))
    assert facts["gpu_count"] == "2"
    assert facts["gpu_names"] == "simulated GPU"
    assert facts["driver"] == "simulated"
    assert "cuda_driver" not in facts
    assert {"hostname", "kernel", "cpu_count", "memory_gib", "container", "python", "specsearch"} <= facts.keys()
    assert all(isinstance(value, str) and value for value in facts.values())


def test_host_facts_of_real_gpus_hold_driver_and_cuda() -> None:
    facts = host_facts(NvmlGpus([0], FakeNvml([Card("GPU-a")])))
    assert (facts["driver"], facts["cuda_driver"], facts["memory_method"]) == ("580.65.06", "13.1", "v2")


def test_a_gpu_that_does_not_answer_costs_its_facts_and_no_more() -> None:
    facts = host_facts(NvmlGpus([0], FakeNvml([Card("GPU-a", lost=True)])))
    assert "gpu_count" not in facts
    assert facts["hostname"]


def test_a_fit_node_has_no_problems(tmp_path: Path) -> None:
    gpus = NvmlGpus(range(8), FakeNvml([Card(f"GPU-{i}", 0, 615) for i in range(8)]))
    problems, _ = node_problems(
        gpu_count=8, results_dir=tmp_path, needs_nvml=True, gpus=gpus, shm=ROOMY, disk_free=99 * GIB
    )
    assert problems == []


def test_every_problem_of_a_node_is_told_at_once(tmp_path: Path) -> None:
    """LF-11, SR-15, SR-09: too few GPUs, one of them busy, /dev/shm as Docker makes it, the disk full."""
    gpus = NvmlGpus([0, 1], FakeNvml([Card("GPU-a"), Card("GPU-b", 81000, pids=[9])]), lambda pid: "train.py")
    shm = (64 * 2**20, 58 * 2**20)
    problems, _ = node_problems(gpu_count=8, results_dir=tmp_path, needs_nvml=True, gpus=gpus, shm=shm, disk_free=10**6)
    few, busy, small, full = problems
    assert few == "8 GPUs are asked for, 2 can be seen here"
    assert "GPU 1 holds 79.1 GiB (pid 9 (train.py))" in busy
    assert "--shm-size=16g or --ipc=host" in small
    assert "of disk are free" in full


def test_mig_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    """RC-08."""
    gpus = NvmlGpus([0], FakeNvml([Card("GPU-a", mig=1)]))
    problems, _ = node_problems(gpu_count=1, results_dir=tmp_path, needs_nvml=True, gpus=gpus, disk_free=99 * GIB)
    assert len(problems) == 1
    assert problems[0].startswith("GPU 0 is in MIG mode")


def test_a_simulated_study_needs_neither_driver_nor_shared_memory(tmp_path: Path) -> None:
    problems, warnings = node_problems(
        gpu_count=8, results_dir=tmp_path, needs_nvml=False, shm=(0, 0), disk_free=2 * GIB
    )
    assert problems == []
    assert any("only 2 GiB of disk are free" in warning for warning in warnings)


def test_a_busy_simulated_gpu_is_named_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "gpu0").mkdir()
    (tmp_path / "gpu0" / "x.json").write_text(json.dumps({"bytes": GIB, "foreign": True}))
    problems, _ = node_problems(
        gpu_count=1, results_dir=tmp_path, needs_nvml=False, gpus=SimulatedGpus(tmp_path, (0,)), disk_free=99 * GIB
    )
    assert len(problems) == 1
    assert "GPU 0 holds 1 GiB" in problems[0]
