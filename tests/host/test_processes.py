"""Servers start clean, are taken down whole, and nobody else is touched. Every process here is a real one."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specsearch.clock import SystemClock, wait_until
from specsearch.errors import FailedTrial
from specsearch.host.guard import GUARD, TRIAL, Stat, marks, process_table, read_stat, send
from specsearch.host.processes import ServerProcess, end_leftovers, leftovers, start_server
from specsearch.launch import LaunchPlan

PATIENCE_S = 20.0
SLEEPER = "import time; time.sleep(600)"
# A rank as SGLang's are, at its worst: own session, other name, deaf to signals; its parent is deaf, too.
STUBBORN = """
    import ctypes, os, signal, sys, time
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        ctypes.CDLL(None).prctl(15, b"sglang::scheduler_TP0")
        os.execv(sys.executable, ["sglang::scheduler_TP0", "-c", "import time; time.sleep(600)"])
    print("up", flush=True)
    time.sleep(600)
"""

Start = Callable[..., ServerProcess]


def eventually(condition: Callable[[], bool]) -> bool:
    return wait_until(condition, timeout_s=PATIENCE_S, poll_s=0.02, clock=SystemClock())


def log_of(tmp_path: Path) -> str:
    path = tmp_path / "logs" / "server.log"
    return path.read_text() if path.exists() else ""


def plan(tmp_path: Path, code: str, **env: str) -> LaunchPlan:
    argv = (sys.executable, "-S", "-c", textwrap.dedent(code))
    return LaunchPlan(argv=argv, env=env, log_path=tmp_path / "logs" / "server.log", base_url="")


def marked(trial: str) -> list[int]:
    """The live processes that carry this trial's name."""
    return [pid for pid, stat in process_table().items() if stat.is_alive and marks(pid).get(TRIAL) == trial]


@pytest.fixture
def trial() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(tmp_path: Path, trial: str) -> Iterator[Start]:
    started = []

    def start_one(launch: LaunchPlan) -> ServerProcess:
        server = start_server(launch, trial=trial, cwd=tmp_path, tmpdir=tmp_path, clock=SystemClock())
        started.append(server)
        return server

    yield start_one
    for server in started:
        server.stop(hard=True)


def test_a_server_that_is_asked_to_end_ends_and_nothing_is_forced(tmp_path: Path, start: Start) -> None:
    server = start(plan(tmp_path, SLEEPER))
    assert server.exit_code() is None
    assert [process.pid for process in server.descendants()] == [server.pid]
    report = server.stop(term_s=PATIENCE_S)
    assert (report.forced, report.survivors) == (False, ())
    assert server.exit_code() == -signal.SIGTERM


def test_output_and_exit_code_of_a_server_are_kept(tmp_path: Path, start: Start) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.log").write_text("first launch\n")
    server = start(plan(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"))
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 3
    assert log_of(tmp_path) == "first launch\nout\nerr\n"


def test_a_server_that_is_killed_has_a_negative_exit_code(tmp_path: Path, start: Start) -> None:
    server = start(plan(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"))
    assert eventually(lambda: server.exit_code() == -signal.SIGABRT)


@pytest.mark.parametrize("command", ["specsearch-no-such-command", "/etc/passwd", "/"])
def test_a_command_that_cannot_be_run_exits_with_127_and_says_so_in_the_log(
    tmp_path: Path, start: Start, command: str
) -> None:
    server = start(LaunchPlan((command, "--port", "1"), {}, tmp_path / "logs" / "server.log", ""))
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 127
    assert f"specsearch: cannot start {command}: " in log_of(tmp_path)


def test_a_log_that_cannot_be_opened_fails_the_trial_with_a_sentence(tmp_path: Path, start: Start) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with pytest.raises(FailedTrial, match="log cannot be opened") as caught:
        start(plan(tmp_path, SLEEPER))
    assert caught.value.reason == "launch_failed"


def test_a_server_gets_a_clean_environment_and_no_open_files(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, trial: str
) -> None:
    """What Ray leaves in its workers does not reach the server; what the plan sets does."""
    for name in ("RAY_JOB_ID", "OMP_NUM_THREADS", "TUNE_ORIG_WORKING_DIR", "NCCL_ALGO"):
        monkeypatch.setenv(name, "1")
    code = """
        import json, os, signal, sys
        print(json.dumps({
            "env": dict(os.environ), "cwd": os.getcwd(), "files": sorted(map(int, os.listdir("/proc/self/fd"))),
            "stdin": os.readlink("/proc/self/fd/0"), "session": os.getsid(0) == os.getpid() == os.getpgid(0),
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "deaf": [n for n in (1, 2, 3, 15, 17) if signal.getsignal(n) == signal.SIG_IGN],
        }))
    """
    with (tmp_path / "open").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        server = start(plan(tmp_path, code, NCCL_PROTO="LL", TMPDIR="/elsewhere"))
        assert eventually(lambda: server.exit_code() == 0), log_of(tmp_path)
    seen = json.loads(log_of(tmp_path))
    env = seen["env"]
    assert not [name for name in env if name.startswith(("RAY_", "TUNE_")) or name in ("OMP_NUM_THREADS", "NCCL_ALGO")]
    assert (env["NCCL_PROTO"], env["TMPDIR"], env[TRIAL]) == ("LL", str(tmp_path), trial)
    assert env["SPT_NOENV"] == "1"  # without it setproctitle wipes the environment that others see, our mark included
    assert (seen["cwd"], seen["stdin"], seen["session"]) == (str(tmp_path), "/dev/null", True)
    assert seen["files"][:3] == [0, 1, 2]
    assert len(seen["files"]) == 4  # and the folder that is being listed
    assert (seen["blocked"], seen["deaf"]) == (0, [])


def test_a_deaf_server_and_its_renamed_runaway_rank_are_gone_after_stop(
    tmp_path: Path, start: Start, trial: str
) -> None:
    """RC-02, RC-03: signals are ignored, the rank has left the session and the parent, its name is another."""
    server = start(plan(tmp_path, STUBBORN))
    assert eventually(lambda: "sglang::scheduler_TP0" in " ".join(p.command for p in server.descendants()))
    assert eventually(lambda: "up" in log_of(tmp_path))
    assert len(marked(trial)) == 2
    report = server.stop(term_s=0.2, kill_s=PATIENCE_S)
    assert (report.forced, report.survivors) == (True, ())
    assert marked(trial) == []
    assert server.exit_code() == -signal.SIGKILL
    assert server.stop() is report


def test_stopping_reaches_the_ranks_of_a_server_that_is_already_dead(tmp_path: Path, start: Start, trial: str) -> None:
    """RC-03: the parent is gone, one rank lives on."""
    code = "import os, time\nif os.fork():\n    time.sleep(0.1); os._exit(1)\nos.setsid()\ntime.sleep(600)"
    server = start(plan(tmp_path, code))
    assert eventually(lambda: server.exit_code() == 1)
    assert len(server.descendants()) == 1
    assert server.stop(term_s=0.2).forced
    assert marked(trial) == []


def test_a_hard_stop_does_not_ask_first(tmp_path: Path, start: Start) -> None:
    server = start(plan(tmp_path, SLEEPER))
    assert server.stop(hard=True).forced
    assert server.exit_code() == -signal.SIGKILL


def test_a_second_request_to_stop_ends_the_wait_of_the_first(tmp_path: Path, start: Start, trial: str) -> None:
    """RC-02: whoever presses Ctrl-C again during a teardown does not wait for a deaf server."""
    server = start(plan(tmp_path, STUBBORN))
    assert eventually(lambda: "up" in log_of(tmp_path))
    asked = iter([False, False, True])
    report = server.stop(term_s=10 * PATIENCE_S, hurry=lambda: next(asked, True))
    assert report.forced
    assert report.seconds < PATIENCE_S
    assert marked(trial) == []


def test_leaving_the_context_stops_the_server_and_its_guard(tmp_path: Path, start: Start, trial: str) -> None:
    with start(plan(tmp_path, SLEEPER)) as server:
        launch = server.launch
    assert marked(trial) == []
    assert [pid for pid in process_table() if marks(pid).get(GUARD) == launch] == []


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_stopping_many_servers_leaves_no_open_files(tmp_path: Path, start: Start) -> None:
    before = open_files()
    for _ in range(3):
        start(plan(tmp_path, SLEEPER)).stop()
    assert open_files() == before


CALLER = """
    import signal, sys, time
    from pathlib import Path
    from specsearch.clock import SystemClock
    from specsearch.host.processes import start_server
    from specsearch.launch import LaunchPlan
    folder, trial, code = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts with &
    plan = LaunchPlan((sys.executable, "-S", "-c", code), {}, Path(folder, "logs", "server.log"), "")
    server = start_server(plan, trial=trial, cwd=Path(folder), tmpdir=Path(folder), clock=SystemClock())
    print(server.pid, flush=True)
    time.sleep(600)
"""


def caller(tmp_path: Path, trial: str, code: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", textwrap.dedent(CALLER), str(tmp_path), trial, textwrap.dedent(code)]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_dies_whole_when_its_caller_does(tmp_path: Path, trial: str, number: int) -> None:
    """RC-04: nothing of ours runs in the caller any more, and still the deaf and the runaway are gone in seconds."""
    with caller(tmp_path, trial, STUBBORN) as process:
        assert process.stdout
        process.stdout.readline()
        assert eventually(lambda: "up" in log_of(tmp_path) and len(marked(trial)) == 2)
        began = time.monotonic()
        process.send_signal(number)
        assert eventually(lambda: marked(trial) == [])
        assert time.monotonic() - began < 15


def guard_of(launch: str) -> Stat:
    return next(stat for pid, stat in process_table().items() if marks(pid).get(GUARD) == launch)


def test_the_guard_is_no_child_of_its_caller_and_sits_in_no_group_of_its(tmp_path: Path, start: Start) -> None:
    """RC-04: Ray kills a worker's children and a worker's process group."""
    stat = guard_of(start(plan(tmp_path, SLEEPER)).launch)
    assert stat.parent != os.getpid()
    assert stat.group != os.getpgrp()


def test_a_server_does_not_outlive_its_guard_and_a_runaway_is_still_found(
    tmp_path: Path, start: Start, trial: str
) -> None:
    """Without the guard the mark in the environment is what finds the rank."""
    server = start(plan(tmp_path, STUBBORN))
    assert eventually(lambda: "up" in log_of(tmp_path) and len(marked(trial)) == 2)
    send(guard_of(server.launch), signal.SIGKILL)
    assert eventually(lambda: server.exit_code() == -signal.SIGKILL)
    assert [process.trial for process in leftovers(trial)] == [trial]
    assert leftovers(f"{trial}-other") == []
    assert server.stop(term_s=0.2).survivors == ()
    assert marked(trial) == []


def test_leftovers_of_a_dead_guard_can_be_ended(tmp_path: Path, start: Start, trial: str) -> None:
    server = start(plan(tmp_path, STUBBORN))
    assert eventually(lambda: "up" in log_of(tmp_path) and len(marked(trial)) == 2)
    assert leftovers(trial) == []
    send(guard_of(server.launch), signal.SIGKILL)
    assert eventually(lambda: len(leftovers(trial)) == 1)
    assert end_leftovers(leftovers(trial), clock=SystemClock()) == []
    assert marked(trial) == []


@pytest.fixture
def decoy() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's server: named like ours, marked by nobody."""
    code = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); time.sleep(600)"
    process = subprocess.Popen(["sglang::scheduler", "-c", code], executable=sys.executable)
    yield process
    process.kill()
    process.wait()


def test_a_strangers_server_with_our_servers_name_survives(
    tmp_path: Path, start: Start, trial: str, decoy: subprocess.Popen[bytes]
) -> None:
    """RC-12."""
    server = start(plan(tmp_path, STUBBORN))
    assert eventually(lambda: len(marked(trial)) == 2)
    assert decoy.pid not in [process.pid for process in server.descendants()]
    server.stop(term_s=0.2)
    assert decoy.poll() is None


def test_two_launches_of_one_trial_do_not_touch_each_other(tmp_path: Path, start: Start, trial: str) -> None:
    first, second = start(plan(tmp_path, SLEEPER)), start(plan(tmp_path, SLEEPER))
    first.stop()
    assert second.exit_code() is None
    assert marked(trial) == [second.pid]


def test_a_signal_does_not_reach_a_process_that_only_has_the_same_number(decoy: subprocess.Popen[bytes]) -> None:
    """A pid is reused; a pid with its start time is not."""
    stat = read_stat(decoy.pid)
    assert stat
    send(stat._replace(start_time=stat.start_time - 1), signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        decoy.wait(0.2)


def test_nothing_in_the_package_finds_a_process_by_name_port_or_gpu() -> None:
    """RC-12: signals are sent from one function, and only to processes of our own launches."""
    package = Path(__file__).parents[2] / "specsearch"
    sources = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    senders = {name for name, text in sources.items() if "os.kill(" in text or "killpg(" in text}
    assert "host/guard.py" in senders
    assert senders <= {"host/guard.py"} | {name for name in senders if name.startswith("engines/simulated/")}
    for word in ("pkill", "killall", "process_iter", "fuser "):
        assert not [name for name, text in sources.items() if word in text]
