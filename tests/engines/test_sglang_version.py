"""Which SGLang an interpreter has and what it declares, found out without importing it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specsearch.engines.sglang.installed import _probe
from specsearch.engines.sglang.installed.reliances import NEEDLES
from specsearch.engines.sglang.installed.version import installation
from tests.engines.sglang_fakes import NEW_ARGUMENTS, NEW_FIELDS, OLD_ARGUMENTS, install


def package(folder: Path, arguments: str, fields: str | None = None, **sources: str) -> Path:
    """An unpacked SGLang of these argument files and further sources."""
    (folder / "srt" / "arg_groups" / "fields").mkdir(parents=True)
    (folder / "srt" / "server_args.py").write_text(arguments)
    if fields is not None:
        (folder / "srt" / "arg_groups" / "fields" / "exec_.py").write_text(fields)
    for name, text in sources.items():
        (folder / "srt" / f"{name}.py").write_text(text)
    return folder


def test_the_version_comes_from_the_named_interpreter_without_importing_sglang(tmp_path: Path) -> None:
    found = installation(sys.executable, str(install(tmp_path, "0.5.17")))
    assert (found.version, found.package, found.problem) == ("0.5.17", tmp_path / "sglang", None)
    assert found.flags is not None
    assert "--model-path" in found.flags
    assert (found.unread, found.absent) == ({"num_continuous_decode_steps"}, frozenset())


def test_an_interpreter_without_sglang_has_none(tmp_path: Path) -> None:
    found = installation(sys.executable, str(tmp_path))
    assert (found.version, found.package, found.problem) == (None, None, None)
    assert (found.flags, found.unread) == (None, None)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false", "/bin/cat"])
def test_an_interpreter_that_is_none_is_named_in_the_problem(python: str) -> None:
    found = installation(python)
    assert found.version is None
    assert found.problem is not None
    assert python in found.problem


def test_what_a_container_prints_before_and_after_does_not_disturb(tmp_path: Path) -> None:
    entrypoint = tmp_path / "entrypoint"
    entrypoint.write_text('#!/bin/sh\nprintf "== NVIDIA ==\\n{\\"version\\": 1} no newline"\n"$@"\necho bye\nexit 3\n')
    entrypoint.chmod(0o755)
    packages = str(install(tmp_path / "packages", "0.5.20"))
    found = installation(sys.executable, packages, (str(entrypoint), "env", "A=1"))
    assert (found.version, found.problem) == ("0.5.20", None)


def test_every_rank_that_answers_is_one_answer(tmp_path: Path) -> None:
    twice = tmp_path / "twice"
    twice.write_text('#!/bin/sh\n"$@"; "$@"\n')
    twice.chmod(0o755)
    assert installation(sys.executable, str(install(tmp_path, "0.5.20")), (str(twice),)).version == "0.5.20"


def test_a_prefix_that_cannot_be_started_is_named_in_the_problem() -> None:
    problem = installation("python3", None, ("/nowhere/docker", "run", "an image")).problem
    assert problem == (
        "engine.command_prefix /nowhere/docker run 'an image' cannot be started: No such file or directory"
    )


def test_a_prefix_whose_container_has_no_python_is_named_with_what_it_says() -> None:
    problem = installation("python3", None, ("/bin/sh", "-c", "echo 'no such image' >&2; exit 125")).problem
    assert problem is not None
    assert problem.startswith("engine.python python3 behind engine.command_prefix /bin/sh -c")
    assert problem.endswith("is not a working Python: no such image")


def test_the_question_needs_no_file_of_ours(tmp_path: Path) -> None:
    """It is text, so that it can be put to an interpreter that cannot see this package."""
    packages = install(tmp_path, "0.5.20")
    text = Path(_probe.__file__).read_text()
    assert "specsearch." not in text
    answer = subprocess.run(
        [sys.executable, "-S", "-c", text, '["/generate", "no such text"]'],
        env={"PYTHONPATH": str(packages)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"absent": ["no such text"]' in answer.stdout


def test_flags_added_to_a_parser_by_hand_are_read(tmp_path: Path) -> None:
    assert _probe.read_package(package(tmp_path, OLD_ARGUMENTS))["flags"] == sorted(
        {
            *("--model-path", "--model", "--tensor-parallel-size", "--tp-size", "--cuda-graph-max-bs"),
            *("--disable-cuda-graph", "--attention-backend", "--cuda-graph-bs"),
        }
    )


def test_flags_written_as_annotated_fields_are_read(tmp_path: Path) -> None:
    assert _probe.read_package(package(tmp_path, NEW_ARGUMENTS, NEW_FIELDS))["flags"] == sorted(
        {
            *("--model-path", "--model", "--tensor-parallel-size", "--tp-size", "--attention-backend"),
            *("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill", "--cuda-graph-bs-decode"),
            *("--disable-cuda-graph", "--enable-tf32-matmul", "--no-enable-tf32-matmul", "--mem-fraction-static"),
            *("--num-continuous-decode-steps", "--page-size", "--enable-symm-mem", "--speculative-algorithm"),
            *("--speculative-draft-model-path", "--speculative-draft-model", "--speculative-num-steps"),
            *("--speculative-eagle-topk", "--speculative-num-draft-tokens"),
        }
    )


def test_flags_are_not_known_where_the_source_is_missing_or_broken(tmp_path: Path) -> None:
    unknown = {"flags": None, "unread": None, "absent": None}
    assert _probe.read_package(tmp_path) == unknown
    broken = package(tmp_path / "broken", "class (", "\x00" + NEW_FIELDS)
    assert _probe.read_package(broken, NEEDLES) == unknown


UNREAD = """
class ServerArgs:
    page_size: int = 1
    dead: int = 1
    own: int = 1
    aliased: int = 1

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--page-size", type=int, default=ServerArgs.page_size)
        parser.add_argument("--dead", type=int, default=ServerArgs.dead)
        parser.add_argument("--aliased", "--other-name", type=int)
        parser.add_argument("--old-name", action=DeprecatedAlias, new_flag="--aliased")
        parser.add_argument("--renamed", dest="own", type=int)

    def resolve(self):
        self.own = 2
"""


def test_a_flag_that_is_only_declared_is_found_and_one_that_is_read_anywhere_is_not(tmp_path: Path) -> None:
    """SM-03: what resolution, a kernel or another spelling reads is no dead flag; an order of fields is no use."""
    order = f"ORDER = {('page_size', 'dead', *(f'f{number}' for number in range(120)))}"
    folder = package(tmp_path, UNREAD, worker="args.page_size\nargs.aliased")
    (folder / "srt" / "arg_groups" / "order.py").write_text(order)
    (folder / "test").mkdir()
    (folder / "test" / "test_dead.py").write_text("dead")
    assert _probe.read_package(folder)["unread"] == ["dead"]
    (folder / "srt" / "layers").mkdir()
    (folder / "srt" / "layers" / "kernel.py").write_text('getattr(args, "dead")')
    assert _probe.read_package(folder)["unread"] == []


def test_a_longer_name_is_no_use_of_a_shorter_one(tmp_path: Path) -> None:
    folder = package(tmp_path, UNREAD, worker="args.page_size, args.aliased, DEAD, undead, dead_end")
    assert _probe.read_package(folder)["unread"] == ["dead"]


@pytest.mark.real_sglang
def test_the_flags_read_from_the_source_are_those_that_its_help_shows() -> None:
    python = os.environ.get("SPECSEARCH_SGLANG_PYTHON")
    if not python:
        pytest.skip("SPECSEARCH_SGLANG_PYTHON names no interpreter")
    declared = installation(python).flags
    assert declared is not None
    shim = Path(__file__).parents[1] / "real" / "shim"
    environment = {**os.environ, "PYTHONPATH": str(shim), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    page = subprocess.run(
        [python, "-m", "sglang.launch_server", "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    heads = [line.split("  ")[0] for line in re.findall(r"^  (--.*)$", page, re.MULTILINE)]
    shown = {word for head in heads for word in re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", head)}
    assert shown - declared == set()
    assert len(declared - shown) <= 5, "a few are hidden from the help"
