"""A study under Ray Tune: Tune runs the trials and asks the driver what to run."""

import logging
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, cast

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from specsearch.clock import Clock, wait_until
from specsearch.errors import HostNotFit
from specsearch.executors.driver import RunTrial, StudyDriver
from specsearch.executors.ray_cluster import Demand, alive_nodes, fitting_nodes, places, wait_for_room
from specsearch.executors.ray_folder import tune_folder
from specsearch.executors.ray_metrics import RayMetrics
from specsearch.executors.ray_orders import Orders, SpecsearchOrders
from specsearch.executors.ray_trial import (
    BUG,
    NODE_ID,
    OUTCOME,
    PARKED,
    PROGRESS,
    Job,
    MakeWorkplace,
    SpecsearchTrial,
    with_job,
)
from specsearch.executors.ray_watch import Silences, in_tune_thread, never_lost, wait_for_end
from specsearch.study import Done, Wait
from specsearch.trial import TrialRequest

STUDY_BROKEN = "study_broken"  # why trials are told to stop when the study itself cannot go on
PROCESS_START_S = 60.0  # room is there, and the trial's process is still starting
HARD_STOP_S = 30.0  # what a hard stop leaves a trial to take its server down
NODE_LOSS_S = 20.0  # Ray calls a killed node lost after 5 to 10 s
SILENCE_S = 60.0  # a trial's process reports each second, whatever its server does
ORDERS_AGAIN_S = 1.0  # the process that keeps orders may have been started anew
PARKED_S = 30.0  # what has been told to go and does not
MESSAGE_LENGTH = 500

_log = logging.getLogger(__name__)


def run_in_ray(
    driver: StudyDriver,
    *,
    make_workplace: MakeWorkplace,
    run_trial: RunTrial,
    demand: Demand,
    study_name: str,
    resource_wait_s: float,
    clock: Clock,
    reuse_actors: bool = False,
    lost: Callable[[], str | None] = never_lost,
) -> Done:
    """Run the study to its end on the Ray that this process is connected to.

    Reused actors save about 3 s a trial, and the dashboard then cannot show each trial under its own name. `lost`
    says that Ray is gone. Everything that may wait for Ray happens in a thread, which is left to itself when Ray is
    gone or deaf: the rows, the verdict and the signals never wait for Ray.

    Raises HostNotFit when there is no room for a trial, or no Ray any more, and whatever the study itself raised.
    """
    study = _StudyOnTune(driver, clock, patience_s=resource_wait_s + PROCESS_START_S)

    def run() -> None:
        nodes = fitting_nodes(demand)
        bundle, slots = places(demand, nodes)
        wait_for_room(bundle, timeout_s=resource_wait_s, clock=clock, stop=driver.stop)
        names = {node.id: node.name for node in nodes}
        orders = _keep_orders()
        study.begin(orders, names, RayMetrics(driver, study_name))
        job = Job(run_trial, make_workplace, demand.gpus_per_trial, reuse_actors, names, orders)
        with tune_folder() as folder:
            _tuner(study, job, bundle, slots, folder).fit()
        ray.kill(orders)

    return _concluded(in_tune_thread(run), study, lost)


def _concluded(ended: "Future[None]", study: "_StudyOnTune", lost: Callable[[], str | None]) -> Done:
    """How the study ended, with Tune or without it."""
    try:
        why = wait_for_end(ended, study, lost)
    except BaseException as error:
        study.leave_tune()
        if study.error is not None:  # why Tune failed, rather than how
            raise study.error from error
        if isinstance(error, OSError):
            raise HostNotFit("Ray", [f"Tune cannot work with its files in {tempfile.gettempdir()}: {error}"]) from error
        raise
    return study.give_up(why) if why else study.outcome()


def _keep_orders() -> ActorHandle[Any]:
    return cast(
        "ActorHandle[SpecsearchOrders]", ray.remote(SpecsearchOrders).options(num_cpus=0, max_restarts=-1).remote()
    )


def _tuner(study: "_StudyOnTune", job: Job, bundle: Mapping[str, float], slots: int, folder: Path) -> tune.Tuner:
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)  # misses the files we turned off
    trainable = tune.with_resources(with_job(job), tune.PlacementGroupFactory([dict(bundle)], strategy="STRICT_PACK"))
    trainable.__qualname__ = SpecsearchTrial.__qualname__  # what the dashboard calls the trials' processes
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=_Searcher(study),
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=job.reuse_actors,
            trial_name_creator=lambda trial: trial.config["request"].name,
            trial_dirname_creator=lambda trial: f"{trial.config['request'].log_name}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="study",
            storage_path=str(folder),
            verbose=0,
            stop=_Stopper(study),
            callbacks=[_Callback(study)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )


class _StudyOnTune:
    """What Tune says, in the driver's words.

    An exception out of a callback would make Tune call good trials failed, or end the experiment without the
    trials' teardown; so the first one is kept, the trials are stopped, and `outcome` raises it.

    Tune's thread calls the driver until `leave_tune`, and nobody else does before.
    """

    def __init__(self, driver: StudyDriver, clock: Clock, *, patience_s: float) -> None:
        self.must_stop = False
        self.turns = 0  # of Tune's loop; while Tune hangs in a call to Ray they stand still
        self._driver, self._clock, self._patience_s = driver, clock, patience_s
        self._orders: ActorHandle[Any] | None = None
        self._node_names: Mapping[str, str] = {}
        self._with_driver = Lock()
        self._left_tune = False
        self._silences = Silences(clock)
        self._requests: dict[str, TrialRequest] = {}
        self._parked: set[str] = set()
        self._over = False
        self._given = Orders()
        self._given_at_s = 0.0
        self.error: Exception | None = None  # the first that the study itself raised
        self._stuck_since_s: float | None = None
        self._hard_since_s: float | None = None
        self._parked_since_s: float | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Tune pickles what it was given, for a restore that never comes; of a live study nothing can be kept."""
        return object, ()

    def __deepcopy__(self, memo: object) -> "_StudyOnTune":
        return self

    @property
    def is_with_driver(self) -> bool:
        """Whether Tune's thread is at work for the study just now, rather than for Ray."""
        return self._with_driver.locked()

    def begin(self, orders: ActorHandle[Any], node_names: Mapping[str, str], metrics: RayMetrics) -> None:
        """Trials can start."""
        self._orders, self._node_names = orders, node_names
        self._driver.nodes = set(node_names.values())
        self._driver.observers.append(metrics)
        self._driver.begin()

    def leave_tune(self) -> None:
        """From now on Tune's thread, wherever it hangs, gets no more into the driver."""
        with self._with_driver:
            self._left_tune = True

    def give_up(self, why: str) -> Done:
        """Conclude without Ray: what runs there is lost, and no node takes trials any more."""
        self.leave_tune()
        _log.error("%s", why)
        if not self._driver.nodes:
            raise HostNotFit("Ray", [why])
        for request in self._driver.pending:
            self._driver.lost(request, "node_lost", why)
        for node in self._driver.nodes:
            self._driver.node_unfit(node, why)
        return self.outcome()

    def outcome(self) -> Done:
        """How the study ended, once Tune is done."""
        if self.error is not None:
            raise self.error
        end = self._driver.next()
        if not isinstance(end, Done):
            raise RuntimeError(f"Tune ended before the study did; the study would go on with {end}")
        return end

    def ask(self, trial_id: str) -> dict[str, Any] | str | None:
        self._silences.begin(trial_id)
        with self._kept():
            action = self._driver.next() if self.error is None else None
            match action:
                case TrialRequest():
                    self._requests[trial_id] = action
                    return {"request": action, "unfit": frozenset(self._driver.unfit)}
                case Wait():
                    return None
        self._over = True
        return str(Searcher.FINISHED)

    def hear(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A step of a trial that goes on."""
        request = self._requests.get(trial_id)
        self._silences.begin(trial_id)
        if request is None:
            return
        with self._kept():
            if result.get(PARKED):
                self._parked.add(trial_id)
                self._driver.hand_back(self._requests.pop(trial_id))
            else:
                self._show_progress(request, result)

    def end(self, trial_id: str, result: Mapping[str, Any] | None) -> None:
        """A trial that Tune takes for ended without an error."""
        self._parked.discard(trial_id)
        request = self._requests.pop(trial_id, None)
        if request is None:
            return
        with self._kept():
            if result is None or result.get(PARKED):
                self._driver.hand_back(request)
            elif OUTCOME in result:
                self._show_progress(request, result)
                self._driver.finish(request, result[OUTCOME])
            elif BUG in result:
                raise RuntimeError(f"{request.name} raised what no trial may raise:\n{result[BUG]}")
            else:
                self._driver.lost(request, "actor_died", "stopped hard before it had ended", node=self._node_of(result))

    def fail(self, trial: Trial) -> None:
        """A trial whose process is gone, or raised."""
        self._parked.discard(trial.trial_id)
        error, node = _error_of(trial), self._node_of(trial.last_result or {})
        if isinstance(error, ActorUnavailableError):  # the first sign of a lost node, before Ray knows it is one
            wait_until(lambda: node in self._lost_nodes(), timeout_s=NODE_LOSS_S, poll_s=0.1, clock=self._clock)
        gone = self._lost_nodes()
        with self._kept():
            for name in gone:
                self._driver.node_unfit(name, "the node is gone")
            request = self._requests.pop(trial.trial_id, None)
            if request is None:
                return
            if not isinstance(error, RayActorError):
                raise RuntimeError(f"{request.name} failed in Tune: {error}")
            message = self._silences.ended.pop(trial.trial_id, None) or _gist(error)
            self._driver.lost(request, "node_lost" if node in gone else "actor_died", message, node=node)

    def look(self, trials: Sequence[Trial]) -> None:
        """Once per turn of Tune's loop: pass orders on, and notice when nothing can go on."""
        self.turns += 1
        stop = self._driver.stop
        reason = STUDY_BROKEN if self.error is not None else stop.reason
        self._give(Orders(stop=reason, hard=stop.hard, over=self._over))
        if stop.hard and self._waited("_hard_since_s") > HARD_STOP_S:
            self.must_stop = True
        running = [trial for trial in trials if trial.status == Trial.RUNNING]
        self._end_silent([trial for trial in running if trial.trial_id in self._requests])
        self._look_for_stuck(trials, stopping=reason is not None)
        if self._over and running and all(trial.trial_id in self._parked for trial in running):
            self.must_stop = self.must_stop or self._waited("_parked_since_s") > PARKED_S

    def _give(self, orders: Orders) -> None:
        """Pass orders on, and from time to time again."""
        now = self._clock.monotonic()
        if self._orders is not None and (orders != self._given or now - self._given_at_s > ORDERS_AGAIN_S):
            self._given, self._given_at_s = orders, now
            self._orders.give.remote(orders)

    def _end_silent(self, trials: Sequence[Trial]) -> None:
        """End the process of a trial that reports no more; the guard then ends its server."""
        for trial_id in self._silences.look([trial.trial_id for trial in trials], SILENCE_S):
            actor = next(trial.temporary_state.ray_actor for trial in trials if trial.trial_id == trial_id)
            if actor is not None:
                ray.kill(actor)

    def _look_for_stuck(self, trials: Sequence[Trial], *, stopping: bool) -> None:
        """Trials wait for room while none runs that could make it."""
        busy = any(trial.status == Trial.RUNNING and trial.trial_id not in self._parked for trial in trials)
        if busy or not any(trial.status == Trial.PENDING for trial in trials):
            self._stuck_since_s = None
        elif stopping:
            self.must_stop = True
        elif self._waited("_stuck_since_s") > self._patience_s:
            self.must_stop = True
            unfit = [f"{node}: {why}" for node, why in self._driver.unfit.items()]
            with self._kept():
                raise HostNotFit("no node has had room for a trial", [f"waited {self._patience_s:g} s", *unfit])

    def _waited(self, since: str) -> float:
        """Seconds since this was first asked; the attribute remembers."""
        now = self._clock.monotonic()
        if getattr(self, since) is None:
            setattr(self, since, now)
        return now - float(getattr(self, since))

    def _show_progress(self, request: TrialRequest, result: Mapping[str, Any]) -> None:
        if result.get(PROGRESS) is not None:
            self._driver.progressed(request, result[PROGRESS])

    def _node_of(self, result: Mapping[str, Any]) -> str | None:
        return self._node_names.get(result.get(NODE_ID, ""))

    def _lost_nodes(self) -> set[str]:
        alive = {node.id for node in alive_nodes()}
        return {name for id_, name in self._node_names.items() if id_ not in alive}

    @contextmanager
    def _kept(self) -> Iterator[None]:
        with self._with_driver:
            if self._left_tune:
                raise RuntimeError("the study went on without Tune")
            try:
                yield
            except Exception as error:  # noqa: BLE001 - kept, logged and raised by `outcome`
                _log.exception("the study cannot go on")
                self.error = self.error or error


class _Searcher(Searcher):
    def __init__(self, study: _StudyOnTune) -> None:
        super().__init__()
        self._study = study

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]  # FINISHED is a str
        return self._study.ask(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._study.hear(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if not error:  # an error comes again, with its cause, as on_trial_error
            self._study.end(trial_id, result)

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text("{}")  # nothing to remember: the rows are the memory

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a study resumes from its rows, never from Tune's snapshots")


class _Callback(tune.Callback):
    def __init__(self, study: _StudyOnTune) -> None:
        self._study = study

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._study.look(trials)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._study.fail(trial)


class _Stopper(tune.Stopper):
    def __init__(self, study: _StudyOnTune) -> None:
        self._study = study

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._study.must_stop


def _gist(error: BaseException) -> str:
    """The last line of Ray's text, which says what happened after all the circumstances."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:MESSAGE_LENGTH]


def _error_of(trial: Trial) -> object:
    """The exception that Tune has just written down for the trial."""
    path = trial.pickled_error_file
    return pickle.loads(Path(path).read_bytes()) if path else "Tune kept no error"
