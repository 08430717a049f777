"""Where the output of a command cannot be written, its exit code still says how it went, and its files are whole."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.command import command, space

DRY = ("--dry-run", "--format", "json")


def ended(*words: str | Path, **streams: object) -> "subprocess.CompletedProcess[str]":
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **streams}
    return subprocess.run(command(*words), text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def test_a_full_standard_output_is_no_bug_and_no_success(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = ended("tune", space(tmp_path), *DRY, stdout=full)
        assert done.returncode == 4
        assert "cannot write to standard output: No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert ended("report", tmp_path / "absent", stdout=full, stderr=full).returncode == 4
        assert ended("tune", space(tmp_path), *DRY, stderr=full).returncode == 0


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_a_closed_stream_changes_no_exit_code_and_mixes_nothing_up(tmp_path: Path, closed: tuple[int, ...]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    done = ended("tune", space(tmp_path), *DRY, preexec_fn=close)
    assert done.returncode == 0
    if 1 not in closed:
        assert json.loads(done.stdout)["plans"]
    failed = ended("report", tmp_path / "absent", preexec_fn=close)
    assert failed.returncode == 4
    assert failed.stdout == ""  # a sentence that nobody can read on standard error is not put elsewhere
