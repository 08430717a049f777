"""One run of the command, seen from outside: its processes and their roles, its folder, its server logs."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from specsearch.host.guard import environment_of, process_table

ROOT = Path(__file__).parents[2]
MARK = "CHAOS_MARK"  # in everything that a run has started, whatever session or group it went to
POLL_S = 0.004

SPACE = """\
name: chaos
engine:
  type: simulated
  tp_size: 2
  args: {{num_draft_tokens: 4, eagle_topk: 1}}
  simulated: {{target: llama-8b, time_scale: 0.006, faults: [{faults}]}}
parameters:
  speculative_algorithm: {{type: choice, values: [none, EAGLE3]}}
  num_steps: {{type: choice, values: [3], when: {{speculative_algorithm: [EAGLE3]}}}}
  cuda_graph: {{type: choice, values: [{graphs}]}}
load_points: [{{workload: chat, concurrency: 2, output_tokens: 16, requests: 4, repeats: 2}}]
limits: {{start: 30s, silence: 6s, request: 6s, stall: 4s, stop: 2s, release: 4s}}
cluster: {{resource_wait: 60s}}
budget: {{trials: 20}}
"""


@dataclass(slots=True)
class Scene:
    """A results folder and the runs over it; `mark` tells their processes from everybody else's."""

    folder: Path
    executor: str
    faults: str = ""
    small: bool = False  # two configurations instead of four
    env: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        graphs = "true" if self.small else "true, false"
        self.space.write_text(SPACE.format(faults=self.faults, graphs=graphs))

    @property
    def space(self) -> Path:
        return self.folder / "space.yaml"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def ledger(self) -> Path:
        """The memory of the simulated GPUs, of whatever node."""
        return self.results / ".simulated-gpus"

    def log_of(self, trial: int) -> str:
        path = self.results / "logs" / f"t{trial:04d}-1.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def has_note(self, trial: int) -> bool:
        return (self.results / f".t{trial:04d}-1.running.json").exists()

    def has_row(self, trial: int) -> bool:
        return (self.results / "trials" / f"t{trial:04d}-1.parquet").exists()

    def rows(self) -> dict[str, str]:
        """Name and digest of every part that counts as stored: the rows with their measurements."""
        found = {}
        for path in sorted((self.results / "trials").glob("t*.parquet")):
            repeats = self.results / "measurements" / path.name
            content = path.read_bytes() + (repeats.read_bytes() if repeats.exists() else b"")
            found[path.name] = hashlib.sha256(content).hexdigest()
        return found

    def command(self) -> list[str]:
        words = ["tune", str(self.space), "--results", str(self.results), "--executor", self.executor]
        return [sys.executable, "-m", f"specsearch.{words[0]}", *words[1:], "--no-dashboard"]

    def start(self, name: str, *, plain: bool = False, **popen: object) -> "Run":
        """Start the command; `plain` without what holds or hurts it."""
        env = {**os.environ, MARK: self.mark, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
        if not plain:
            env |= self.env
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            chosen: dict[str, object] = {"stdout": stdout, "stderr": stderr, **popen}
            process = subprocess.Popen(  # type: ignore[call-overload]
                self._beside_a_neighbour() if not plain else self.command(),
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **chosen,
            )
        return Run(process, out, err, time.monotonic())

    def _beside_a_neighbour(self) -> list[str]:
        """The command with a stranger in its process group, as in `tune … | tee` or under `timeout`."""
        words = ["env", "-u", MARK, "CHAOS_NEIGHBOUR=" + self.mark, "sleep", "1000"]
        return ["sh", "-c", f'{" ".join(words)} </dev/null >/dev/null 2>&1 & exec "$@"', "sh", *self.command()]

    def processes(self) -> list["Seen"]:
        """Every live process of this scene's runs."""
        found = []
        for stat in process_table().values():
            env = environment_of(stat.pid) if stat.is_alive else {}
            if env.get(MARK) == self.mark:
                found.append(Seen(stat.pid, stat.parent, stat.group, stat.state, env, _name(stat.pid)))
        return found

    def neighbour(self) -> int | None:
        """The stranger in the run's process group."""
        marked = (pid for pid in process_table() if environment_of(pid).get("CHAOS_NEIGHBOUR") == self.mark)
        return next(marked, None)

    def clean(self) -> None:
        """End whatever of this scene is left; nothing else carries its mark."""
        pids = [process.pid for process in self.processes()]
        neighbour = self.neighbour()
        for pid in [*pids, *([neighbour] if neighbour else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of a run."""

    pid: int
    parent: int
    group: int
    state: str
    env: Mapping[str, str]
    name: str

    @property
    def is_guard(self) -> bool:
        return "SPECSEARCH_GUARD" in self.env

    @property
    def is_served(self) -> bool:
        """Whether it belongs to a server."""
        return "SPECSEARCH_LAUNCH" in self.env

    @property
    def trial(self) -> int | None:
        token = self.env.get("SPECSEARCH_TRIAL", "")
        return int(token.partition("-")[0]) if token and self.is_served else None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, {self.state}, parent {self.parent})"


@dataclass(slots=True)
class Run:
    """A command that was started."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path
    began_s: float
    seconds: float = 0.0

    def wait(self, deadline_s: float) -> int | None:
        """Its exit code; None when it did not end in time, and is then killed."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            self.seconds = time.monotonic() - self.began_s
        return code


def wait_until(condition: Callable[[], bool], seconds: float, poll_s: float = POLL_S) -> bool:
    """Poll until something is so; False when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def send(pids: Iterable[int], number: int) -> None:
    """Signal each of them that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _name(pid: int) -> str:
    """Its short name, and for Ray's workers the title that they give themselves."""
    try:
        name, title = (Path(f"/proc/{pid}/{file}").read_text(errors="replace").strip() for file in ("comm", "cmdline"))
    except OSError:
        return ""
    return title.partition("\0")[0] if name.startswith("ray::") else name
