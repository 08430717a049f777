"""The process of a trial under Ray Tune: short steps around one trial that runs in a thread."""

import os
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Protocol

import ray
from ray import tune
from ray.actor import ActorHandle

from specsearch.clock import SystemClock
from specsearch.executors.driver import RunTrial
from specsearch.executors.in_process import end_what_is_left
from specsearch.executors.ray_orders import Orders
from specsearch.runners.workplace import Workplace
from specsearch.trial import Progress, StopFlag, TrialRequest, TrialResult

STEP_S = 1.0  # a stop waits for a step to end, and Tune kills what has not stopped after 10 s
CLEANUP_S = 5.0

# Keys of what a step reports, beside the fields of the progress.
PROGRESS, OUTCOME, BUG, PARKED, NODE_ID = "progress", "outcome", "bug", "parked", "on_node"


class MakeWorkplace(Protocol):
    """A workplace on the node and the GPUs that Ray has given the trial."""

    def __call__(self, *, gpu_indices: tuple[int, ...], node: str) -> Workplace: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What every trial of a study needs."""

    run_trial: RunTrial
    make_workplace: MakeWorkplace
    gpus_per_trial: int
    reuse_actors: bool
    node_names: Mapping[str, str] = field(default_factory=dict)  # by node id
    orders: ActorHandle[Any] | None = None


class SpecsearchTrial(tune.Trainable):
    """One place of a node; runs one trial after the other when Tune reuses it.

    Each step reports where the trial is; the last one carries its result, once the server is gone and its memory
    is back. A place on an unfit node parks: it keeps the node's GPUs reserved, so that nothing is launched there.
    """

    def __repr__(self) -> str:
        """What the dashboard calls this actor; it asks once, so a reused one cannot be called after its trial."""
        job: Job | None = getattr(self, "_job", None)  # none where the set-up itself failed
        if job is None:
            return type(self).__name__
        return f"trials on {self._node}" if job.reuse_actors else self._trial_name

    def setup(self, config: dict[str, Any], job: Job) -> None:  # type: ignore[override]  # with_job gives it
        self._job = job
        self._orders = Orders()
        self._asked: ray.ObjectRef[Orders] | None = None
        self._node_id: str = ray.get_runtime_context().get_node_id()
        self._node = job.node_names.get(self._node_id, self._node_id[:12])
        self._trial_name: str = config["request"].name
        end_what_is_left(SystemClock())
        self._start(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._start(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self._take_orders()
        if self._future is None:
            Event().wait(STEP_S)
            return {PARKED: True, NODE_ID: self._node_id, "done": self._orders.over}
        self._news.wait(STEP_S)
        self._news.clear()
        if not self._future.done():
            return self._report()
        error = self._future.exception()
        if error is not None:
            return {BUG: "".join(traceback.format_exception(error)), "done": True}
        return {**self._report(), OUTCOME: self._with_niceness(self._future.result()), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing of a trial outlives it."""

    def cleanup(self) -> None:
        self._stop.reason, self._stop.hard = self._stop.reason or "user", True
        if self._future is not None:
            wait([self._future], timeout=CLEANUP_S)

    def _start(self, config: Mapping[str, Any]) -> None:
        self._stop = StopFlag()
        self._progress: Progress | None = None
        self._future: Future[TrialResult] | None = None
        self._news = Event()  # ends a step: the trial has ended, or is measured
        if self._node not in config["unfit"]:
            self._future = _in_thread(lambda: self._run(config["request"]))
            self._future.add_done_callback(lambda _: self._news.set())

    def _run(self, request: TrialRequest) -> TrialResult:
        gpu_indices = assigned_gpus()[: self._job.gpus_per_trial]
        workplace = self._job.make_workplace(gpu_indices=gpu_indices, node=self._node)
        return self._job.run_trial(request, workplace, clock=SystemClock(), stop=self._stop, on_progress=self._moved)

    def _moved(self, progress: Progress) -> None:
        """Only the last progress of a step is reported, and what was measured is told once: it must not be missed."""
        before = self._progress
        if progress.measured is not None:
            self._news.set()
        elif before is not None and before.measured is not None:
            progress = replace(progress, measured=before.measured)
        self._progress = progress

    def _report(self) -> dict[str, Any]:
        progress = self._progress
        if progress is None:
            return {NODE_ID: self._node_id, PROGRESS: None}
        return {
            NODE_ID: self._node_id,
            PROGRESS: progress,
            "phase": progress.phase.value,
            "note": progress.note,
            "output_tokens_per_s": progress.output_tokens_per_s,
            "accept_length": progress.accept_length,
        }

    def _take_orders(self) -> None:
        """Never waits: an order is taken in the first step after it has arrived."""
        if self._job.orders is None:
            return
        if self._asked is None:
            self._asked = self._job.orders.current.remote()
        ready, _ = ray.wait([self._asked], timeout=0)
        if not ready:
            return
        try:
            self._orders = ray.get(self._asked)
        except ray.exceptions.RayActorError:
            self._asked = None  # started anew, or the study is going down and this process with it
            return
        self._asked = self._job.orders.current.remote()
        if self._orders.stop is not None:
            self._stop.reason = self._stop.reason or self._orders.stop
            self._stop.hard = self._orders.hard

    def _with_niceness(self, result: TrialResult) -> TrialResult:
        niceness = os.nice(0)
        if niceness <= 0:
            return result
        warning = f"the server ran at nice {niceness}; start Ray with RAY_worker_niceness=0"
        return replace(result, warnings=(*result.warnings, warning))


def with_job(job: Job) -> type[SpecsearchTrial]:
    """What `tune.with_parameters` does, without an object in Ray's store: Ray ends a driver that finds it gone."""

    class WithJob(SpecsearchTrial):
        def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
            super().setup(config, job)

    return WithJob


def assigned_gpus() -> tuple[int, ...]:
    """The GPUs that Ray has given this process, ascending: Ray's own order differs from trial to trial."""
    return tuple(sorted(int(gpu) for gpu in ray.get_gpu_ids()))


def _in_thread(work: Callable[[], TrialResult]) -> Future[TrialResult]:
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trial")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future
