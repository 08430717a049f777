"""Whole studies on the real SGLang, run as a user runs them, and everything that they leave or do not leave."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = os.environ.get("SPECSEARCH_SGLANG_PYTHON")
TIME_LIMIT_S = 25 * 60  # a launch takes half a minute to a minute and a half on two cores
SECRET = "not-to-be-stored"  # the value of a variable whose name says that it is a secret

needs_sglang = pytest.mark.skipif(
    PYTHON is None, reason="SPECSEARCH_SGLANG_PYTHON names no interpreter that has SGLang 0.5.23"
)
not_in_a_part = pytest.mark.skipif(
    os.environ.get("SPECSEARCH_REAL") == "part", reason="SPECSEARCH_REAL=part leaves this launch out to save time"
)


@dataclass
class Watched:
    """What the processes with one mark were, and what of this host they held."""

    mark: str
    processes: dict[int, str] = field(default_factory=dict)
    shared_memory: set[str] = field(default_factory=set)

    def look(self) -> None:
        found = marked(self.mark)
        self.processes |= found
        for pid in found:
            self.shared_memory |= shared_memory_of(pid)


@dataclass(frozen=True)
class Study:
    """How the command ended, what it stored, what it and its servers were and what of them is still there."""

    exit_code: int
    output: str
    folder: Path
    tmp: Path
    watched: Watched
    left_behind: Mapping[int, str]
    seconds: float

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows as any reader of Parquet sees them, without specsearch; maps come as lists of pairs."""
        return pyarrow.dataset.dataset(self.folder / name, format="parquet").to_table().to_pylist()

    @property
    def trials(self) -> list[dict[str, Any]]:
        return sorted(self.table("trials"), key=lambda row: (row["trial"], row["attempt"]))

    @property
    def baseline(self) -> dict[str, Any]:
        (row,) = [row for row in self.trials if row["kind"] == "baseline"]
        return row

    def trials_of(self, **wanted: object) -> list[dict[str, Any]]:
        """The trials whose columns have these values; a value that is a text may be the end of the column's."""
        return [row for row in self.trials if all(_fits(row[name], value) for name, value in wanted.items())]

    def trial_of(self, **wanted: object) -> dict[str, Any]:
        """The one trial whose columns have these values."""
        found = self.trials_of(**wanted)
        assert len(found) == 1, [(row["name"], row["status"], row["reason"], row["message"]) for row in self.trials]
        return found[0]

    def log_of(self, row: Mapping[str, Any]) -> str:
        return (self.folder / row["log_path"]).read_text(errors="replace")


def _fits(seen: object, wanted: object) -> bool:
    return seen.endswith(wanted) if isinstance(seen, str) and isinstance(wanted, str) else seen == wanted


@contextlib.contextmanager
def study_of(space: Path, scratch: Path) -> Iterator[Study]:
    """Run the study of a space to its end, in one process; the folders go with the context."""
    with tempfile.TemporaryDirectory(prefix="real-", dir="/tmp") as tmp:  # short: a TMPDIR holds paths of sockets
        watched = Watched(f"STUDY_UNDER_TEST={tmp}")
        began = time.monotonic()
        exit_code, output = _run(space, scratch, Path(tmp), watched)
        seconds = time.monotonic() - began
        yield Study(exit_code, output, scratch / "results", Path(tmp), watched, marked(watched.mark), seconds)


def _run(space: Path, scratch: Path, tmp: Path, watched: Watched) -> tuple[int, str]:
    argv = [
        *(sys.executable, "-m", "specsearch.tune", str(space), "--engine-python", str(PYTHON), "--yes"),
        *("--executor", "in-process", "--keep-requests", "--results", str(scratch / "results")),
    ]
    name, _, value = watched.mark.partition("=")  # inherited by everything that the study starts
    environment = {**os.environ, name: value, "TMPDIR": str(tmp), "SGLANG_TEST_API_KEY": SECRET}
    with (scratch / "output").open("wb") as output:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        return _wait(process, watched), (scratch / "output").read_text()
    finally:
        process.kill()  # the guards then take the servers down
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", watched: Watched) -> int:
    """Wait for the study to end, and note its processes meanwhile."""
    deadline = time.monotonic() + TIME_LIMIT_S
    while time.monotonic() < deadline:
        watched.look()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=2)
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


def shared_memory_of(pid: int) -> set[str]:
    """The files of shared memory that a process has open or mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        open_files = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    mapped = [line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line]
    return {path for path in (*mapped, *open_files) if path.startswith("/dev/shm/") and "(deleted)" not in path}


def is_listened_on(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
