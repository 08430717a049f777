"""Search-space YAML → validated StudyConfig; the only place that knows YAML and pydantic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specsearch.search_space import Point, SearchSpace, Value
from specsearch.study import Budget, Objective
from specsearch.workload import LoadPoint


@dataclass(frozen=True, slots=True)
class SimulatedHardware:
    """The machine the simulated engine pretends to be; see engines/simulated/model.py."""

    gpu: str = "rtx-pro-6000"
    target: str = "kimi-k2.5"
    drafter: str = "eagle3"
    time_scale: float = 0.02  # seconds that a second of loading takes; decoding is never scaled
    seed: int = 0
    noise: float = 0.01  # relative standard deviation of a step
    faults: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How servers are launched; pinned arguments and environment hold in every trial, plain decoding included."""

    type: str  # sglang or simulated
    model: str
    tp_size: int = 8
    python: str | None = None  # interpreter that has the engine; None: the current one
    version: str | None = None  # consulted only where nothing is installed
    command_prefix: tuple[str, ...] = ()
    args: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    simulated: SimulatedHardware = field(default_factory=SimulatedHardware)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is waited for what, in seconds, and where numbers stop being believed."""

    start_s: float = 3600.0  # launch to ready, at most
    silence_s: float = 600.0  # a starting server that logs nothing for so long hangs
    request_s: float = 600.0  # one request
    stall_s: float = 60.0  # no token from any request for so long while measuring
    stop_s: float = 60.0  # SIGTERM to SIGKILL
    release_s: float = 120.0  # GPU memory back after teardown, and free before a launch
    failed_request_share: float = 0.01
    cached_token_share: float = 0.05
    degenerate_share: float = 0.1


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """How trials share the cluster."""

    trials_per_node: int = 1
    resource_wait_s: float = 60.0  # how long GPUs held by others are waited for


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """Which sampler proposes."""

    type: str = "tpe"
    seed: int = 0


@dataclass(frozen=True)
class StudyConfig:
    """A search-space file, read and valid. `space` still has NoRules; the engine adds its own."""

    name: str
    source: Path  # the file it came from
    engine: EngineConfig
    space: SearchSpace
    load_points: tuple[LoadPoint, ...]
    objective: Objective = field(default_factory=Objective)
    budget: Budget = field(default_factory=Budget)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    limits: Limits = field(default_factory=Limits)
    seed_points: tuple[Point, ...] = ()
    baseline: Point = field(default_factory=dict)
    force_inert: tuple[str, ...] = ()  # inert parameters that are searched all the same
    warnings: tuple[str, ...] = ()


def load_study(path: Path) -> StudyConfig:
    """Read a search-space file; raises ConfigError that lists everything wrong with it, with line numbers."""
    raise NotImplementedError
