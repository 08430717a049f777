"""Simulated memory follows the life of the processes that claim it, with the faults that were asked for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specsearch.errors import FailedTrial, MemoryNotReleased
from specsearch.host.gpus import GpuReading, Gpus, wait_until_free, wait_until_released
from specsearch.host.guard import read_stat
from specsearch.host.simulated_gpus import SimulatedGpus
from tests.fakes import FakeClock

GIB = 2**30


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def claim(folder: Path, pid: int, *, start_time: int | None = None, **more: Any) -> Path:
    stat = read_stat(pid)
    assert stat
    path = folder / "gpu0" / f"{pid}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"bytes": 60 * GIB, "command": "rank 0", "start_time": start_time or stat.start_time, **more}
    path.write_text(json.dumps(content))
    return path


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def used(gpus: Gpus) -> list[int]:
    return [reading.used_bytes // GIB for reading in gpus.read()]


def test_memory_is_held_while_the_process_lives_and_free_when_it_is_dead(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    gpus = SimulatedGpus(tmp_path, (1, 0))
    assert used(gpus) == [0, 0]
    path = claim(tmp_path, process.pid)
    assert used(gpus) == [60, 0]
    assert [str(holder) for holder in gpus.read()[0].holders] == [f"pid {process.pid} (rank 0)"]
    end(process)
    assert used(gpus) == [0, 0]
    assert not path.exists()


def test_a_pid_that_is_used_again_does_not_hold_the_old_memory(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    claim(tmp_path, process.pid, start_time=1)
    assert used(SimulatedGpus(tmp_path, (0,))) == [0]


def test_memory_that_is_released_late_is_waited_for_and_all_readers_agree(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """RC-01."""
    clock = FakeClock(1000)
    gpus = SimulatedGpus(tmp_path, (0,), clock=clock)
    claim(tmp_path, process.pid, release_after_s=12)
    end(process)
    assert used(gpus) == [60]
    clock.now = 1005
    another = SimulatedGpus(tmp_path, (0,), clock=clock)
    assert used(another) == [60]
    assert wait_until_released(another, {}, timeout_s=60, poll_s=1, clock=clock) == 7
    assert list((tmp_path / "gpu0").iterdir()) == []


def test_memory_that_leaks_stays_for_ever(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    clock = FakeClock()
    gpus = SimulatedGpus(tmp_path, (0,), clock=clock)
    claim(tmp_path, process.pid, release_after_s=-1)
    end(process)
    with pytest.raises(MemoryNotReleased, match=r"GPU 0 holds 60 GiB \(no process is listed"):
        wait_until_released(gpus, {}, timeout_s=1e6, poll_s=1e5, clock=clock)


def test_a_strangers_memory_makes_the_gpu_busy_until_the_file_goes(tmp_path: Path) -> None:
    clock = FakeClock()
    gpus = SimulatedGpus(tmp_path, (0,), clock=clock)
    path = tmp_path / "gpu0" / "stranger.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"bytes": GIB, "foreign": True, "pid": 4711, "command": "train.py"}))
    with pytest.raises(FailedTrial, match=r"GPU 0 holds 1 GiB \(pid 4711 \(train.py\)\)"):
        wait_until_free(gpus, {}, timeout_s=5, poll_s=1, clock=clock)
    path.unlink()
    assert wait_until_free(gpus, {}, timeout_s=5, poll_s=1, clock=clock) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bytes": 1}', '{"bytes": "x", "foreign": true}'])
def test_a_file_that_cannot_be_read_is_never_taken_for_free_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu0").mkdir()
    (tmp_path / "gpu0" / "17.json").write_text(text)
    (tmp_path / "gpu0" / ".18.json").write_text("half wri")
    reading: GpuReading = SimulatedGpus(tmp_path, (0,)).read()[0]
    assert reading.used_bytes == reading.total_bytes
