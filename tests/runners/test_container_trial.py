"""Whole trials whose server lives in a container: simulated engine, fake runtime, real processes."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch.runners.workplace import Workplace, gpus_of
from specsearch.trial import TrialStatus
from tests.fake_docker import HIDDEN, FakeDocker, fake_docker
from tests.runners.test_server import LIMITS, PLAIN, place, run

ROOT = Path(__file__).parents[2]
SHARED = ("--rm", "--network=host", "--ipc=host")


@pytest.fixture
def docker() -> Iterator[FakeDocker]:
    with fake_docker() as runtime:
        yield runtime


def contained(tmp_path: Path, docker: FakeDocker, *, image: str = "image", **options: object) -> Workplace:
    """A workplace whose servers run in containers."""
    workplace = place(tmp_path, **options)  # type: ignore[arg-type]
    engine = replace(
        workplace.config.engine,
        python=sys.executable,
        env={"PYTHONPATH": str(ROOT), "NCCL_PROTO": "LL", "HF_TOKEN": "hf_abcdef"},
        command_prefix=(docker.program, "run", *SHARED, "--name", "{name}", "-v", "{tmpdir}:{tmpdir}", "{env}", image),
        stop_command=(docker.program, "kill", "{name}"),
    )
    return replace(workplace, config=replace(workplace.config, engine=engine))


@pytest.mark.parametrize("image", ["image", HIDDEN])
def test_a_trial_in_a_container_is_measured_and_nothing_is_left(tmp_path: Path, docker: FakeDocker, image: str) -> None:
    workplace = contained(tmp_path, docker, image=image)
    result = run(workplace)
    assert result.status == TrialStatus.OK, (result.message, result.detail)
    assert (result.exit_code, result.node_unfit) == (0, None)
    assert not [warning for warning in result.warnings if "stop command" in warning]
    assert docker.running() == []
    running = result.effective_env and result.effective_env["NCCL_PROTO"]
    assert running == (None if image == HIDDEN else "LL"), "read from the server's processes, or not known"
    assert all(gpu.used_bytes == 0 for gpu in gpus_of(workplace).read())


def test_the_command_is_what_ran_and_the_line_to_serve_with_lacks_what_was_the_trials(
    tmp_path: Path, docker: FakeDocker
) -> None:
    result = run(contained(tmp_path, docker), PLAIN)
    assert result.command
    assert result.serve_command
    for line in (result.command, result.serve_command):
        assert line.startswith('HF_TOKEN="$HF_TOKEN" ')
        assert "-e HF_TOKEN -e NCCL_PROTO=LL " in line
        assert "hf_abcdef" not in line
    assert " --name specsearch-0-1-" in result.command
    assert " -e TMPDIR=" in result.command
    gone = ("--name", "TMPDIR", " -v ", "{name}", "{tmpdir}", "--port")
    assert not [word for word in gone if word in result.serve_command]
    assert f"{docker.program} run {' '.join(SHARED)} -e " in result.serve_command


def test_a_deaf_server_in_a_container_ends_with_its_trial(tmp_path: Path, docker: FakeDocker) -> None:
    """RC-02: the client is killed, which ends nothing; the stop command does, and the memory comes back."""
    workplace = contained(tmp_path, docker, image=HIDDEN, faults=[{"kind": "ignores_sigterm"}])
    config = replace(workplace.config, limits=replace(LIMITS, stop_s=0.5))
    result = run(replace(workplace, config=config))
    assert (result.status, result.node_unfit) == (TrialStatus.OK, None), result.message
    assert docker.running() == []


def test_a_container_that_cannot_be_ended_is_said_and_takes_the_node_out(tmp_path: Path, docker: FakeDocker) -> None:
    """RC-01: the failed stop command is a warning, the memory that it leaves in use is the end of the node."""
    workplace = contained(tmp_path, docker, image=HIDDEN, faults=[{"kind": "ignores_sigterm"}])
    engine = replace(workplace.config.engine, stop_command=("false", "{name}"))
    config = replace(workplace.config, engine=engine, limits=replace(LIMITS, stop_s=0.5, release_s=0.5))
    result = run(replace(workplace, config=config))
    assert result.status == TrialStatus.OK, result.message
    assert result.node_unfit
    (said,) = [warning for warning in result.warnings if "stop command" in warning]
    assert "exited with 1" in said
    (left,) = docker.running()
    assert left in said


def test_a_container_that_never_starts_is_a_failed_trial(tmp_path: Path, docker: FakeDocker) -> None:
    workplace = contained(tmp_path, docker)
    engine = replace(workplace.config.engine, command_prefix=(docker.program, "no-such-command", "{name}"))
    result = run(replace(workplace, config=replace(workplace.config, engine=engine)))
    assert result.status == TrialStatus.FAILED
