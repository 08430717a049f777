"""What every executor shares: the rows of a study, what is running, and when it is over.

    next() ─► TrialRequest ─► executor runs it ─► finish() or lost() ─► next() …
           ─► Wait: something must end first
           ─► Done

One thread calls a driver. `stop` may be set from anywhere.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from specsearch.clock import Clock
from specsearch.errors import HostNotFit
from specsearch.runners.workplace import Workplace
from specsearch.search_space import point_key
from specsearch.study import HOST_REASONS, Done, Launch, Reject, Study, Wait, known_effective, known_keys, settle
from specsearch.trial import Phase, Progress, StopFlag, TrialKind, TrialRequest, TrialResult, TrialStatus

USER = "user"
BUDGET = "budget"
MOST_HOST_FAILURES = 2  # in a row, on one node
MOST_HANGS = 2  # different configurations in a row, on one node
HANGS = ("startup_hang", "nccl_hang")


class RunTrial(Protocol):
    """Whatever runs one attempt; runners.server.run_trial, or a table in tests."""

    def __call__(
        self,
        request: TrialRequest,
        workplace: Workplace,
        *,
        clock: Clock,
        stop: StopFlag,
        on_progress: Callable[[Progress], None],
    ) -> TrialResult: ...


class Store(Protocol):
    """Where rows go."""

    def note_running(self, request: TrialRequest) -> None:
        """Remember a launch that has no row yet."""

    def note_measured(self, result: TrialResult) -> None:
        """Keep what was measured while the launch is taken down."""

    def measured(self, request: TrialRequest) -> TrialResult | None:
        """What was kept of a launch without a row."""

    def commit(self, result: TrialResult) -> None:
        """Store a row, whole or not at all."""

    def forget_running(self, request: TrialRequest) -> None:
        """The launch has its row."""


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial was handed to the executor."""

    request: TrialRequest


@dataclass(frozen=True, slots=True)
class TrialMoved:
    """A running trial said where it is."""

    request: TrialRequest
    progress: Progress


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A row was stored."""

    result: TrialResult


@dataclass(frozen=True, slots=True)
class StudyEnded:
    """Nothing more will be launched and nothing runs; `why` is a sentence."""

    why: str


Event = TrialStarted | TrialMoved | TrialEnded | StudyEnded
Observer = Callable[[Event], None]


class StudyStop(StopFlag):
    """The stop of a whole study: set from outside, or `budget` by itself once the deadline has passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadline_s: float | None = None
        self._reason: str | None = None
        super().__init__()

    @property
    def reason(self) -> str | None:
        """Why to stop; None while there is no reason to."""
        if self._reason is None and self.deadline_s is not None and self._clock.monotonic() >= self.deadline_s:
            self._reason = BUDGET
        return self._reason

    @reason.setter
    def reason(self, reason: str | None) -> None:
        self._reason = reason


@dataclass(slots=True)
class _Running:
    request: TrialRequest
    started_at: float
    phase: Phase | None = None
    measured: TrialResult | None = None


class StudyDriver:
    """The state of one run of a study; a function of the rows but for what is running now."""

    def __init__(
        self,
        study: Study,
        store: Store,
        clock: Clock,
        *,
        results: Iterable[TrialResult] = (),
        unfinished: Iterable[TrialRequest] = (),
        engine: str = "",
        gpus_per_trial: int = 0,
        logs_dir: Path | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """`results` and `unfinished` are what an earlier run left: its rows, and its launches without one."""
        self.study, self.store, self.clock = study, store, clock
        self.results = list(results)
        self.observers = list(observers)
        self.nodes: set[str] = set()  # every node that can take trials; the executor says which
        self.unfit: dict[str, str] = {}  # nodes that take no more, and why
        self._engine, self._gpus_per_trial, self._logs_dir = engine, gpus_per_trial, logs_dir
        self._running: dict[int, _Running] = {}
        self._host_failures: Counter[str] = Counter()
        self._hung: dict[str, dict[str, str]] = {}  # by node: points that hung since one started, and their names
        self._spent_before_s = union_s([(row.started_at, row.ended_at) for row in self.results])
        self._began_s = clock.monotonic()
        self._waits_for: tuple[int, tuple[int, ...]] | None = None  # how things stood when there was only to wait
        self._done: Done | None = None
        self.stop = StudyStop(clock)
        for request in unfinished:
            self._close_unfinished(request)

    def begin(self) -> None:
        """Executors call it when trials can start: only from now on time is spent."""
        self._began_s = self.clock.monotonic()
        wall_time_s = self.study.budget.wall_time_s
        if wall_time_s is not None:
            self.stop.deadline_s = self._began_s + wall_time_s - self._spent_before_s

    @property
    def elapsed_s(self) -> float:
        """Wall time that the study has used: while earlier rows were made, and this run so far."""
        return self._spent_before_s + self.clock.monotonic() - self._began_s

    @property
    def pending(self) -> list[TrialRequest]:
        """What is running."""
        return [running.request for running in self._running.values()]

    def next(self) -> TrialRequest | Wait | Done:
        """What to do now; raises HostNotFit once no node is left and nothing runs."""
        while True:
            action = self._stopped() or self._next_action()
            match action:
                case Launch(request):
                    if self._is_known(request):
                        self._write(request, TrialStatus.SKIPPED_DUPLICATE, "same_configuration", "proposed again")
                        continue
                    return self._start(request) if self._has_a_node() else Wait()
                case Reject(request, problems, reason):
                    self._write(request, TrialStatus.REJECTED, reason, "; ".join(problems))
                case Done():
                    return self._end(action)
                case Wait():
                    return action

    def progressed(self, request: TrialRequest, progress: Progress) -> None:
        """A running trial says where it is."""
        running = self._running.get(request.number)
        if running is not None:
            running.phase = progress.phase
            if progress.measured is not None and running.measured is None:
                running.measured = progress.measured
                self.store.note_measured(progress.measured)
            self._tell(TrialMoved(request, progress))

    def finish(self, request: TrialRequest, result: TrialResult) -> None:
        """Store what a trial came back with, before anything else, and judge its node by it."""
        result = self._checked(settle(result, self.results))
        self._commit(request, result)
        self._judge_node(result)

    def lost(self, request: TrialRequest, reason: str, message: str, *, node: str | None = None) -> None:
        """Write the row of a trial that can no longer do it itself: its process or its node is gone."""
        running = self._running[request.number]
        if running.measured is not None:
            self.finish(request, self._rescued(running.measured, message))
            return
        status = TrialStatus.FAILED
        if self.stop.reason is not None:  # a hard stop takes the trial's process with it
            status, reason = TrialStatus.ABORTED, self.stop.reason
        self._write(request, status, reason, message, node=node, started_at=running.started_at, phase=running.phase)

    def hand_back(self, request: TrialRequest) -> None:
        """The trial never started and is to be asked for again; the place it was given takes no trials."""
        del self._running[request.number]
        self.store.forget_running(request)

    def node_unfit(self, node: str, why: str) -> None:
        """This node takes no more trials in this run."""
        self.unfit.setdefault(node, why)

    def _next_action(self) -> Launch | Reject | Wait | Done:
        """Asks the study anew only once something has started or ended: time alone never ends a wait."""
        stand = (len(self.results), tuple(self._running))
        if stand == self._waits_for:
            return Wait()
        action = self.study.next_action(self.results, self.pending, elapsed_s=self.elapsed_s)
        self._waits_for = stand if isinstance(action, Wait) else None
        return action

    def _stopped(self) -> Wait | Done | None:
        if self.stop.reason is None:
            return None
        return Wait() if self._running else Done(_WHY_STOPPED.get(self.stop.reason, self.stop.reason))

    def _has_a_node(self) -> bool:
        """Whether some node still takes trials; raises HostNotFit when none does and nothing runs."""
        if not self.nodes or self.nodes - self.unfit.keys():
            return True
        if self._running:
            return False
        whys = [f"{node}: {why}" for node, why in sorted(self.unfit.items())]
        raise HostNotFit("no node is left that takes trials; the rows are kept and the same command goes on", whys)

    def _is_known(self, request: TrialRequest) -> bool:
        """The last line against measuring a point twice, whatever a sampler proposes."""
        searched = request.kind == TrialKind.SEARCH and request.attempt == 1
        return searched and point_key(request.point) in known_keys(self.results, self.pending)

    def _start(self, request: TrialRequest) -> TrialRequest:
        self.store.note_running(request)
        self._running[request.number] = _Running(request, self.clock.time())
        self._tell(TrialStarted(request))
        return request

    def _end(self, done: Done) -> Done:
        if self._done is None:
            self._done = done
            self._tell(StudyEnded(done.why))
        return self._done

    def _close_unfinished(self, request: TrialRequest) -> None:
        if any((row.number, row.attempt) == (request.number, request.attempt) for row in self.results):
            self.store.forget_running(request)  # killed between the row and forgetting the note
        elif measured := self.store.measured(request):
            self.finish(request, self._rescued(measured, "the run that had launched it ended before it did"))
        else:
            self._write(request, TrialStatus.FAILED, "interrupted", "the run that had launched it ended before it did")

    def _rescued(self, measured: TrialResult, why: str) -> TrialResult:
        """The row of a trial that was measured and whose teardown nobody saw the end of."""
        warning = f"measured in full; the end of its server was not seen: {why}"
        return replace(measured, warnings=(*measured.warnings, warning))

    def _checked(self, result: TrialResult) -> TrialResult:
        """Only a trial with a number to rank by is ok, and only the first of equal ones."""
        if result.status != TrialStatus.OK:
            return result
        twin = known_effective(self.results).get(result.effective_key or "")
        if twin is not None and twin != result.number:
            why = f"runs what t{twin:04d} ran, which was measured meanwhile"
            return _turned(result, TrialStatus.SKIPPED_DUPLICATE, "same_effective_configuration", why)
        if self.study.objective.score(result.measurements) is None:
            why = f"{self.study.objective.metric} has no positive value at every load point"
            return _turned(result, TrialStatus.INVALID, "no_number", why)
        return result

    def _judge_node(self, result: TrialResult) -> None:
        node = result.node
        if node is None:
            return
        if result.node_unfit is not None:
            self.node_unfit(node, result.node_unfit)
        host_failed = result.status == TrialStatus.FAILED and result.reason in HOST_REASONS
        self._host_failures[node] = self._host_failures[node] + 1 if host_failed else 0
        self._judge_hang(node, result)
        if self._host_failures[node] >= MOST_HOST_FAILURES:
            self.node_unfit(node, f"{MOST_HOST_FAILURES} failures of the host in a row, the last: {result.message}")

    def _judge_hang(self, node: str, result: TrialResult) -> None:
        """One configuration that hangs at its start may be to blame itself; two in a row speak against the node."""
        if result.status != TrialStatus.FAILED or result.reason not in HANGS:
            self._hung.pop(node, None)
            return
        hung = self._hung.setdefault(node, {})
        hung[point_key(result.point)] = result.name
        if len(hung) >= MOST_HANGS:
            who = " and ".join(list(hung.values())[-MOST_HANGS:])
            self.node_unfit(
                node, f"{who} hung one after the other while starting: {result.message}; {result.advice or ''}"
            )

    def _write(
        self,
        request: TrialRequest,
        status: TrialStatus,
        reason: str,
        message: str,
        *,
        node: str | None = None,
        started_at: float | None = None,
        phase: Phase | None = None,
    ) -> None:
        """The row of a request that no executor made a result of."""
        now = self.clock.time()
        log = self._logs_dir / request.log_name if self._logs_dir else None
        result = TrialResult(
            number=request.number,
            attempt=request.attempt,
            kind=request.kind,
            point=request.point,
            status=status,
            reason=reason,
            message=message,
            phase=phase,
            log_path=str(log) if log and log.exists() else None,
            started_at=now if started_at is None else started_at,
            ended_at=now,
            gpu_count=0 if started_at is None else self._gpus_per_trial,
            node=node,
            engine=self._engine,
        )
        self._commit(request, settle(result, self.results))

    def _commit(self, request: TrialRequest, result: TrialResult) -> None:
        self.store.commit(result)
        self.results.append(result)
        self._running.pop(request.number, None)
        self.store.forget_running(request)
        self._tell(TrialEnded(result))

    def _tell(self, event: Event) -> None:
        for observe in self.observers:
            observe(event)


_WHY_STOPPED = {USER: "stopped by the user", BUDGET: "the time budget is used up"}


def _turned(result: TrialResult, status: TrialStatus, reason: str, message: str) -> TrialResult:
    return replace(result, status=status, reason=reason, message=message, phase=Phase.MEASURE)


def union_s(intervals: Collection[tuple[float, float]]) -> float:
    """Seconds covered by at least one of the intervals."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
