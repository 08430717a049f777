"""Waiting for a starting server: patience while its log grows, an early end when it dies, hangs or is a stranger."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specsearch.clock import Clock
from specsearch.config import Limits
from specsearch.engines import Engine, LogFacts, Server
from specsearch.errors import FailedTrial, InfeasibleTrial, TrialError
from specsearch.host.gpus import GpuReading, Gpus
from specsearch.host.processes import ServerProcess
from specsearch.launch import LaunchPlan
from specsearch.runners._record import TrialRecord
from specsearch.trial import Phase

_LONGEST_LOG = 64 << 20  # a log beyond this is read from its end
_LAST_BYTES = 4096
_PEER_TO_PEER = "env.NCCL_P2P_"  # how NCCL may reach another GPU
_HEALTH_TIMEOUT_S = 25.0  # SGLang's /health generates a token and waits up to 20 s for it


def read_log(path: Path, start: int = 0, end: int | None = None) -> str:
    """The log as text, from one byte to another; empty when there is none yet."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2) if end is None else end
            begin = file.seek(max(start, size - _LONGEST_LOG, 0))
            return file.read(max(0, size - begin)).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def log_size(plan: LaunchPlan | None) -> int:
    """Bytes that the server has logged."""
    return plan.log_path.stat().st_size if plan and plan.log_path.exists() else 0


def last_line(path: Path) -> str:
    """The last line of the log, for whoever watches."""
    size = path.stat().st_size if path.exists() else 0
    lines = [line for line in read_log(path, max(0, size - _LAST_BYTES)).splitlines() if line.strip()]
    return lines[-1].strip()[:120] if lines else ""


@dataclass
class _LogWatch:
    """Tells how long a log has been silent."""

    path: Path
    clock: Clock
    size: int = -1
    changed_at: float = 0.0

    seen: int = -1

    def silent_s(self) -> float:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self.size:
            self.size, self.changed_at = size, self.clock.monotonic()
        return self.clock.monotonic() - self.changed_at

    def has_grown(self) -> bool:
        """Whether there is anything new since this was asked last."""
        before, self.seen = self.seen, self.size
        return before != self.size


def wait_until_ready(
    record: TrialRecord,
    engine: Engine,
    server: Server,
    process: ServerProcess,
    limits: Limits,
    *,
    gpus: Gpus,
    poll_s: float,
) -> None:
    """Return once the server says it is ready and its log agrees.

    Raises the engine's own failure when it died, `nccl_hang` or `startup_hang` after `limits.silence_s` without a new
    line, `startup_hard_cap` after `limits.start_s`, AbortedTrial when the study is stopped.
    """
    assert record.plan is not None
    path, clock = record.plan.log_path, record.clock
    watch, began, log = _LogWatch(path, clock), clock.monotonic(), LogFacts()
    while True:
        record.raise_if_stopped()
        raise_if_dead(record, engine, process)
        silent_s = watch.silent_s()
        if watch.has_grown():  # a log may be large, and reading it takes its time
            log = engine.read_log(read_log(path))
        if log.ready and server.is_healthy(_HEALTH_TIMEOUT_S):
            return
        if log.hopeless:
            raise engine.failure(read_log(path), exit_code=None, phase=Phase.READY)
        if silent_s > limits.silence_s:
            raise hang(record, log, gpus.read(), silent_s, limits.silence_s)
        _raise_if_late(record, clock.monotonic() - began, limits)
        record.say(last_line(path))
        clock.sleep(poll_s)


def hang(record: TrialRecord, log: LogFacts, gpus: Sequence[GpuReading], silent_s: float, limit_s: float) -> TrialError:
    """Why a server that falls silent while it starts is given up.

    A first collective that never completes shows GPUs at full use and hardly any power. Where the point sets how
    NCCL reaches its peers, that value is to blame; else it is the node.
    """
    assert record.plan is not None
    message = f"the server logged nothing for {silent_s:.0f} s while starting (limit {limit_s:.0f} s)"
    line, facts = last_line(record.plan.log_path), _gpu_facts(gpus)
    if not log.in_collective:
        advice = "see how far its log came; a start that takes longer in silence wants limits.silence raised"
        return FailedTrial("startup_hang", message, detail=line, advice=advice, facts=facts)
    message = f"{message}, and its last lines are those of NCCL: a first collective that does not complete"
    advice = "check IOMMU and ACS, which break peer-to-peer over PCIe, or try NCCL_P2P_DISABLE=1"
    if any(name.startswith(_PEER_TO_PEER) for name in record.request.point):
        within = (f"{_PEER_TO_PEER}*",)
        return InfeasibleTrial("nccl_hang", message, detail=line, advice=advice, facts=facts, within=within)
    return FailedTrial("nccl_hang", message, detail=line, advice=advice, facts=facts)


def _gpu_facts(gpus: Sequence[GpuReading]) -> dict[str, str]:
    """What the GPUs did meanwhile, from the least to the most."""
    shares = sorted(gpu.utilization for gpu in gpus if gpu.utilization is not None)
    watts = sorted(gpu.power_w for gpu in gpus if gpu.power_w is not None)
    used = sorted(gpu.used_bytes for gpu in gpus)
    facts = {
        "gpu_utilization": f"{shares[0]:.0%} to {shares[-1]:.0%}" if shares else None,
        "gpu_power": f"{watts[0]:.0f} to {watts[-1]:.0f} W" if watts else None,
        "gpu_memory_used": f"{used[0] / 2**30:.1f} to {used[-1] / 2**30:.1f} GiB" if used else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _raise_if_late(record: TrialRecord, waited_s: float, limits: Limits) -> None:
    assert record.plan is not None
    if waited_s > limits.start_s:
        raise FailedTrial(
            "startup_hard_cap",
            f"the server was not ready after {waited_s:.0f} s (limit {limits.start_s:.0f} s) though it still logs",
            detail=last_line(record.plan.log_path),
            advice="raise limits.start in the search-space file if a start really takes that long",
        )


def raise_if_dead(record: TrialRecord, engine: Engine, process: ServerProcess) -> None:
    """End the trial with the engine's own reason when its server has exited."""
    assert record.plan is not None
    exit_code = process.exit_code()
    if exit_code is not None:
        record.exit_code = exit_code
        raise engine.failure(read_log(record.plan.log_path), exit_code=exit_code, phase=record.phase)


def require_our_server(server: Server) -> None:
    """Nothing is measured on a stranger's server."""
    if not server.is_ours():
        raise FailedTrial(
            "wrong_server",
            "the server that answers on our port is not the one that was launched",
            advice="find out who listens there; specsearch leaves it alone",
        )


def require_generation(server: Server, timeout_s: float) -> None:
    """A health endpoint may say yes while nothing is generated; the first request may still compile kernels."""
    if not server.generates(timeout_s):
        raise FailedTrial(
            "hang_at_readiness",
            f"the server says it is healthy but a first generation brought nothing (time limit {timeout_s:.0f} s)",
            advice="see its log; a scheduler that hangs answers /health all the same",
        )
