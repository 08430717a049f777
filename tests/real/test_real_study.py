"""A whole study on the real SGLang: baseline, EAGLE-3 as chain and tree, rows, verdict, nothing left behind.

Real here: command line, server, scheduler, drafting and verifying, meta_info, /server_info, teardown. Not real: speed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "search_spaces" / "tiny-eagle3-cpu.yaml"
PYTHON = os.environ.get("SPECSEARCH_SGLANG_PYTHON")
TIME_LIMIT_S = 25 * 60  # a launch takes half a minute to a minute and a half on two cores

pytestmark = [
    pytest.mark.real_sglang,
    pytest.mark.skipif(PYTHON is None, reason="SPECSEARCH_SGLANG_PYTHON names no interpreter that has SGLang 0.5.23"),
]


@dataclass(frozen=True)
class Study:
    """How the command ended, what it left, and every process that it or its servers ever were."""

    exit_code: int
    output: str
    folder: Path
    processes: Mapping[int, str]
    left_behind: Mapping[int, str]

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows as any reader of Parquet sees them, without specsearch."""
        return pyarrow.dataset.dataset(self.folder / name, format="parquet").to_table().to_pylist()

    @property
    def speculative(self) -> list[dict[str, Any]]:
        return [row for row in self.table("trials") if row["speculative_algorithm"] == "EAGLE3"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    scratch = tmp_path_factory.mktemp("real_sglang")
    mark = f"STUDY_UNDER_TEST={scratch}"  # inherited by everything that the study starts
    argv = [
        *(sys.executable, "-m", "specsearch.tune", str(SPACE), "--engine-python", str(PYTHON)),
        *("--executor", "in-process", "--trials", "4", "--yes", "--results", str(scratch / "tiny")),
    ]
    environment = os.environ | dict([mark.split("=", 1)])
    seen: dict[int, str] = {}
    with (scratch / "output").open("wb") as output:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        exit_code = _watch(process, mark, seen)
    finally:
        process.kill()  # the guards then take the servers down
        process.wait()
    return Study(exit_code, (scratch / "output").read_text(), scratch / "tiny", seen, marked(mark))


def _watch(process: "subprocess.Popen[bytes]", mark: str, seen: dict[int, str]) -> int:
    """Wait for the study to end, and note its processes meanwhile."""
    deadline = time.monotonic() + TIME_LIMIT_S
    while time.monotonic() < deadline:
        seen |= marked(mark)
        try:
            return process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail(f"the study has not ended within {TIME_LIMIT_S} s")


def marked(mark: str) -> dict[int, str]:
    """Every process with the mark in its environment, and its command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if mark.encode() in variables:
            found[int(folder.name)] = command
    return found


def test_the_study_ends_with_a_verdict(study: Study) -> None:
    assert study.exit_code == 0, study.output
    assert "sglang.launch_server" in study.output  # the launch command, ready to paste


def test_the_baseline_is_plain_decoding_and_was_measured(study: Study) -> None:
    (baseline,) = [row for row in study.table("trials") if row["kind"] == "baseline"]
    assert baseline["status"] == "ok"
    assert baseline["speculative_algorithm"] == "none"
    assert baseline["output_tokens_per_s"] > 0


def test_at_least_four_eagle3_configurations_were_measured_chain_and_tree(study: Study) -> None:
    measured = [row for row in study.speculative if row["status"] == "ok"]
    assert len(measured) >= 4, [(row["name"], row["status"], row["message"]) for row in study.speculative]
    assert {row["eagle_topk"] > 1 for row in measured} == {True, False}


def test_the_drafter_is_accepted_and_the_counts_are_the_requests_own(study: Study) -> None:
    trials = {row["trial"] for row in study.speculative if row["status"] == "ok"}
    repeats = [row for row in study.table("measurements") if row["trial"] in trials]
    assert repeats
    assert {row["accept_source"] for row in repeats} == {"requests"}
    assert min(row["accept_length"] for row in repeats) > 1.3


def test_the_server_ran_what_was_asked_for(study: Study) -> None:
    asked = {row["trial"]: (row["num_steps"], row["eagle_topk"], row["num_draft_tokens"]) for row in study.speculative}
    ran = {row["trial"]: effective_triple(row["effective"]) for row in study.speculative}
    assert asked == ran


def effective_triple(effective: list[tuple[str, str]]) -> tuple[int, ...]:
    """(steps, top-k, draft tokens) as the server said it runs them; Parquet maps come as pairs."""
    settings: Mapping[str, str] = dict(effective)
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    return tuple(int(json.loads(settings[name])) for name in names)


def test_every_row_says_which_engine_it_was(study: Study) -> None:
    rows = study.table("trials")
    assert {(row["engine"], row["simulated"], row["engine_version"]) for row in rows} == {("sglang", False, "0.5.23")}


def test_nothing_is_left_behind(study: Study) -> None:
    """No process of a server or guard lives on (RC-02), and no GPU was claimed by a study on the CPU."""
    assert sum("sglang.launch_server" in command for command in study.processes.values()) >= 5
    assert study.left_behind == {}
    assert {row["gpu_count"] for row in study.table("trials")} == {0}
