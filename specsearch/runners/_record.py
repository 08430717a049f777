"""What becomes known while a trial runs, and the result made of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from specsearch.clock import Clock
from specsearch.engines import Identity
from specsearch.errors import AbortedTrial, TrialError
from specsearch.launch import LaunchPlan
from specsearch.metrics import TRIAL_FACTS
from specsearch.search_space import Point
from specsearch.trial import Capture, Measurement, Phase, Progress, StopFlag, TrialRequest, TrialResult, TrialStatus


@dataclass
class TrialRecord:
    """Filled phase by phase; `result` can be made at any moment."""

    request: TrialRequest
    clock: Clock
    stop: StopFlag
    on_progress: Callable[[Progress], None]
    phase: Phase = Phase.CLAIM
    phase_s: dict[str, float] = field(default_factory=dict)
    started_at: float = 0.0
    plan: LaunchPlan | None = None
    exit_code: int | None = None
    identity: Identity | None = None
    host_facts: Mapping[str, str] = field(default_factory=dict)
    model_facts: Mapping[str, str] = field(default_factory=dict)
    captures: Sequence[Capture] = ()
    queue_limited: bool | None = None
    draft_context: int | None = None  # the drafter's own, where the server stretches it
    log_from: dict[str, int] = field(default_factory=dict)  # load point → size of the log when its measurement began
    flushed: bool = False  # whether the server's counters began anew with the last repeat
    facts: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(TRIAL_FACTS))
    measurements: list[Measurement] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: TrialError | None = None
    ended_in: Phase | None = None
    node_unfit: str | None = None

    @contextmanager
    def during(self, phase: Phase, note: str = "") -> Iterator[None]:
        """Time a phase; the phase in which the trial's error was raised is where the trial ended."""
        self.phase = phase
        self.say(note)
        began = self.clock.monotonic()
        try:
            yield
        except TrialError as error:
            if self.error is None:
                self.error, self.ended_in = error, phase
            raise
        finally:
            self.phase_s[phase.value] = self.phase_s.get(phase.value, 0.0) + self.clock.monotonic() - began

    def say(self, note: str, *, output_tokens_per_s: float | None = None, accept_length: float | None = None) -> None:
        """Tell whoever watches where the trial is."""
        self.on_progress(Progress(self.phase, note, output_tokens_per_s, accept_length))

    def raise_if_stopped(self) -> None:
        """End the trial when the user or the budget asked for it."""
        if self.stop.reason is not None:
            raise AbortedTrial(self.stop.reason, f"ended by the {self.stop.reason} during {self.phase}")

    def result(self, *, engine: str, version: str | None, gpu_count: int, node: str) -> TrialResult:
        """The row of this attempt."""
        error, identity = self.error, self.identity
        return TrialResult(
            number=self.request.number,
            attempt=self.request.attempt,
            kind=self.request.kind,
            point=self.request.point,
            status=TrialStatus(error.status) if error else TrialStatus.OK,
            reason=error.reason if error else None,
            message=str(error) if error else None,
            detail=error.detail if error else None,
            advice=error.advice if error else None,
            lesson=lesson_of(error, self.request.point) if error else identity.lesson if identity else None,
            failure_facts=dict(error.facts) if error else {},
            phase=self.ended_in or self.phase,
            command=self.plan.shell() if self.plan else None,
            serve_command=self.plan.serve() if self.plan else None,
            log_path=str(self.plan.log_path) if self.plan else None,
            exit_code=self.exit_code,
            started_at=self.started_at,
            ended_at=self.clock.time(),
            phase_s=dict(self.phase_s),
            gpu_count=gpu_count,
            node=node,
            host_facts=dict(self.host_facts),
            engine=engine,
            engine_version=(identity.version if identity else None) or version,
            effective=identity.settings if identity else {},
            effective_key=identity.key if identity else None,
            overridden=identity.overridden if identity else (),
            effective_env=identity.environment if identity else None,
            pins=dict(self.request.pins),
            model_facts=dict(self.model_facts),
            captures=self.captures,
            queue_limited=self.queue_limited,
            draft_context_overridden=self.draft_context is not None,
            facts=dict(self.facts),
            measurements=tuple(self.measurements),
            warnings=tuple(self.warnings),
            node_unfit=self.node_unfit,
        )


def lesson_of(error: TrialError, point: Point) -> str | None:
    """The error's lesson, bound to the values that this point has: a constraint over the space, or None."""
    bound = [name for name in point if any(fnmatchcase(name, pattern) for pattern in error.within)]
    elsewhere = [f"{name} != {point[name]!r}" for name in sorted(bound)]
    words = [*([error.lesson] if error.lesson else []), *elsewhere]
    return " or ".join(words) or None
