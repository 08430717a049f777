"""A local Ray is ours alone: outside of our session, gone with us, and missed at once when it is gone by itself."""

import os
import signal
from pathlib import Path

import pytest

from specsearch.clock import SystemClock, wait_until
from specsearch.executors.ray_head import HEAD, MARK
from specsearch.executors.ray_local import local_ray
from specsearch.host.guard import environment_of, process_table

pytestmark = pytest.mark.ray
ASKED = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}


def processes_of(mark: str) -> list[int]:
    """Every live process of that Ray."""
    return [s.pid for s in process_table().values() if s.is_alive and environment_of(s.pid).get(MARK) == mark]


def daemon(mark: str, name: str) -> int:
    return next(pid for pid in processes_of(mark) if Path(f"/proc/{pid}/comm").read_text().strip() == name)


def test_its_daemons_are_in_another_session_and_a_killed_one_is_told_within_seconds() -> None:
    with local_ray(ASKED, meanwhile=lambda: None) as own:
        daemons = [daemon(own.mark, name) for name in ("raylet", "gcs_server")]
        assert all(os.getsid(pid) != os.getsid(0) for pid in daemons)
        assert own.lost() is None
        os.kill(daemons[1], signal.SIGKILL)
        assert wait_until(lambda: own.lost() is not None, timeout_s=10, poll_s=0.05, clock=SystemClock())
        assert "gcs_server ended with -9" in str(own.lost())
        assert wait_until(lambda: not processes_of(own.mark), timeout_s=20, poll_s=0.1, clock=SystemClock())


def test_nothing_of_it_is_left_when_its_head_is_killed() -> None:
    with local_ray(ASKED, meanwhile=lambda: None) as own:
        head = next(pid for pid in processes_of(own.mark) if HEAD in environment_of(pid))
        os.kill(head, signal.SIGKILL)
        assert wait_until(lambda: own.lost() is not None, timeout_s=10, poll_s=0.05, clock=SystemClock())
    assert processes_of(own.mark) == []
