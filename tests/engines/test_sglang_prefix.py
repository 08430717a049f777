"""Words before the launch command: filled in, checked against the program that they name, and used for questions."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specsearch.config import EngineConfig
from specsearch.engines.sglang import SGLangEngine
from specsearch.engines.sglang.arguments.prefix import examine_prefix, probe_prefix
from specsearch.engines.sglang.fitness import Findings
from specsearch.launch import LaunchPlan
from specsearch.search_space import SearchSpace
from tests.engines.contract import PLAIN, flag, plan_of
from tests.engines.sglang_fakes import install
from tests.fake_docker import fake_docker

DOCKER = ("docker", "run", "--rm", "--init", "--network=host", "--ipc=host", "--name", "{name}", "{env}")
STOP = ("docker", "kill", "{name}")
GOOD = (*DOCKER, "--gpus", "all", "lmsysorg/sglang:v0.5.23")


def config(*prefix: str, stop: Sequence[str] = (), **changes: object) -> EngineConfig:
    fields: dict[str, object] = {"type": "sglang", "model": "/models/target", "version": "0.5.23", **changes}
    return EngineConfig(command_prefix=prefix, stop_command=tuple(stop), **fields)  # type: ignore[arg-type]


def planned(*prefix: str, trial: str = "7-1-c0ffee", **changes: object) -> LaunchPlan:
    return plan_of(SGLangEngine(config(*prefix, **changes)), {**PLAIN, "env.NCCL_PROTO": "LL"}, trial=trial)


def findings(*prefix: str, stop: Sequence[str] = STOP, **changes: object) -> Findings:
    found = Findings()
    examine_prefix(found, config(*prefix, stop=stop, **changes))
    return found


def test_a_container_is_named_after_the_launch_and_ended_by_that_name() -> None:
    plan = planned(*GOOD, stop=STOP)
    assert flag(plan.command(), "--name") == "specsearch-7-1-c0ffee"
    assert plan.stop_argv == ("docker", "kill", "specsearch-7-1-c0ffee")
    assert planned(*GOOD, trial="7-2-c0ffee").command() != plan.command()


def test_a_container_that_is_given_all_gpus_is_told_which_are_its_own() -> None:
    command = planned(*GOOD).command()
    assert "CUDA_VISIBLE_DEVICES=2,3" in command
    assert "NCCL_PROTO=LL" in command


def test_a_container_that_is_given_some_gpus_is_not_because_it_numbers_them_from_0() -> None:
    command = planned(*DOCKER, "--gpus", '"device={gpus}"', "image").command()
    assert flag(command, "--gpus") == '"device=2,3"'
    assert not [word for word in command if word.startswith("CUDA_VISIBLE_DEVICES")]


def test_the_temporary_folder_is_handed_on_where_it_is_mounted() -> None:
    mounted = planned(*DOCKER, "-v", "{tmpdir}:{tmpdir}", "image").command()
    assert flag(mounted, "-v") == "/results/tmp/t0007:/results/tmp/t0007"
    assert "TMPDIR=/results/tmp/t0007" in mounted
    assert not [word for word in planned(*GOOD).command() if word.startswith("TMPDIR=")]


def test_a_variable_that_is_unset_is_taken_out_inside_the_container_too() -> None:
    """An image may set it."""
    plan = plan_of(SGLangEngine(config(*GOOD)), {**PLAIN, "env.NCCL_ALGO": "unset"})
    words = plan.command()
    at = words.index(GOOD[-1])
    assert words[at + 1 : at + 5] == ("env", "-u", "NCCL_ALGO", "python3")


def test_the_line_to_serve_with_lacks_what_belongs_to_the_trial() -> None:
    """Its name and its temporary folder, and the options that they are the values of; nothing else."""
    prefix = (*DOCKER, "-v", "{tmpdir}:{tmpdir}", "--label=trial={name}", "-v", "/models:/models", "image")
    served = planned(*prefix).serve()
    assert served.startswith("docker run --rm --init --network=host --ipc=host -e NCCL_PROTO=LL -")
    assert " -v /models:/models image python3 -m sglang.launch_server " in served
    assert not [word for word in ("7-1-c0ffee", "TMPDIR", "CUDA_VISIBLE", "--port") if word in served]


def test_words_without_placeholders_stand_there_as_they_are_written() -> None:
    plan = planned("numactl", "-N", "0", python="/env/bin/python")
    assert plan.command()[:5] == ("numactl", "-N", "0", "/env/bin/python", "-m")
    assert plan.environment({})["NCCL_PROTO"] == "LL"
    assert plan.stop_argv == ()
    assert plan.serve().startswith("NCCL_PROTO=LL ")
    assert " numactl -N 0 /env/bin/python -m sglang.launch_server " in plan.serve()


@pytest.mark.parametrize(
    ("prefix", "python"),
    [
        ((), sys.executable),
        (("srun",), sys.executable),
        (GOOD, "python3"),
        (("sudo", "/usr/bin/podman", "run", "image"), "python3"),
        (("apptainer", "exec", "--nv", "sglang.sif"), "python3"),
    ],
)
def test_a_container_has_an_interpreter_of_its_own(prefix: tuple[str, ...], python: str) -> None:
    assert planned(*prefix).argv[0] == python
    assert planned(*prefix, python="/env/bin/python").argv[0] == "/env/bin/python"


def test_a_good_prefix_is_not_talked_about() -> None:
    assert findings(*GOOD) == Findings()
    assert findings("srun", "--gpus=8", stop=()) == Findings()
    assert findings("apptainer", "exec", "--nv", "sglang.sif", stop=()) == Findings()
    assert findings(*("podman", "run", "--env-host", "--net", "host", "--ipc", "host", "image")) == Findings()


@pytest.mark.parametrize("runtime", ["docker", "podman", "/usr/local/bin/nerdctl"])
def test_a_container_that_sees_no_variables_is_warned_of_with_the_remedy(runtime: str) -> None:
    words = [word for word in GOOD[1:] if word != "{env}"]
    (warning,) = findings(runtime, *words).warnings
    assert "will not see the variables" in warning
    assert f"put {{env}} among the options of {Path(runtime).name}" in warning


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("--network=host", "servers listen on 127.0.0.1, which a container has for itself; add --network=host"),
        ("--ipc=host", "docker gives a container 64 MB of shared memory, too little for NCCL; add --ipc=host"),
    ],
)
def test_what_a_container_lacks_is_warned_of_with_the_remedy(without: str, said: str) -> None:
    """LF-11 among them."""
    (warning,) = findings(*(word for word in GOOD if word != without)).warnings
    assert warning == f"engine.command_prefix: {said}"


def test_a_container_that_nothing_would_end_is_warned_of() -> None:
    (warning,) = findings(*GOOD, stop=()).warnings
    assert "keeps the GPUs" in warning
    assert 'engine.stop_command: [docker, kill, "{name}"]' in warning


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        ((), "API_KEY, HF_TOKEN"),
        (("-n", "--preserve-env=HF_TOKEN"), "API_KEY"),
        (("-E",), None),
        (("--preserve-env",), None),
        (("--preserve-env=HF_TOKEN,API_KEY",), None),
    ],
)
def test_a_secret_that_sudo_would_drop_is_warned_of(options: Sequence[str], dropped: str | None) -> None:
    env = {"HF_TOKEN": "hf_x", "API_KEY": "k", "NCCL_DEBUG": "INFO"}
    warnings = findings("sudo", *options, *GOOD, env=env).warnings
    assert len(warnings) == (dropped is not None)
    assert all(f"sudo drops {dropped}, which" in said for said in warnings)
    assert "hf_x" not in str(warnings)


def test_sudo_without_secrets_drops_nothing_that_the_container_needs() -> None:
    assert findings("sudo", *GOOD, env={"NCCL_DEBUG": "INFO"}).warnings == []


def test_a_detached_container_and_one_that_is_only_entered_are_warned_of() -> None:
    assert "take -d out" in findings("docker", "run", "-d", *GOOD[2:]).warnings[0]
    (warning,) = findings("docker", "exec", "{env}", "mine", stop=()).warnings
    assert "use docker run" in warning


def test_apptainer_hands_its_environment_on_unless_it_is_told_not_to() -> None:
    assert "take {env} out" in findings("apptainer", "exec", "{env}", "sglang.sif").errors[0]
    assert "will not see" in findings("singularity", "exec", "--cleanenv", "sglang.sif").warnings[0]


def test_gpus_for_an_engine_on_the_cpu_are_an_error() -> None:
    assert "{gpus} has no meaning" in findings(*DOCKER, "--gpus", "{gpus}", "image", args={"device": "cpu"}).errors[0]


def test_an_interpreter_is_asked_behind_the_same_words_with_its_search_path_alone() -> None:
    asked = config(
        *DOCKER, "--gpus", '"device={gpus}"', "image", tp_size=2, env={"PYTHONPATH": "/p", "NCCL_DEBUG": "INFO"}
    )
    words = probe_prefix(asked)
    assert words == probe_prefix(asked), "asked once in a process"
    assert words[-5:] == ("-e", "PYTHONPATH=/p", "--gpus", '"device=0,1"', "image")
    assert (flag(words, "--name") or "").startswith("specsearch-probe-")
    assert not [word for word in words if "NCCL" in word]


def test_without_placeholders_an_interpreter_is_asked_behind_the_words_as_they_are() -> None:
    assert probe_prefix(config("srun", "-N1", env={"PYTHONPATH": "/p"})) == ("srun", "-N1")
    assert probe_prefix(config()) == ()


def test_the_version_is_that_of_the_container_and_not_of_this_host(tmp_path: Path) -> None:
    """The question runs inside: as the daemon's child, with nothing of this environment but the search path."""
    folder = install(tmp_path, "0.5.17")
    with fake_docker() as docker:
        prefix = (docker.program, "run", "--rm", "--name", "{name}", "{env}", "image")
        env = {"PYTHONPATH": str(folder), "NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_x"}
        engine = SGLangEngine(config(*prefix, python=sys.executable, version=None, env=env))
        assert engine.version() == engine.version() == "0.5.17"
        (words,) = docker.clients()
        assert docker.running() == []
    assert f"PYTHONPATH={folder}" in words
    assert not [word for word in words if "NCCL" in word or "HF_TOKEN" in word]


def test_what_is_said_of_an_interpreter_that_cannot_be_asked_holds_no_secret() -> None:
    prefix = ("docker-that-is-not-there", "run", "-e", "HF_TOKEN=hf_abcdef", "image")
    found = SGLangEngine(config(*prefix)).fitness(SearchSpace(()), (), dry_run=True)
    (said,) = [warning for warning in found.warnings if "docker-that-is-not-there" in warning]
    assert "hf_abcdef" not in said
