"""Starting a server so that it can always be taken down whole, and nothing else with it.

A process belongs to a launch when it descends from the launch's guard, is in the server's group or carries the launch's
mark in its environment. Nothing is ever found by its name, its port or the GPU it uses.
"""

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from specsearch.clock import Clock, wait_until
from specsearch.errors import FailedTrial
from specsearch.host import guard
from specsearch.host.guard import GUARD, LAUNCH, TRIAL, Stat
from specsearch.launch import LaunchPlan

TERM_S = 30.0  # SGLang notices SIGTERM within 5 s and gives its schedulers 15 s
KILL_S = 30.0
_STRAGGLERS_S = 2.0  # what outlives its server by that much has no intention to end
_GUARD_START_S = 30.0  # a loaded machine; usually 0.05 s
_GUARD_END_S = 5.0
STOP_COMMAND_S = 30.0  # `docker kill` takes a second, on a busy daemon ten
_POLL_S = 0.05
_NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process of a launch; `state` is the letter of /proc, such as D for one that waits for a driver."""

    pid: int
    command: str
    state: str
    trial: str = ""
    start_time: int = 0  # clock ticks since boot; with the pid it names a process for good

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})"


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a server went; `forced` when something had to be killed."""

    seconds: float
    forced: bool
    survivors: tuple[ProcessInfo, ...]
    problem: str | None = None  # a sentence where the stop command failed, so that a container may live on


class ServerProcess:
    """A server behind its guard; leaving it as a context manager stops it.

    It dies with this process, also when this process is killed. A container, which is nobody's child, is ended by the
    stop command of its plan; the guard runs it.
    """

    def __init__(
        self, plan: LaunchPlan, *, trial: str, launch: str, life: int, status: int, clock: Clock, stop_command_s: float
    ) -> None:
        self.plan, self.trial, self.launch = plan, trial, launch
        self._stop_command_s = stop_command_s
        self._container_end: str | None = None  # how the stop command went, once it did
        self._life: int | None = life  # closing it tells the guard that we are gone
        self._status: int | None = status
        self._clock = clock
        self._exit_code: int | None = None
        self._report: StopReport | None = None
        self._leader, self._guard = self._read_start(status)

    @property
    def pid(self) -> int:
        return self._leader.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it, 127 when it could not be started."""
        self._read_status()
        if self._exit_code is None and not _is_there(self._guard) and not _is_there(self._leader):
            self._exit_code = -signal.SIGKILL  # the server is killed with its guard
        return self._exit_code

    def descendants(self) -> list[ProcessInfo]:
        """Every live process of this launch, the server itself included."""
        return [_info(stat, self.trial) for stat in self._members()]

    def children(self) -> list[ProcessInfo]:
        """The live direct children of the server: its ranks and helpers, whose end it may not survive."""
        return [_info(stat, self.trial) for stat in self._members() if stat.parent == self.pid]

    def environments(self) -> list[tuple[str, dict[str, str]]]:
        """Command and environment of every live process of this launch that lets itself be read."""
        found = []
        for member in self._members():
            environment = guard.environment_of(member.pid)
            if environment:
                found.append((_info(member, self.trial).command, environment))
        return found

    def stop(
        self,
        term_s: float = TERM_S,
        kill_s: float = KILL_S,
        hard: bool = False,
        hurry: Callable[[], bool] = lambda: False,
    ) -> StopReport:
        """End the server and all it started; returns when they are gone or `kill_s` after they were killed.

        `hard` skips SIGTERM, `hurry` what is left of the wait after it. A second call answers the same, or tries again
        where something had survived.
        """
        if self._report and not self._report.survivors:
            return self._report
        began = self._clock.monotonic()
        if not hard:
            self._ask_to_end(term_s, hurry)
        forced = bool(self._members())
        wait_until(self._kill, timeout_s=kill_s, poll_s=_POLL_S, clock=self._clock)
        survivors = tuple(self.descendants())
        self._let_the_guard_go(wait=not survivors)
        self._report = StopReport(self._clock.monotonic() - began, forced, survivors, self._stop_problem())
        return self._report

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _members(self) -> list[Stat]:
        return guard.tree([self._guard, self._leader], self._leader, self.launch)

    def _ask_to_end(self, term_s: float, hurry: Callable[[], bool]) -> None:
        for member in self._members():
            if member.group == self.pid:
                guard.send(member, signal.SIGTERM)
        wait_until(lambda: self._has_ended() or hurry(), timeout_s=term_s, poll_s=_POLL_S, clock=self._clock)
        stragglers_s = 0.0 if hurry() else min(term_s, _STRAGGLERS_S)
        wait_until(lambda: not self._members(), timeout_s=stragglers_s, poll_s=_POLL_S, clock=self._clock)

    def _has_ended(self) -> bool:
        return self.exit_code() is not None

    def _kill(self) -> bool:
        members = self._members()
        for member in members:
            guard.send(member, signal.SIGKILL)
        return not members

    def _let_the_guard_go(self, *, wait: bool) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None
        guard.send(self._guard, signal.SIGCONT)  # one that somebody has stopped would stay for good
        if self.plan.stop_argv and self._container_end is None:
            self._end_container()
        if wait:
            wait_until(
                lambda: not _is_there(self._guard), timeout_s=_GUARD_END_S, poll_s=_POLL_S / 5, clock=self._clock
            )
            self.exit_code()
            self._close_status()

    def _end_container(self) -> None:
        """Wait for the guard's word on its stop command; run that here where the guard is dead."""
        limit_s = self._stop_command_s + _GUARD_END_S
        wait_until(self._guard_has_spoken, timeout_s=limit_s, poll_s=_POLL_S / 5, clock=self._clock)
        if self._container_end is None and not _is_there(self._guard):
            with self.plan.log_path.open("ab") as log:
                self._container_end = guard.end_container(self.plan.stop_argv, self._stop_command_s, log.fileno())

    def _guard_has_spoken(self) -> bool:
        is_gone = not _is_there(self._guard)  # looked at first: its last word is in the pipe by then
        self._read_status()
        return is_gone or self._container_end is not None

    def _stop_problem(self) -> str | None:
        """What went wrong with the stop command."""
        outcome = self._container_end
        if not self.plan.stop_argv or outcome == "0":
            return None
        told = {
            guard.LATE: f"did not end within {self._stop_command_s:g} s and was killed",
            guard.NOT_STARTED: "cannot be started",
            None: "was not seen to end",
        }
        if outcome not in told and self._exit_code is not None and self._exit_code >= 0:
            return None  # the client ended by itself, and with it the container: there was none to end any more
        what = told.get(outcome, f"exited with {outcome} (what it said is at the end of the trial's log)")
        return f"the stop command `{shlex.join(self.plan.stop_argv)}` {what}: see whether its container is gone"

    def _read_start(self, status: int) -> tuple[Stat, Stat]:
        ready, _, _ = select.select([status], [], [], _GUARD_START_S)
        first, _, rest = (os.read(status, 4096).decode() if ready else "").partition("\n")
        if not first.startswith("started "):
            raise FailedTrial("launch_failed", "the server's guard did not start; the server's log may say why")
        os.set_blocking(status, False)
        self._take(rest)
        server, server_start, own, own_start = map(int, first.split()[1:])
        return _identity(server, server_start), _identity(own, own_start)

    def _read_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._status is not None and (lines := os.read(self._status, 4096)):
                self._take(lines.decode())

    def _take(self, lines: str) -> None:
        for line in lines.splitlines():
            kind, _, value = line.partition(" ")
            if kind == "exited":
                self._exit_code = int(value)
            else:
                self._container_end = value

    def _close_status(self) -> None:
        if self._status is not None:
            os.close(self._status)
            self._status = None


def start_server(
    plan: LaunchPlan,
    *,
    trial: str,
    cwd: Path,
    tmpdir: Path,
    clock: Clock,
    stop_command_s: float = STOP_COMMAND_S,
) -> ServerProcess:
    """Start what the plan says; a command that cannot be run exits with 127 and leaves a line in the log.

    Raises FailedTrial (`launch_failed`) when not even the guard starts.
    """
    launch = uuid.uuid4().hex
    # SPT_NOENV: SGLang renames its processes with setproctitle, which otherwise overwrites the environment as others
    # see it, and our mark with it (seen with setproctitle 1.3.8).
    own = {TRIAL: trial, LAUNCH: launch, "TMPDIR": str(tmpdir), "SPT_NOENV": "1"}
    spec = {
        "argv": plan.command(own),
        "env": plan.environment(os.environ) | own,
        "cwd": str(cwd),
        "launch": launch,
        "stop": plan.stop_argv,
        "stop_s": stop_command_s,
    }
    with contextlib.ExitStack() as undo:
        life, status = _start_guard(json.dumps(spec), trial, launch, plan.log_path, undo)
        server = ServerProcess(
            plan, trial=trial, launch=launch, life=life, status=status, clock=clock, stop_command_s=stop_command_s
        )
        undo.pop_all()
    return server


def leftovers(prefix: str = "") -> list[ProcessInfo]:
    """Processes of earlier launches of this user whose trial begins with the prefix and whose guard is gone."""
    table = guard.process_table()
    marked = {pid: marks for pid in table if _is_mine(pid) and (marks := guard.marks(pid))}
    guarded = {marks[GUARD] for marks in marked.values() if GUARD in marks}
    return [
        _info(table[pid], marks[TRIAL])
        for pid, marks in marked.items()
        if marks.get(TRIAL, "-").startswith(prefix)
        and LAUNCH in marks
        and marks[LAUNCH] not in guarded
        and table[pid].is_alive
        and pid != os.getpid()
    ]


def end_leftovers(found: Iterable[ProcessInfo], *, clock: Clock, kill_s: float = KILL_S) -> list[ProcessInfo]:
    """Kill what `leftovers` found, as far as it is still the same; returns what has not ended after `kill_s`."""
    found = list(found)
    for process in found:
        guard.send(_identity(process.pid, process.start_time), signal.SIGKILL)
    wait_until(lambda: not _still_there(found), timeout_s=kill_s, poll_s=_POLL_S, clock=clock)
    return _still_there(found)


def _start_guard(spec: str, trial: str, launch: str, log_path: Path, undo: contextlib.ExitStack) -> tuple[int, int]:
    """The writing end of the life pipe and the reading end of the status pipe; `undo` closes both."""
    their_life, life = os.pipe()
    status, their_status = os.pipe()
    undo.callback(os.close, life)
    undo.callback(os.close, status)
    command = [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve())]
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*command, str(their_life), str(their_status), trial],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                env={**os.environ, GUARD: launch},
                pass_fds=(their_life, their_status),
                start_new_session=True,
            )
        process.communicate(spec.encode())
    except OSError as error:
        raise FailedTrial("launch_failed", f"the server's guard or log cannot be opened: {error}") from error
    finally:
        os.close(their_life)
        os.close(their_status)
    return life, status


def _identity(pid: int, start_time: int) -> Stat:
    return Stat(pid, parent=0, group=0, start_time=start_time, state="?", threads=0)


def _is_there(stat: Stat) -> bool:
    now = guard.read_stat(stat.pid)
    return now is not None and now.start_time == stat.start_time and now.is_alive


def _info(stat: Stat, trial: str) -> ProcessInfo:
    return ProcessInfo(stat.pid, command_of(stat.pid) or "?", stat.state, trial, stat.start_time)


def _still_there(processes: Iterable[ProcessInfo]) -> list[ProcessInfo]:
    return [process for process in processes if _is_there(_identity(process.pid, process.start_time))]


def _is_mine(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def command_of(pid: int) -> str | None:
    """The command line of a process, shortened; its name where it has none, None when there is no such process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        line = " ".join(words.split())
        line = line or Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return None
    return line if len(line) <= _NAME_LENGTH else f"{line[:_NAME_LENGTH]}…"
