"""A server in a container, which is nobody's child: it ends with its launch all the same, and no other one does."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch.clock import SystemClock
from specsearch.config import EngineConfig
from specsearch.engines.sglang.arguments.prefix import with_prefix
from specsearch.host.guard import LAUNCH, TRIAL, send
from specsearch.host.processes import ServerProcess, start_server
from specsearch.launch import LaunchPlan
from tests.fake_docker import HIDDEN, FakeDocker, fake_docker
from tests.host.test_processes import eventually, guard_of, log_of, marked

TRIAL_NAME = f"0-1-{uuid.uuid4().hex[:12]}"
CONTAINER = f"specsearch-{TRIAL_NAME}"
# Ends on SIGTERM as a server does, with an exit code of its own.
OBEDIENT = """
    import json, os, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(json.dumps(dict(os.environ)), flush=True)
    time.sleep(600)
"""
DEAF = OBEDIENT.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")

Start = Callable[..., ServerProcess]


@pytest.fixture
def docker() -> Iterator[FakeDocker]:
    with fake_docker() as runtime:
        yield runtime


def plan(
    docker: FakeDocker, tmp_path: Path, code: str = OBEDIENT, *, image: str = "image", stop: bool = True, **env: str
) -> LaunchPlan:
    """A launch of some code in a container."""
    argv = (sys.executable, "-S", "-c", textwrap.dedent(code))
    config = EngineConfig(
        type="sglang",
        model="m",
        command_prefix=(docker.program, "run", "--rm", "--name", "{name}", "{env}", image),
        stop_command=(docker.program, "kill", "{name}") if stop else (),
    )
    bare = LaunchPlan(argv, env, tmp_path / "logs" / "server.log", "")
    return with_prefix(bare, config, trial=TRIAL_NAME, gpu_indices=(0,), tmpdir=tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def start_one(launch: LaunchPlan, stop_command_s: float = 20) -> ServerProcess:
        server = start_server(
            launch, trial=TRIAL_NAME, cwd=tmp_path, tmpdir=tmp_path, clock=SystemClock(), stop_command_s=stop_command_s
        )
        started.append(server)
        return server

    yield start_one
    for server in started:
        server.stop(hard=True)


def is_up(tmp_path: Path) -> bool:
    return "}\n" in log_of(tmp_path)


def seen_inside(tmp_path: Path) -> dict[str, str]:
    assert eventually(lambda: is_up(tmp_path)), log_of(tmp_path)
    found: dict[str, str] = json.loads(log_of(tmp_path).splitlines()[0])
    return found


def test_a_container_that_is_asked_to_end_ends_and_nobody_complains(
    docker: FakeDocker, tmp_path: Path, start: Start
) -> None:
    """The stop command finds nothing any more, which is as it should be."""
    server = start(plan(docker, tmp_path, image=HIDDEN))
    seen_inside(tmp_path)
    assert docker.running() == [CONTAINER]
    report = server.stop(term_s=20)
    assert (report.forced, report.survivors, report.problem) == (False, (), None)
    assert server.exit_code() == 0
    assert docker.running() == []


def test_a_container_sees_the_variables_of_the_plan_and_our_marks_and_nothing_inherited(
    docker: FakeDocker, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("LEFT_BEHIND", "1")
    server = start(plan(docker, tmp_path, NCCL_PROTO="LL", TMPDIR=str(tmp_path), ODD="two words = 'one'"))
    seen = seen_inside(tmp_path)
    assert (seen["NCCL_PROTO"], seen["ODD"]) == ("LL", "two words = 'one'")
    assert (seen[TRIAL], seen[LAUNCH], seen["SPT_NOENV"]) == (TRIAL_NAME, server.launch, "1")
    assert not {"NCCL_ALGO", "LEFT_BEHIND", "TMPDIR"} & set(seen)


def test_a_secret_reaches_the_container_and_no_list_of_processes(
    docker: FakeDocker, tmp_path: Path, start: Start
) -> None:
    start(plan(docker, tmp_path, HF_TOKEN="hf_abcdef"))
    assert seen_inside(tmp_path)["HF_TOKEN"] == "hf_abcdef"
    (words,) = docker.clients()
    assert words[words.index("HF_TOKEN") - 1] == "-e"
    assert not [word for word in words if "hf_abcdef" in word]


def test_where_the_marks_can_be_read_the_processes_of_a_container_belong_to_its_launch(
    docker: FakeDocker, tmp_path: Path, start: Start
) -> None:
    server = start(plan(docker, tmp_path, DEAF, stop=False))
    seen_inside(tmp_path)
    inside = [pid for pid in marked(TRIAL_NAME) if pid != server.pid]
    assert inside
    assert set(inside) <= {process.pid for process in server.descendants()}
    assert [seen for _, seen in server.environments() if seen.get("FAKE_DOCKER_CONTAINER") == CONTAINER]
    assert server.stop(term_s=0.2).survivors == ()
    assert docker.running() == []


def test_where_they_cannot_the_environment_of_the_server_is_not_known(
    docker: FakeDocker, tmp_path: Path, start: Start
) -> None:
    """What was asked for is not what is running until it has been read."""
    server = start(plan(docker, tmp_path, image=HIDDEN, NCCL_PROTO="LL"))
    seen_inside(tmp_path)
    assert [process.pid for process in server.descendants()] == [server.pid]
    assert not [seen for _, seen in server.environments() if "NCCL_PROTO" in seen]


@pytest.mark.parametrize("hard", [False, True])
def test_a_container_whose_client_had_to_be_killed_is_ended_by_the_stop_command(
    docker: FakeDocker, tmp_path: Path, start: Start, hard: bool
) -> None:
    server = start(plan(docker, tmp_path, DEAF, image=HIDDEN))
    seen_inside(tmp_path)
    report = server.stop(term_s=0.2, hard=hard)
    assert (report.forced, report.survivors, report.problem) == (True, (), None)
    assert docker.running() == []


def test_without_a_stop_command_such_a_container_lives_on(docker: FakeDocker, tmp_path: Path, start: Start) -> None:
    """The tests beside this one can fail: nothing else would have ended it."""
    server = start(plan(docker, tmp_path, DEAF, image=HIDDEN, stop=False))
    seen_inside(tmp_path)
    server.stop(term_s=0.2)
    assert docker.running() == [CONTAINER]


def test_only_the_container_of_the_launch_is_ended(docker: FakeDocker, tmp_path: Path, start: Start) -> None:
    words = [docker.program, "run", "--name", "somebody-elses", "image", "sleep", "600"]
    with subprocess.Popen(words) as other:
        assert eventually(lambda: docker.running() == ["somebody-elses"])
        server = start(plan(docker, tmp_path, DEAF, image=HIDDEN))
        seen_inside(tmp_path)
        server.stop(hard=True)
        assert docker.running() == ["somebody-elses"]
        other.terminate()


def test_a_stop_command_that_hangs_is_given_up_and_said(docker: FakeDocker, tmp_path: Path, start: Start) -> None:
    launch = plan(docker, tmp_path, DEAF, image=HIDDEN)
    hanging = LaunchPlan(
        launch.argv,
        launch.env,
        launch.log_path,
        "",
        prefix=launch.prefix,
        stop_argv=("sh", "-c", "sleep 600; true", "x"),
    )
    server = start(hanging, stop_command_s=0.5)
    seen_inside(tmp_path)
    began = time.monotonic()
    report = server.stop(hard=True)
    assert time.monotonic() - began < 10
    assert report.problem is not None
    assert "`sh -c 'sleep 600; true' x` did not end within 0.5 s and was killed" in report.problem
    assert [process for process in server.descendants() if "sleep" in process.command] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("docker-that-is-not-there", "kill", "x"), "cannot be started"),
        (("sh", "-c", "echo no daemon >&2; exit 7"), "exited with 7"),
    ],
)
def test_a_stop_command_that_fails_after_the_client_was_killed_is_said(
    docker: FakeDocker, tmp_path: Path, start: Start, words: tuple[str, ...], said: str
) -> None:
    server = start(replace(plan(docker, tmp_path, image=HIDDEN), stop_argv=words))
    seen_inside(tmp_path)
    report = server.stop(hard=True)
    assert said in (report.problem or "")
    if "exit 7" in words[-1]:
        assert "no daemon\n" in log_of(tmp_path)


def test_with_a_dead_guard_the_stop_command_is_run_all_the_same(
    docker: FakeDocker, tmp_path: Path, start: Start
) -> None:
    server = start(plan(docker, tmp_path, DEAF, image=HIDDEN))
    seen_inside(tmp_path)
    send(guard_of(server.launch), signal.SIGKILL)
    assert eventually(lambda: server.exit_code() is not None)
    assert docker.running() == [CONTAINER]
    assert server.stop().problem is None
    assert docker.running() == []


CALLER = """
    import pickle, sys, time
    from pathlib import Path
    from specsearch.clock import SystemClock
    from specsearch.host.processes import start_server
    plan, trial, folder = pickle.load(sys.stdin.buffer)
    server = start_server(plan, trial=trial, cwd=folder, tmpdir=folder, clock=SystemClock())
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_container_dies_with_the_driver_of_its_study(docker: FakeDocker, tmp_path: Path, number: int) -> None:
    """RC-04: nothing of ours runs in the driver any more; the guard runs the stop command."""
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(CALLER)], stdin=subprocess.PIPE, env=env) as driver:
        assert driver.stdin
        driver.stdin.write(pickle.dumps((plan(docker, tmp_path, DEAF, image=HIDDEN), TRIAL_NAME, tmp_path)))
        driver.stdin.close()
        seen_inside(tmp_path)
        assert docker.running() == [CONTAINER]
        driver.send_signal(number)
        assert eventually(lambda: docker.running() == [])
    assert eventually(lambda: marked(TRIAL_NAME) == [])
