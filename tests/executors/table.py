"""Studies whose trials come out of a table instead of a server."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from specsearch.clock import Clock, SystemClock, wait_until
from specsearch.config import EngineConfig, StudyConfig
from specsearch.executors.driver import StudyDriver
from specsearch.objective import Objective
from specsearch.runners.workplace import Workplace
from specsearch.samplers import OptunaProposer, make_tpe
from specsearch.search_space import ChoiceParameter, IntParameter, NoRules, Point, SearchSpace, Value
from specsearch.study import Budget, Study
from specsearch.trial import (
    Measurement,
    Phase,
    Progress,
    StopFlag,
    TrialRequest,
    TrialResult,
    TrialStatus,
    short_name,
)

HARDLY_EVER_S = 60.0  # how long a trial waits for what a test is sure to do
GO_ON = "go-on"  # the file among the marks that a trial `until told` waits for
CHAINS = SearchSpace((ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")), IntParameter("num_steps", 1, 3)))


class ChainRules(NoRules):
    """With top-k 1 the engine sets the draft tokens by itself, and it knows every default."""

    def derived(self, name: str, partial: Point) -> Value | None:
        if name == "num_draft_tokens" and partial.get("eagle_topk") == 1:
            return int(partial["num_steps"]) + 1
        return None


@dataclass
class MemoryStore:
    """Rows and notes in lists; what happened, in order."""

    rows: list[TrialResult] = field(default_factory=list)
    running: dict[tuple[int, int], TrialRequest] = field(default_factory=dict)
    happened: list[str] = field(default_factory=list)
    kept: dict[tuple[int, int], TrialResult] = field(default_factory=dict)

    def note_measured(self, result: TrialResult) -> None:
        self.kept[result.number, result.attempt] = result
        self.happened.append(f"measured {result.number}")

    def measured(self, request: TrialRequest) -> TrialResult | None:
        return self.kept.get((request.number, request.attempt))

    def note_running(self, request: TrialRequest) -> None:
        self.running[request.number, request.attempt] = request
        self.happened.append(f"note {request.number}")

    def commit(self, result: TrialResult) -> None:
        self.rows.append(result)
        self.happened.append(f"commit {result.number}")

    def forget_running(self, request: TrialRequest) -> None:
        self.running.pop((request.number, request.attempt), None)
        self.kept.pop((request.number, request.attempt), None)
        self.happened.append(f"forget {request.number}")


@dataclass(frozen=True)
class Table:
    """A `run_trial` that looks its result up; what is not in the table measures 50 tokens/s and one more per step.

    An outcome is `STATUS:REASON`, or a word below; a tuple gives the outcome of each attempt, the last one of the rest.
    """

    outcomes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by short name of the point
    effective: Mapping[str, str] = field(default_factory=dict)  # effective key by short name
    marks: Path | None = None  # a file per trial that has begun, for tests that act while one runs

    def __call__(
        self, request: TrialRequest, workplace: Workplace, *, clock: Clock, stop: StopFlag, on_progress: object
    ) -> TrialResult:
        assert callable(on_progress)
        on_progress(Progress(Phase.MEASURE, "measuring", 50.0, 2.0))
        if self.marks is not None:
            (self.marks / f"{request.number}-{request.attempt}-{os.getpid()}").touch()
        name = short_name(request.point)
        outcomes = self.outcomes.get(name, ("ok",))
        result = TrialResult(
            number=request.number,
            attempt=request.attempt,
            kind=request.kind,
            point=request.point,
            status=TrialStatus.OK,
            phase=Phase.MEASURE,
            started_at=clock.time(),
            gpu_count=len(workplace.gpu_indices),
            node=workplace.node,
            engine="simulated",
            effective_key=self.effective.get(name),
            measurements=measured(50.0 + int(request.point.get("num_steps", 0))),
            host_facts={"gpus": ",".join(map(str, workplace.gpu_indices)), "pid": str(os.getpid())},
        )
        changes = self._changes(outcomes[min(request.attempt, len(outcomes)) - 1], request, result, clock, stop)
        return replace(result, ended_at=clock.time(), **changes)  # type: ignore[arg-type]

    def _changes(
        self, outcome: str, request: TrialRequest, result: TrialResult, clock: Clock, stop: StopFlag
    ) -> dict[str, object]:
        match outcome.split(":"):
            case ["ok"] if result.effective_key in request.known_effective:
                return _status("skipped_duplicate", "same_effective_configuration")
            case ["ok"]:
                return {}
            case ["no number"]:
                return {"measurements": ()}
            case ["not a number"]:
                return {"measurements": measured(float("nan"))}
            case ["bug"]:
                raise ZeroDivisionError("a bug of the runner")
            case ["node unfit"]:
                return {"node_unfit": "GPU 3 keeps 12 GiB"}
            case ["killed"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["wait"]:
                return _wait(clock, stop)
            case ["slow"]:
                clock.sleep(1.5)
                return {}
            case ["until told"]:
                return _until_told(self.marks, clock)
            case ["meet"]:
                return _meet(self.marks, request, clock)
            case [status, reason]:
                return _status(status, reason)
        raise ValueError(f"no outcome {outcome!r}")


def _status(status: str, reason: str) -> dict[str, object]:
    return {"status": TrialStatus(status), "reason": reason, "message": f"made up: {reason}", "measurements": ()}


def _wait(clock: Clock, stop: StopFlag) -> dict[str, object]:
    """A trial that goes on until it is stopped."""
    wait_until(lambda: stop.reason is not None, timeout_s=HARDLY_EVER_S, poll_s=0.02, clock=clock)
    return _status("aborted", stop.reason or "never stopped")


def _meet(marks: Path | None, request: TrialRequest, clock: Clock) -> dict[str, object]:
    """A trial that ends once another one has begun after the baseline; both then run at the same time."""
    assert marks is not None
    others = lambda: any(m.name.partition("-")[0] not in ("0", str(request.number)) for m in marks.iterdir())  # noqa: E731
    if not wait_until(others, timeout_s=HARDLY_EVER_S, poll_s=0.02, clock=clock):
        return _status("infeasible", "met_nobody")
    clock.sleep(0.1)  # the other one is to see this one too
    return {}


def _until_told(marks: Path | None, clock: Clock) -> dict[str, object]:
    assert marks is not None
    told = wait_until((marks / GO_ON).exists, timeout_s=HARDLY_EVER_S, poll_s=0.02, clock=clock)
    return {} if told else _status("infeasible", "never_told")


class Holder:
    """Somebody else's Ray actor."""

    def here(self) -> bool:
        return True


class ShiftedClock(SystemClock):
    """The computer's clock, which a test puts forward."""

    shift_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift_s


def measured(output_tokens_per_s: float) -> tuple[Measurement, ...]:
    values = {"output_tokens_per_s": output_tokens_per_s, "e2e_p50_ms": 100.0}
    return (
        Measurement(
            workload="chat", workload_digest="0" * 12, workload_kind="text", concurrency=1, repeat=0, values=values
        ),
    )


def study(space: SearchSpace = CHAINS, *, trials: int | None = 40, wall_time_s: float | None = None) -> Study:
    return Study(space, Objective(), Budget(trials=trials, wall_time_s=wall_time_s), OptunaProposer(make_tpe, seed=0))


def driver(
    what: Study | None = None, store: MemoryStore | None = None, clock: Clock | None = None, **more: object
) -> StudyDriver:
    chosen = store if store is not None else MemoryStore()
    return StudyDriver(what or study(), chosen, clock or SystemClock(), engine="simulated", **more)  # type: ignore[arg-type]


def make_workplace(*, gpu_indices: tuple[int, ...], node: str) -> Workplace:
    engine = EngineConfig(type="simulated", model="none", tp_size=8)
    config = StudyConfig(name="table", source=Path("table.yaml"), engine=engine, space=CHAINS, load_points=())
    return Workplace(config, Path("/nowhere/logs"), gpu_indices, node)
