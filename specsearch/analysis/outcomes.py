"""How the trials of a study ended, what the failures advise, and where the GPU time went."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from specsearch.analysis.memory import TOO_HIGH, TOO_LOW, drafter, memory_hints
from specsearch.study import latest_attempts
from specsearch.trial import Phase, TrialResult, TrialStatus

_NO_FAILURE = (TrialStatus.OK, TrialStatus.SKIPPED_DUPLICATE)
_NEXT_RUN = "nothing: the next run takes it up again"
_TAKEN_UP = "nothing: a later attempt took it up"

# For rows that bring no advice of their own; docs/errors.md has every reason.
ADVICE: Mapping[str, str] = {
    "arg_rejected": "compare the flag with the --help of the installed version",
    "infeasible_params": "the draft tree holds fewer tokens than asked for; lower num_draft_tokens",
    "oom_alloc": "lower mem_fraction_static",
    "oom_kv_budget": "raise mem_fraction_static",
    "graph_capture_oom": "smaller cuda_graph_max_bs or mem_fraction_static",
    "graph_capture_failed": "another attention backend, or no graphs",
    "draft_mismatch": "take a drafter that was made for this target",
    "weights_mismatch": "does config.json belong to these weights, and the drafter to this target?",
    "weights_unreadable": "compare the file's size and checksum with the original",
    "host_out_of_memory": "see who uses the node's memory",
    "hub_unreachable": "fetch the model's files beforehand",
    "kernel_cache": "nothing: the next attempt compiles anew",
    "disk_full": "make room on the node's disk",
    "gpu_fault": "look at `dmesg`; the GPU may need a reset",
    "runtime_crash": "read the end of the server's log",
    "gpu_not_free": "end what holds the GPU, or give other GPUs",
    "port_taken": "nothing: the next attempt takes a fresh port",
    "wrong_server": "find out who listens on that port",
    "node_lost": "look at the node",
    "hang": "see how far the server's log came",
    "engine_died": "was it the kernel's out-of-memory killer? `dmesg` tells",
    "unknown": "read the server's log; no known cause fits it",
    "interrupted": _NEXT_RUN,
    "draft_never_accepted": "check the drafter against the algorithm: EAGLE for an EAGLE-3 drafter?",
    "graphs_not_active": "raise cuda_graph_max_bs to the concurrency, or see why capture was skipped",
    "degenerate_output": "compare the text with that of plain decoding",
    "drift": "look for another load on the node",
    "user": _NEXT_RUN,
    "budget": _NEXT_RUN,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempts that ended for one reason."""

    status: str
    reason: str
    trials: tuple[int, ...]  # in order, each once
    attempts: int
    advice: str


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where the time of the attempts went, in GPU-seconds; in seconds where no trial had a GPU."""

    on_gpus: bool
    total_s: float
    by_phase_s: Mapping[str, float]  # in the order in which a trial goes through them; `other` is between them
    lost_s: float  # in attempts that gave no usable number

    @property
    def lost_share(self) -> float:
        return self.lost_s / self.total_s if self.total_s else 0.0

    def to_json(self) -> dict[str, object]:
        """Plain values under the name of their unit."""
        unit = "gpu_seconds" if self.on_gpus else "seconds"
        return {unit: {"total": self.total_s, "by_phase": dict(self.by_phase_s), "lost": self.lost_s}}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How everything that was proposed ended."""

    proposals: int
    attempts: int
    counts: Mapping[str, int]  # by status; the sum is the number of proposals
    failures: tuple[Failure, ...]
    time_spent: TimeSpent

    def to_json(self) -> dict[str, object]:
        """Plain values for json.dumps."""
        return asdict(self) | {"time_spent": self.time_spent.to_json()}


def outcomes(rows: Sequence[TrialResult]) -> Outcomes:
    """How all attempts of a study ended."""
    counts = count_by_status(rows)
    return Outcomes(sum(counts.values()), len(rows), counts, tuple(failures(rows)), time_spent(rows))


def count_by_status(rows: Sequence[TrialResult]) -> dict[str, int]:
    """Trials by the status of their last attempt; the sum is the number of proposals."""
    counts = Counter(row.status for row in latest_attempts(rows))
    return {status.value: counts[status] for status in TrialStatus if counts[status]}


def failures(rows: Sequence[TrialResult]) -> list[Failure]:
    """Attempts without a usable number by reason, most frequent first."""
    decided = {row.number: row.attempt for row in latest_attempts(rows) if not _was_cut_short(row)}
    groups: dict[tuple[str, str, bool], list[TrialResult]] = {}
    for row in rows:
        if row.status not in _NO_FAILURE:
            taken_up = _was_cut_short(row) and decided.get(row.number, 0) > row.attempt
            groups.setdefault((row.status.value, row.reason or "unknown", taken_up), []).append(row)
    hints = memory_hints(rows)
    found = [
        Failure(
            status=status,
            reason=reason,
            trials=tuple(sorted({row.number for row in group})),
            attempts=len(group),
            advice=_TAKEN_UP if taken_up else _advice(reason, group, hints),
        )
        for (status, reason, taken_up), group in groups.items()
    ]
    return sorted(found, key=lambda failure: (-failure.attempts, failure.status, failure.reason))


def _was_cut_short(row: TrialResult) -> bool:
    """Ended by the user, the budget or the end of its run, so that the next run goes on with it."""
    return row.status == TrialStatus.ABORTED or row.reason == "interrupted"


def _advice(reason: str, group: Sequence[TrialResult], hints: Mapping[str, str]) -> str:
    """What the failures say together goes before what each of them advises."""
    drafters = dict.fromkeys(drafter(row) for row in group) if reason in TOO_LOW | TOO_HIGH else {}
    told = [hints[name] for name in drafters if name in hints]
    if told and len(told) == len(drafters):
        return "; ".join(told)
    if all(row.status == TrialStatus.REJECTED for row in group):
        return "correct these points in the search-space file or leave them out; their messages say what they break"
    own = next((row.advice for row in group if row.advice), None)
    return "; ".join([*told, (own or ADVICE.get(reason) or "see message and log of the trial").rstrip(".")])


def time_spent(rows: Sequence[TrialResult]) -> TimeSpent:
    """The time of all attempts by phase, and how much of it brought nothing."""
    on_gpus = any(row.gpu_count for row in rows)
    weight = {id(row): row.gpu_count if on_gpus else 1 for row in rows}
    wall = {id(row): weight[id(row)] * max(row.ended_at - row.started_at, 0.0) for row in rows if row.started_at}
    phases = {
        phase.value: math.fsum(weight[id(row)] * row.phase_s.get(phase.value, 0.0) for row in rows) for phase in Phase
    }
    total = math.fsum(wall.values())
    phases["other"] = max(total - math.fsum(phases.values()), 0.0)
    lost = math.fsum(wall.get(id(row), 0.0) for row in rows if row.status not in _NO_FAILURE)
    used = {name: seconds for name, seconds in phases.items() if seconds > 0}
    return TimeSpent(on_gpus, total, used, lost)
