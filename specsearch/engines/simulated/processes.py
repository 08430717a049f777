"""The tree below the server: scheduler processes, one per rank, and the GPU memory that they hold."""

import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specsearch.clock import SystemClock
from specsearch.engines.simulated import rank as rank_process
from specsearch.engines.simulated.faults import Faults
from specsearch.engines.simulated.logs import Log
from specsearch.engines.simulated.settings import GPU_INDICES_VARIABLE, GPU_STATE_VARIABLE

_START_TIME_FIELD = 22  # of /proc/PID/stat, counted from 1
_FOR_GOOD_S = -1.0  # how simulated GPUs write `never`


@dataclass(slots=True)
class Tree:
    """The children of this server."""

    schedulers: list[int]
    helpers: list[int]
    obedient: bool

    @classmethod
    def spawn(cls, ranks: int, faults: Faults, env: Mapping[str, str]) -> "Tree":
        """Start a scheduler per rank and a detokenizer, named as SGLang names them, with this environment."""
        stubborn = faults.get("ignores_sigterm")
        new_session = bool(stubborn and stubborn.options["new_session"])
        names = [f"sglang::scheduler_TP{rank}" if ranks > 1 else "sglang::scheduler" for rank in range(ranks)]
        schedulers = [_start(name, env, stubborn is not None, new_session) for name in names]
        return cls(schedulers, [_start("sglang::detokenizer", env, stubborn is not None, False)], stubborn is None)

    @property
    def pids(self) -> list[int]:
        return [*self.schedulers, *self.helpers]

    def dead(self) -> tuple[int, int] | None:
        """(rank, exit code) of a scheduler that has ended, or None; reaps it."""
        for rank, pid in enumerate(self.schedulers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.schedulers[rank] = 0
                return rank, os.waitstatus_to_exitcode(status)
        return None

    def abort_one(self) -> None:
        """Make the last scheduler die of SIGABRT, as a failed assertion in C++ does; once."""
        if self.schedulers[-1]:
            os.kill(self.schedulers[-1], signal.SIGABRT)

    def end(self) -> None:
        """Kill and reap every child that is left."""
        for pid in filter(None, self.pids):
            os.kill(pid, signal.SIGKILL)
        for pid in filter(None, self.pids):
            os.waitpid(pid, 0)


def _start(name: str, env: Mapping[str, str], stubborn: bool, new_session: bool) -> int:
    options = (str(os.getpid()), str(int(stubborn)), str(int(new_session)))
    return os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", rank_process.__file__, name, *options], env)


@dataclass(slots=True)
class GpuMemory:
    """Tells the simulated GPUs what each scheduler holds; does nothing where none are simulated."""

    folder: Path | None
    indices: Sequence[int]
    release_after_s: float = 0.0
    _files: list[Path] = field(default_factory=list)

    @classmethod
    def of_environment(cls, env: Mapping[str, str], ranks: int, faults: Faults) -> "GpuMemory":
        """The GPUs named in the environment, those from 0 on where none are named."""
        folder = env.get(GPU_STATE_VARIABLE)
        named = [int(index) for index in env.get(GPU_INDICES_VARIABLE, "").split(",") if index]
        kept = faults.get("memory_kept")
        release_after_s = kept.number("release_after_s") if kept else 0.0
        finite = release_after_s if math.isfinite(release_after_s) else _FOR_GOOD_S
        return cls(Path(folder) if folder else None, (named or list(range(ranks)))[:ranks], finite)

    def hold(self, tree: Tree, used_gb: float) -> None:
        """Every rank holds that much on its GPU from now on."""
        if self.folder is None:
            return
        for index, pid in zip(self.indices, tree.schedulers, strict=False):
            path = self.folder / f"gpu{index}" / f"{pid}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            partial.write_text(json.dumps(self._entry(pid, used_gb)))
            partial.replace(path)
            if path not in self._files:
                self._files.append(path)

    def release(self) -> None:
        """Give everything back, unless a fault keeps it."""
        if self.release_after_s:
            return
        for path in self._files:
            path.unlink(missing_ok=True)

    def _entry(self, pid: int, used_gb: float) -> dict[str, object]:
        return {
            "bytes": int(used_gb * 1e9),
            "command": "sglang::scheduler",
            "start_time": start_time_of(pid),
            "release_after_s": self.release_after_s,
        }


def start_time_of(pid: int) -> int:
    """When the process started, in clock ticks since boot; with the pid it names a process for ever."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[_START_TIME_FIELD - 3])  # the name may hold spaces; fields go on from 3


@dataclass(frozen=True, slots=True)
class Crash:
    """How this server dies by its own hand, as SGLang does: SIGKILL to the tree, then to itself (exit code -9)."""

    tree: Tree
    log: Log
    time_scale: float

    def __call__(self, error: str, *, rank: int = 0, serving: bool) -> NoReturn:
        """Log a scheduler's exception and die; returns never."""
        self.log.rank(f"Scheduler hit an exception: {error}\n", rank)
        self.kill(serving=serving)

    def kill(self, *, serving: bool) -> NoReturn:
        """Die as after the death of a child."""
        if serving:
            self.log.parent("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            self.log.parent("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
            SystemClock().sleep(5 * self.time_scale)
            self.log.parent("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        else:
            self.log.parent("Received sigquit from a child process. It usually means the child failed.")
        me = os.getpid()
        self.log.parent(f"kill_process_tree called: parent_pid={me}, include_parent=True, pid={me}")
        for pid in filter(None, self.tree.pids):
            os.kill(pid, signal.SIGKILL)
        os.kill(me, signal.SIGKILL)
        raise SystemExit(1)  # not reached: SIGKILL cannot be ignored
