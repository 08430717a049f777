"""Running a command of specsearch as its users do: a process, its streams, its exit code."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

MARK = "TEST_OF_A_COMMAND"  # inherited by everything that a command starts

DEADLINE_S = 180

SPACE = """\
name: small
engine: {{type: simulated, tp_size: 8, simulated: {{target: tiny, time_scale: 0.001{simulated}}}}}
parameters:
  speculative_algorithm: {{type: choice, values: [none, EAGLE3]}}
  num_steps: {{type: int, low: 1, high: 3, when: {{speculative_algorithm: [EAGLE3]}}}}
  eagle_topk: {{type: choice, values: [1, 2], when: {{speculative_algorithm: [EAGLE3]}}}}
  num_draft_tokens: {{type: int, low: 2, high: 6, when: {{speculative_algorithm: [EAGLE3]}}}}
{parameters}
load_points: [{{workload: chat, concurrency: 2, output_tokens: 32, requests: 4, repeats: 2}}]
limits: {{start: 20s, silence: 4s, request: 4s, stall: 3s, stop: 5s, release: 2s}}
budget: {{trials: 3}}
{more}
"""


def space(tmp_path: Path, *, simulated: str = "", parameters: str = "", more: str = "") -> Path:
    """A search-space file of a fast simulated machine."""
    path = tmp_path / "small.yaml"
    path.write_text(SPACE.format(simulated=f", {simulated}" if simulated else "", parameters=parameters, more=more))
    return path


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float


def run(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 120
) -> Ended:
    """Run `python -m specsearch.WORDS…` to its end."""
    began = time.monotonic()
    done = subprocess.run(
        command(*words), capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})}, timeout=DEADLINE_S
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def command(name: str | Path, *words: str | Path) -> list[str]:
    return [sys.executable, "-m", f"specsearch.{name}", *map(str, words)]


@contextmanager
def started(*words: str | Path, cwd: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running command and the mark that everything started by it carries."""
    mark = uuid4().hex
    process = subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, MARK: mark},
        start_new_session=True,
    )
    try:
        yield process, mark
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def servers_of(mark: str) -> set[int]:
    """Live processes with this mark that belong to a trial's server."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and b"SPECSEARCH_TRIAL=" in environment:
            found.add(int(folder.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until something is so; fails with what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
