"""Which SGLang an interpreter has, found out without importing it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specsearch.engines.sglang.version import declared_flags, installation, profile_of, release
from tests.engines.sglang_fakes import NEW_FIELDS, OLD_ARGUMENTS, install


def test_the_version_comes_from_the_named_interpreter_without_importing_sglang(tmp_path: Path) -> None:
    found = installation(sys.executable, str(install(tmp_path, "0.5.17")))
    assert (found.version, found.package, found.problem) == ("0.5.17", tmp_path / "sglang", None)


def test_an_interpreter_without_sglang_has_none(tmp_path: Path) -> None:
    found = installation(sys.executable, str(tmp_path))
    assert (found.version, found.package, found.problem) == (None, None, None)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false", "/bin/cat"])
def test_an_interpreter_that_is_none_is_named_in_the_problem(python: str) -> None:
    found = installation(python)
    assert found.version is None
    assert found.problem is not None
    assert python in found.problem


def test_flags_added_to_a_parser_by_hand_are_read(tmp_path: Path) -> None:
    folder = install(tmp_path, "0.5.9", arguments=OLD_ARGUMENTS, fields=None)
    assert declared_flags(folder / "sglang") == {
        *("--model-path", "--model", "--tensor-parallel-size", "--tp-size", "--cuda-graph-max-bs", "--cuda-graph-bs"),
        *("--disable-cuda-graph", "--attention-backend"),
    }


def test_flags_written_as_annotated_fields_are_read(tmp_path: Path) -> None:
    assert declared_flags(install(tmp_path, "0.5.23") / "sglang") == {
        *("--model-path", "--model", "--tensor-parallel-size", "--tp-size", "--attention-backend"),
        *(
            "--cuda-graph-max-bs-decode",
            "--cuda-graph-max-bs-prefill",
            "--cuda-graph-bs-decode",
            "--disable-cuda-graph",
        ),
        *("--enable-tf32-matmul", "--no-enable-tf32-matmul", "--mem-fraction-static", "--num-continuous-decode-steps"),
        *("--page-size", "--enable-symm-mem", "--speculative-algorithm", "--speculative-draft-model-path"),
        *("--speculative-draft-model", "--speculative-num-steps", "--speculative-eagle-topk"),
        "--speculative-num-draft-tokens",
    }


def test_flags_are_not_known_where_the_source_is_missing_or_broken(tmp_path: Path) -> None:
    assert declared_flags(tmp_path) is None
    folder = install(tmp_path, "0.5.23", arguments="class (", fields="\x00" + NEW_FIELDS)
    assert declared_flags(folder / "sglang" / "srt" / "arg_groups") is None


@pytest.mark.parametrize(
    ("version", "numbers"), [("0.5.10.post1", (0, 5, 10)), ("0.5.24rc1", (0, 5, 24)), ("main", ()), ("0.6", (0, 6))]
)
def test_a_version_begins_with_its_release_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


def test_profiles_change_at_the_version_that_changed() -> None:
    assert profile_of("0.5.13.post1").graph_max_bs == "cuda_graph_max_bs"
    assert profile_of("0.5.14").graph_max_bs == "cuda_graph_max_bs_decode"
    assert profile_of("0.5.10.post1").chain_only_env == "SGLANG_ENABLE_SPEC_V2"
    assert profile_of("0.5.11").chain_only_env is None
    assert "triton" not in profile_of("0.5.9").tree_page_backends
    assert profile_of("0.5.99") == profile_of("0.5.23") == profile_of(None)


@pytest.mark.real_sglang
def test_the_flags_read_from_the_source_are_those_that_its_help_shows() -> None:
    python = os.environ.get("SPECSEARCH_SGLANG_PYTHON")
    if not python:
        pytest.skip("SPECSEARCH_SGLANG_PYTHON names no interpreter")
    found = installation(python)
    assert found.package is not None
    declared = declared_flags(found.package)
    shim = Path(__file__).parents[1] / "real" / "shim"
    environment = {**os.environ, "PYTHONPATH": str(shim), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    page = subprocess.run(
        [python, "-m", "sglang.launch_server", "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    heads = [line.split("  ")[0] for line in re.findall(r"^  (--.*)$", page, re.MULTILINE)]
    shown = {word for head in heads for word in re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", head)}
    assert declared is not None
    assert shown - declared == set()
    assert len(declared - shown) <= 5, "a few are hidden from the help"
