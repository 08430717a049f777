"""One server launch at one configuration, from request to result.

request ─► claim ─► gpus_free ─► launch ─► ready ─► verify ─► warm_up ─► measure ─► teardown ─► memory_free
   ─► result; any phase may end it: infeasible · failed · invalid · skipped_duplicate · aborted · stopped_early
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from specsearch.metrics import RequestRecord
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, is_plain

SIMULATED = "simulated"  # the name of the engine whose numbers are never compared with a real one's


class TrialStatus(StrEnum):
    """How a trial ended; docs/architecture.md says what each means for ranking, sampler and retries."""

    OK = "ok"
    STOPPED_EARLY = "stopped_early"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    INVALID = "invalid"
    REJECTED = "rejected"
    SKIPPED_DUPLICATE = "skipped_duplicate"
    ABORTED = "aborted"


class Phase(StrEnum):
    """Where a trial is, or where it ended."""

    CLAIM = "claim"
    GPUS_FREE = "gpus_free"
    LAUNCH = "launch"
    READY = "ready"
    VERIFY = "verify"
    WARM_UP = "warm_up"
    MEASURE = "measure"
    TEARDOWN = "teardown"
    MEMORY_FREE = "memory_free"


class TrialKind(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    SEED = "seed"
    SEARCH = "search"
    MATCHED_PLAIN = "matched_plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What is to be launched."""

    number: int
    attempt: int  # 1 for the first try
    kind: TrialKind
    point: Point  # canonical
    known_effective: Mapping[str, int] = field(default_factory=dict)  # effective key → trial number
    pins: Point = field(default_factory=dict)  # what the baseline resolved to, given to every later trial

    @property
    def name(self) -> str:
        return f"t{self.number:04d} {short_name(self.point)}"

    @property
    def log_name(self) -> str:
        """The file name of the server's log."""
        return f"t{self.number:04d}-{self.attempt}.log"


@dataclass(frozen=True, slots=True)
class Capture:
    """One graph that the server captured at its start, as far as it told; sizes are batch sizes."""

    name: str  # such as `target verify` or `draft decode`
    seconds: float | None = None
    memory_gb: float | None = None
    available_gb: float | None = None  # free before
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One repeat of one load point; `values` maps names of metrics.METRICS to numbers, None where unknown."""

    workload: str
    workload_digest: str
    workload_kind: str
    concurrency: int
    repeat: int  # from 0
    values: Mapping[str, float | None]
    accepted_histogram: tuple[int, ...] | None = None  # verify steps that accepted 0, 1, 2 … drafts
    accept_source: str = "none"  # requests: counted drafts; tokens: completion tokens per verify step; none
    started_at: float = 0.0  # seconds since the epoch
    records: Sequence[RequestRecord] = ()  # every request, where they are asked to be kept

    @property
    def load_point(self) -> str:
        return f"{self.workload}@{self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Everything that is known of one attempt once it has ended; one row of the `trials` table."""

    number: int
    attempt: int
    kind: TrialKind
    point: Point
    status: TrialStatus
    reason: str | None = None
    message: str | None = None
    detail: str | None = None
    advice: str | None = None
    lesson: str | None = None  # a constraint that no further point may violate, learnt from this trial
    failure_facts: Mapping[str, str] = field(default_factory=dict)  # rank, memory asked for, shapes
    phase: Phase | None = None  # where it ended; None when it never started
    command: str | None = None  # the shell line that was run
    serve_command: str | None = None  # the same configuration as one would serve it
    log_path: str | None = None
    exit_code: int | None = None
    started_at: float = 0.0  # seconds since the epoch
    ended_at: float = 0.0
    phase_s: Mapping[str, float] = field(default_factory=dict)  # seconds spent in each phase
    gpu_count: int = 0
    node: str | None = None
    host_facts: Mapping[str, str] = field(default_factory=dict)
    engine: str = ""
    engine_version: str | None = None
    effective: Mapping[str, str] = field(default_factory=dict)  # canonical settings read back from the server
    effective_key: str | None = None
    overridden: Sequence[str] = ()  # "num_draft_tokens: asked 16, runs 4"
    effective_env: Mapping[str, str] | None = None  # None: could not be read
    pins: Point = field(default_factory=dict)  # given because the baseline had resolved to it
    model_facts: Mapping[str, str] = field(default_factory=dict)  # revision and digest of target and drafter
    captures: Sequence[Capture] = ()
    queue_limited: bool | None = None  # whether requests waited for admission while measuring; None: not known
    draft_context_overridden: bool = False  # whether the drafter runs beyond the context it was made for
    facts: Mapping[str, float | None] = field(default_factory=dict)  # metrics of the trial, not of a load point
    measurements: Sequence[Measurement] = ()
    warnings: Sequence[str] = ()
    node_unfit: str | None = None  # why the node takes no more trials; None while it may

    @property
    def name(self) -> str:
        return f"t{self.number:04d} {short_name(self.point)}"

    @property
    def simulated(self) -> bool:
        return self.engine == SIMULATED

    @property
    def gpu_seconds(self) -> float:
        return (self.ended_at - self.started_at) * self.gpu_count


@dataclass(slots=True)
class StopFlag:
    """Set from outside to end a running trial: `reason` is `user` or `budget`; `hard` skips every grace period."""

    reason: str | None = None
    hard: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running trial is; `note` says what is going on in a few words.

    `measured` is the result as it will be unless its teardown fails, from the moment that there is one.
    """

    phase: Phase
    note: str = ""
    output_tokens_per_s: float | None = None
    accept_length: float | None = None
    measured: TrialResult | None = None


def short_name(point: Point) -> str:
    """The configuration in a few words, such as `EAGLE3 3/4/16 graphs LL/Ring`."""
    words = ["plain"] if is_plain(point) else [_speculation(point)]
    for name, value in sorted(point.items()):
        if name in _IN_SPECULATION or value == UNSET:
            continue
        words.append(_word(name, str(value) if not isinstance(value, bool) else value))
    nccl = [word for word in words if word.startswith("=")]
    rest = [word for word in words if word and not word.startswith("=")]
    return " ".join(rest + (["/".join(word[1:] for word in nccl)] if nccl else []))


_IN_SPECULATION = {ALGORITHM, "num_steps", "eagle_topk", "num_draft_tokens"}


def _speculation(point: Point) -> str:
    values = (point.get(name, UNSET) for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    triple = "/".join(str(value) for value in values if value != UNSET)
    return f"{point.get(ALGORITHM, PLAIN)} {triple}".strip()


def _word(name: str, value: str | bool) -> str:
    switch = {"cuda_graph": ("graphs", "eager"), "custom_all_reduce": ("", "no-car")}.get(name)
    if switch and isinstance(value, bool):
        return switch[0] if value else switch[1]
    if name == "draft_model":
        return str(value).rstrip("/").rpartition("/")[2]
    if name.startswith("env.NCCL_"):
        return f"={value}"
    return f"{name.removeprefix('env.')}={str(value).lower() if isinstance(value, bool) else value}"
