"""What specsearch itself costs: `python benchmarks/overhead.py [--trials 20] [--write]`.

Per trial: the time from one stored row to the next around an engine that does nothing, so deciding, asking the
sampler, handing over and writing Parquet are in it and serving is not. Per command: wall time of a fresh process,
beside a Python that does nothing. First launch: from the command to the log file of the first server.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from specsearch.clock import Clock, SystemClock
from specsearch.config import EngineConfig, StudyConfig
from specsearch.executors.driver import Event, StudyDriver, TrialEnded
from specsearch.executors.in_process import run_in_process
from specsearch.metrics import METRICS
from specsearch.objective import Objective
from specsearch.run_study import FolderStore
from specsearch.runners.workplace import Workplace
from specsearch.samplers import OptunaProposer, make_tpe
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace
from specsearch.storage import ResultsFolder, Stamp
from specsearch.study import Budget, Study
from specsearch.trial import Measurement, Progress, StopFlag, TrialRequest, TrialResult, TrialStatus

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "overhead.json"
RUNS = 5
FIRST_LAUNCH_LIMIT_S = 120.0
PACKAGES = ("specsearch", "ray", "optuna", "pyarrow", "pydantic")


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall times of one thing, and the same in units of a bare Python start where that says something."""

    name: str
    seconds: tuple[float, ...]
    bare_s: float | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, object]:
        seconds = [round(second, 4) for second in self.seconds]
        return {"name": self.name, "median_s": round(self.median_s, 4), "seconds": seconds}

    def line(self) -> str:
        ratio = f"{self.median_s / self.bare_s:8.1f}" if self.bare_s else "       –"
        low, high = min(self.seconds), max(self.seconds)
        return f"{self.name:<44} {self.median_s:8.3f} {low:8.3f} {high:8.3f} {len(self.seconds):5d} {ratio}"


HEADER = f"{'':<44} {'median s':>8} {'min':>8} {'max':>8} {'runs':>5} {'× bare':>8}"


def time_command(name: str, argv: Sequence[str], bare_s: float | None = None) -> Timing:
    """A command from start to end, run several times."""
    return Timing(name, tuple(_timed(lambda: _run(argv)) for _ in range(RUNS)), bare_s)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _run(argv: Sequence[str]) -> None:
    subprocess.run([sys.executable, *argv], cwd=ROOT, check=True, capture_output=True, timeout=120)


def time_first_launch(executor: str) -> Timing:
    """From the command on the quick start to the first server's log; the study is then interrupted."""
    return Timing(f"first launch, quick start, {executor}", tuple(_first_launch_s(executor) for _ in range(RUNS)))


def _first_launch_s(executor: str) -> float:
    with tempfile.TemporaryDirectory(prefix="specsearch-bench-") as folder:
        log = Path(folder) / "results" / "logs" / "t0000-1.log"
        argv = ["-m", "specsearch.tune", "--executor", executor, "--results", str(log.parents[1])]
        began = time.perf_counter()
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *argv], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )
        try:
            _wait_for(log, process, began + FIRST_LAUNCH_LIMIT_S)
            return time.perf_counter() - began
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def _wait_for(log: Path, process: "subprocess.Popen[bytes]", deadline: float) -> None:
    while not log.exists():
        if process.poll() is not None or time.perf_counter() > deadline:
            raise SystemExit(f"no server was launched; the command ended with {process.poll()}")
        time.sleep(0.005)


def machine() -> dict[str, object]:
    """What the figures depend on."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def run_nothing(
    request: TrialRequest,
    workplace: Workplace,
    *,
    clock: Clock,
    stop: StopFlag,
    on_progress: Callable[[Progress], None],
) -> TrialResult:
    """A trial that is over at once, with as many numbers as a real one."""
    now = clock.time()
    speed = 100.0 + request.number % 7
    repeats = tuple(
        Measurement(
            workload="chat",
            workload_digest="0" * 12,
            workload_kind="text",
            concurrency=1,
            repeat=repeat,
            values=dict.fromkeys(METRICS, 1.0) | {"output_tokens_per_s": speed},
        )
        for repeat in range(3)
    )
    return TrialResult(
        number=request.number,
        attempt=request.attempt,
        kind=request.kind,
        point=request.point,
        status=TrialStatus.OK,
        started_at=now,
        ended_at=now,
        node=workplace.node,
        engine="nothing",
        effective_key=str(request.number),
        measurements=repeats,
    )


@dataclass(frozen=True)
class _Place:
    """Makes the workplace of a trial that needs none; pickled to Ray's workers."""

    config: StudyConfig
    logs_dir: Path

    def __call__(self, *, gpu_indices: tuple[int, ...], node: str) -> Workplace:
        return Workplace(self.config, self.logs_dir, gpu_indices, node)


SPACE = SearchSpace(
    parameters=(
        ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")),
        IntParameter("num_steps", 1, 8, when={"speculative_algorithm": ("EAGLE3",)}),
        ChoiceParameter("eagle_topk", (1, 2, 4, 8), when={"speculative_algorithm": ("EAGLE3",)}),
        IntParameter("num_draft_tokens", 2, 64, log=True, when={"speculative_algorithm": ("EAGLE3",)}),
        ChoiceParameter("cuda_graph", (True, False)),
    )
)


def time_trials(executor: str, trials: int) -> Timing:
    """From one row to the next, on a study of so many trials that take no time."""
    ended: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, TrialEnded):
            ended.append(time.perf_counter())

    with tempfile.TemporaryDirectory(prefix="specsearch-bench-") as folder:
        results = ResultsFolder(Path(folder))
        stamp = Stamp(study="overhead", fingerprint_fields={}, specsearch_version="", objective=Objective())
        study = Study(
            space=SPACE, objective=Objective(), budget=Budget(trials=trials), proposer=OptunaProposer(make_tpe)
        )
        driver = StudyDriver(study, FolderStore(results, stamp), SystemClock(), observers=[note])
        config = StudyConfig(
            name="overhead",
            source=Path("overhead.yaml"),
            engine=EngineConfig(type="simulated", model=""),
            space=SPACE,
            load_points=(),
        )
        EXECUTORS[executor](driver, _Place(config, results.logs_dir))
    bad = [result for result in driver.results if result.status != TrialStatus.OK]
    if bad or len(driver.results) < trials:
        raise SystemExit(f"{executor}: {len(driver.results)} trials, not all ok: {bad[:1]}")
    gaps = tuple(later - earlier for earlier, later in pairwise(ended))
    return Timing(f"per trial, {executor}", gaps)


def _in_process(driver: StudyDriver, place: _Place) -> None:
    workplace = place(gpu_indices=tuple(range(8)), node="local")
    run_in_process(driver, workplace, run_trial=run_nothing, clock=SystemClock())


def _ray(driver: StudyDriver, place: _Place) -> None:
    from specsearch.executors.ray_cluster import Demand, ray_session
    from specsearch.executors.ray_tune import run_in_ray

    demand = Demand(gpus_per_trial=8)
    with ray_session(None, demand=demand, gpus=range(8), include_dashboard=False):
        run_in_ray(
            driver,
            make_workplace=place,
            run_trial=run_nothing,
            demand=demand,
            study_name="overhead",
            resource_wait_s=60.0,
            clock=SystemClock(),
            reuse_actors=True,
        )


EXECUTORS: Mapping[str, Callable[[StudyDriver, _Place], None]] = {"in-process": _in_process, "ray": _ray}


def measure(trials: int) -> Iterator[Timing]:
    """Everything, the cheap things first."""
    bare = time_command("python -c pass", ["-c", "pass"])
    yield bare
    for command in ("tune", "check", "report"):
        yield time_command(f"{command} --help", ["-m", f"specsearch.{command}", "--help"], bare.median_s)
    yield time_command("tune --dry-run, quick start", ["-m", "specsearch.tune", "--dry-run"], bare.median_s)
    kimi = ["-m", "specsearch.tune", "search_spaces/kimi-k2.5-eagle3-8gpu.yaml", "--dry-run"]
    yield time_command("tune --dry-run, Kimi-K2.5 on 8 GPUs", kimi, bare.median_s)
    for executor in EXECUTORS:
        yield time_trials(executor, trials)
    for executor in EXECUTORS:
        yield time_first_launch(executor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trials", type=int, default=20, help="trials of the studies around an engine that does nothing"
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(ROOT)} as well")
    arguments = parser.parse_args()
    print(HEADER)
    timings = []
    for timing in measure(arguments.trials):
        print(timing.line(), flush=True)
        timings.append(timing)
    if arguments.write:
        RESULT.parent.mkdir(exist_ok=True)
        rows = [timing.to_json() for timing in timings]
        RESULT.write_text(json.dumps({"machine": machine(), "timings": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
