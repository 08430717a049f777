"""The process that stands behind a server: when its caller ends, in whatever way, it takes the whole tree along.

    caller ══ pipe ══► guard ──► server ──► ranks, detokenizer, compilers …

The guard is started as a script, with the standard library alone, so that it costs some 30 ms. It is no child of the
caller (forked twice, a session of its own), because Ray kills a worker's direct children and a worker's process group.
It is the subreaper of its tree: whatever the server starts stays below the guard, also after a double fork.
It holds the reading end of a pipe whose writing end only the caller has: the end of that file is the end of the caller.
"""

# Importing pathlib would make the guard start noticeably later.
# ruff: noqa: PTH123, PTH208

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

TRIAL = "SPECSEARCH_TRIAL"  # in every process of a server: which trial it belongs to, for people
LAUNCH = (
    "SPECSEARCH_LAUNCH"  # in every process of a server: which launch, unique; by this one they are told from others'
)
GUARD = "SPECSEARCH_GUARD"  # in the guard of that launch

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_DEATH_S = 1.0  # from SIGKILL to the end of a process that no driver holds

# How a command that ends a container can go, beside its exit code.
LATE = "late"
NOT_STARTED = "not_started"


class Stat(NamedTuple):
    """One line of the process table; pid and start time together name a process for good."""

    pid: int
    parent: int
    group: int
    start_time: int  # clock ticks since boot
    state: str
    threads: int

    @property
    def is_alive(self) -> bool:
        """A zombie with threads is a process whose other threads are still being torn down."""
        return self.state not in "ZX" or self.threads > 1


def read_stat(pid: int) -> Stat | None:
    """The process as it is now; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in brackets and may hold brackets and blanks itself.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, int(fields[1]), int(fields[2]), int(fields[19]), fields[0], int(fields[17]))


def process_table() -> dict[int, Stat]:
    """Every process that can be seen."""
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.pid: stat for stat in stats if stat}


def environment_of(pid: int, prefix: bytes = b"") -> dict[str, str]:
    """The variables with that beginning that a process was started with; empty where they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry.startswith(prefix) and b"=" in entry)
    return {name: value for name, _, value in pairs}


def marks(pid: int) -> dict[str, str]:
    """The SPECSEARCH_ variables a process was started with; empty where they cannot be read."""
    return environment_of(pid, b"SPECSEARCH_")


def tree(roots: Iterable[Stat], leader: Stat, launch: str) -> list[Stat]:
    """The live processes of one launch: what descends from the roots, the leader's group, and what carries the mark.

    The roots themselves belong to it only as descendants of another. The group counts while its leader lives:
    afterwards its number may be a stranger's.
    """
    table = process_table()
    leader_lives = _is(table.get(leader.pid), leader)
    found = _descendants(table, [root.pid for root in roots if _is(table.get(root.pid), root)])
    for stat in table.values():
        if stat.start_time < leader.start_time:
            continue
        if (leader_lives and stat.group == leader.pid) or marks(stat.pid).get(LAUNCH) == launch:
            found.add(stat.pid)
    found -= {0, 1, os.getpid()}
    return [table[pid] for pid in sorted(found) if table[pid].is_alive]


def send(stat: Stat, number: int) -> None:
    """Signal exactly that process, not one that has its number by now."""
    now = read_stat(stat.pid)
    if now and _is(now, stat):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(stat.pid, number)


def end_container(words: Sequence[str], limit_s: float, errors: int) -> str:
    """Run the command that ends a container; its exit code as text, LATE when it had to be killed, or NOT_STARTED.

    It has the environment of this process but for our marks, since it is no process of the server.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECSEARCH_")}
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, errors, 2),
    ]
    try:
        pid = os.posix_spawnp(words[0], list(words), environment, file_actions=files, setpgroup=0)
    except OSError:
        return NOT_STARTED
    status = _wait_for(pid, limit_s)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _wait_for(pid, _DEATH_S)
        return LATE
    return str(os.waitstatus_to_exitcode(status))


def _wait_for(pid: int, limit_s: float) -> int | None:
    """The status of a child that ended in time."""
    deadline = time.monotonic() + limit_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_FIRST_PAUSE_S)


def _is(now: Stat | None, then: Stat) -> bool:
    return now is not None and now.start_time == then.start_time


def _descendants(table: dict[int, Stat], roots: Iterable[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def _become_server(spec: dict[str, Any], guard: int) -> NoReturn:
    """Turn into the server: own session, default signals, standard files only; 127 when that is impossible."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the guard's own end, which nobody else would notice
        if os.getppid() != guard:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        # A crashed rank would write its whole memory to the disk.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):  # Ray's workers run at nice 15; going back may need a privilege
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.chdir(spec["cwd"])
        os.dup2(2, 1)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except (OSError, ValueError) as error:
        os.write(2, f"specsearch: cannot start {spec['argv'][0]}: {error}\n".encode(errors="replace"))
    os._exit(127)


class _Guard:
    """Starts the server, reports its number and its end, and ends the tree when the caller is gone."""

    def __init__(self, spec: dict[str, Any], life: int, status: int) -> None:
        self.spec, self.life, self.status = spec, life, status
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)  # a handler, unlike "ignore", is not inherited by the server
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        guard = os.getpid()
        begun, begin = os.pipe()  # closes by itself when the server takes over
        self.server = os.fork()
        if self.server == 0:
            _become_server(self.spec, guard)
        os.close(begin)
        os.read(begun, 1)  # a signal sent earlier would be lost
        os.close(begun)
        leader, me = read_stat(self.server), read_stat(guard)
        assert leader is not None  # dead or not, it has not been reaped
        assert me is not None
        self.report(f"started {self.server} {leader.start_time} {guard} {me.start_time}")
        while not self.caller_is_gone():
            self.reap()
        self.end_tree(leader, me)

    def report(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.status, f"{line}\n".encode())

    def caller_is_gone(self) -> bool:
        """Wait for something to happen; True when the caller has ended or somebody asks the guard to end."""
        ready, _, _ = select.select([self.life, self.woken], [], [])
        signals = os.read(self.woken, 4096) if self.woken in ready else b""
        return self.life in ready or signal.SIGTERM in signals

    def reap(self) -> bool:
        """Take in the children that have ended; True when none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.server:
                self.report(f"exited {os.waitstatus_to_exitcode(status)}")

    def end_tree(self, leader: Stat, me: Stat) -> None:
        """Kill until nothing is left: a process may sit in the driver for a while before it can die."""
        self.run_stop_command(leader, me)
        pause_s = _FIRST_PAUSE_S
        while True:
            members = tree([me], leader, self.spec["launch"])
            for member in members:
                send(member, signal.SIGKILL)
            if self.reap() and not members:
                return
            select.select([self.woken], [], [], pause_s)
            with contextlib.suppress(BlockingIOError):
                os.read(self.woken, 4096)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def run_stop_command(self, leader: Stat, me: Stat) -> None:
        """End the container of this launch; its client is killed first, which could be about to start one."""
        words = self.spec["stop"]
        if not words:
            return
        for member in tree([me], leader, self.spec["launch"]):
            send(member, signal.SIGKILL)
        outcome = end_container(words, self.spec["stop_s"], errors=2)
        if outcome != "0":
            line = f"specsearch: the stop command {' '.join(words)} ended with {outcome}\n"
            os.write(2, line.encode(errors="replace"))
        self.report(f"stopped {outcome}")


def main() -> None:
    life, status = int(sys.argv[1]), int(sys.argv[2])
    spec = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for end in (life, status):
        os.set_inheritable(end, False)
    _Guard(spec, life, status).run()


if __name__ == "__main__":
    main()
