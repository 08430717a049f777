"""Strangers that must come to no harm, made to look as much like a server of ours as strangers can."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specsearch.clock import SystemClock
from specsearch.host.guard import read_stat
from specsearch.host.processes import ServerProcess, start_server
from specsearch.launch import LaunchPlan
from tests.chaos.scene import wait_until

_SHARED = Path("/dev/shm")
_LOOKALIKE = """
import mmap, os, socket, sys, time
listening = socket.socket()
for port in range(12000, 22000):
    try:
        listening.bind(("127.0.0.1", port))
        break
    except OSError:
        pass
listening.listen()
held = open(sys.argv[1], "w+b")
held.write(bytes(mmap.PAGESIZE))
held.flush()
mapped = mmap.mmap(held.fileno(), mmap.PAGESIZE)
open(sys.argv[2], "w").write(str(listening.getsockname()[1]))
time.sleep(100000)
"""


@dataclass(slots=True)
class Bystanders:
    """Who stands by, and how they were before."""

    processes: dict[str, int]  # what each is → its pid
    files: list[Path]
    port: int
    colleague: ServerProcess

    def harmed(self) -> list[str]:
        """Who is not as before; sentences."""
        stats = {what: read_stat(pid) for what, pid in self.processes.items()}
        found = [f"{what} is gone" for what, stat in stats.items() if stat is None or not stat.is_alive]
        found += [f"{what} was stopped" for what, stat in stats.items() if stat and stat.state == "T"]
        found += [f"{path} was removed" for path in self.files if not path.exists()]
        if self.colleague.exit_code() is not None:
            found.append("the server of another live study was ended")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                found.append(f"nobody answers on the stranger's port {self.port}")
        return found


@contextlib.contextmanager
def bystanders(folder: Path) -> Iterator[Bystanders]:
    """A process with a server's name, port and shared memory; a server of another live study; files of theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    own = os.getpid()
    held, other = (_SHARED / f"{family}chaos{own}" for family in ("sgl_shm_", "unheard_of_"))
    other.write_bytes(b"x")
    port = folder / "port"
    words = ["sglang::scheduler_TP0", "-c", _LOOKALIKE, str(held), str(port)]
    home = {**os.environ, "PYTHONHOME": sys.base_prefix}  # which Python otherwise finds by its own name
    lookalike = subprocess.Popen(words, executable=sys.executable, start_new_session=True, cwd="/", env=home)
    plan = LaunchPlan((sys.executable, "-c", "import time; time.sleep(100000)"), {}, folder / "colleague.log", "")
    colleague = start_server(plan, trial="7-1-of-another-study", cwd=folder, tmpdir=folder, clock=SystemClock())
    try:
        assert wait_until(lambda: port.exists() and bool(port.read_text()), 30), "the lookalike does not listen"
        yield Bystanders({"the lookalike of a server": lookalike.pid}, [held, other], int(port.read_text()), colleague)
    finally:
        colleague.stop(hard=True)
        lookalike.kill()
        lookalike.wait()
        for path in (held, other, port):
            path.unlink(missing_ok=True)
