"""Search-space YAML → validated StudyConfig.

This module and the folder _search_space_file, which holds the grammar, are the only place that knows YAML and pydantic.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from specsearch.errors import ConfigError
from specsearch.launch import is_secret, is_secret_flag, shown
from specsearch.model_files import model_digest
from specsearch.objective import Objective
from specsearch.search_space import IntParameter, Parameter, Point, SearchSpace, Value
from specsearch.study import Budget
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
    gpus: int | None = None  # of the pretended node; None: as many as the study needs
    faults: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How servers are launched; pinned arguments and environment hold in every trial, plain decoding included."""

    type: str  # sglang or simulated
    model: str
    tp_size: int = 8
    python: str | None = None  # interpreter that has the engine; None: the current one
    version: str | None = None  # consulted only where nothing is installed
    command_prefix: tuple[str, ...] = ()  # with placeholders, see launch.py
    stop_command: tuple[str, ...] = ()  # ends a container that outlives its client; {name} stands in it
    args: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    check_drafter: bool = True  # whether a drafter that does not look as if it fitted is refused
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
    keep_requests: bool = False  # whether every request becomes a row, too
    force_inert: tuple[str, ...] = ()  # inert parameters that are searched all the same
    warnings: tuple[str, ...] = ()


def load_study(path: Path) -> StudyConfig:
    """Read a search-space file; raises ConfigError that lists everything wrong with it, with line numbers."""
    from specsearch._search_space_file import read_study  # here, so that the dataclasses come without pydantic

    return read_study(path)


def with_budget(config: StudyConfig, trials: int | None = None, wall_time_s: float | None = None) -> StudyConfig:
    """The study with another budget; None keeps what the file says. Raises ConfigError for a budget of nothing."""
    wrong = {}
    if trials is not None and trials < 1:
        wrong["--trials"] = f"saw {trials}; give 1 or more"
    if wall_time_s is not None and not 0 < wall_time_s < math.inf:
        wrong["--time-budget"] = f"saw {wall_time_s:g} s; give more than 0"
    if wrong:
        raise ConfigError(" and ".join(wrong), list(wrong.values()))
    budget = config.budget
    budget = budget if trials is None else replace(budget, trials=trials)
    return replace(config, budget=budget if wall_time_s is None else replace(budget, wall_time_s=wall_time_s))


_UNIT_S: Mapping[str, float] = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h|d)")
_LONGEST_S = 366 * 86400


def parse_duration(value: str | float) -> float:
    """Seconds from 90, "90", "90s", "30m", "8h" or "1h30m"; raises ValueError with a sentence."""
    text = str(value).replace(" ", "")
    parts = _DURATION.findall(text)
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text):
        seconds = float(text)
    elif parts and "".join(number + unit for number, unit in parts) == text:
        seconds = math.fsum(float(number) * _UNIT_S[unit] for number, unit in parts)
    else:
        raise ValueError(f"expected a time such as 90, 90s, 30m or 8h, saw {str(value)[:40]!r}")
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"expected a time above 0 and within a year, saw {str(value)[:40]!r}")
    return seconds


def to_fingerprint_fields(config: StudyConfig) -> dict[str, str]:
    """What the numbers of a study depend on, flat and readable: engine, model, space, load points, objective.

    Two studies whose fields differ must not share a results folder, and the fields say in what they differ. Budget,
    sampler, cluster, time limits, secrets and the name are not among them. Of a local model or drafter the
    configuration and the names and sizes of the weights count, so that another model under the same path is noticed.
    """
    engine = config.engine
    fields = {
        "engine.type": engine.type,
        "engine.model": engine.model,
        "engine.tp_size": str(engine.tp_size),
        "engine.command_prefix": " ".join(shown(engine.command_prefix)),
        "objective": _objective_text(config.objective),
        "baseline": ", ".join(f"{name} {_text(value)}" for name, value in sorted(config.baseline.items())),
        "space.constraints": " and ".join(sorted(f"({constraint.source})" for constraint in config.space.constraints)),
    }
    fields |= {f"engine.args.{name}": _text(value) for name, value in engine.args.items() if not is_secret_flag(name)}
    fields |= {f"engine.env.{name}": value for name, value in engine.env.items() if not is_secret(name, value)}
    if engine.type == "simulated":
        machine = asdict(engine.simulated)
        fields |= {f"engine.simulated.{name}": json.dumps(value, sort_keys=True) for name, value in machine.items()}
    fields |= {f"space.{parameter.name}": _parameter_text(parameter) for parameter in config.space.parameters}
    fields |= {f"load_points.{point.name}": _load_point_text(point) for point in config.load_points}
    shares = ("failed_request_share", "cached_token_share", "degenerate_share")
    fields |= {f"limits.{name}": f"{getattr(config.limits, name):g}" for name in shares}
    fields |= {f"engine.files.{path}": digest for path in _model_paths(config) if (digest := model_digest(Path(path)))}
    return dict(sorted(fields.items()))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _objective_text(objective: Objective) -> str:
    bounds = f" subject to {', '.join(map(str, objective.subject_to))}" if objective.subject_to else ""
    return f"{objective.metric} at {', '.join(objective.at) or 'all'}, {objective.aggregate}{bounds}"


def _parameter_text(parameter: Parameter) -> str:
    if isinstance(parameter, IntParameter):
        step = f" step {parameter.step}" if parameter.step > 1 else ""
        values = f"int {parameter.low}..{parameter.high}{step}{' log' if parameter.log else ''}"
    else:
        values = "choice " + ", ".join(map(_text, parameter.values))
    conditions = [f"{name} in [{', '.join(map(_text, values))}]" for name, values in sorted(parameter.when.items())]
    return values + (f" when {' and '.join(conditions)}" if conditions else "")


def _load_point_text(point: LoadPoint) -> str:
    requests = f"requests {point.requests_per_repeat} repeats {point.repeats}"
    return f"digest {point.workload.digest} output_tokens {point.output_tokens} {requests}"


def _model_paths(config: StudyConfig) -> list[str]:
    drafter = config.space.by_name.get("draft_model")
    return [config.engine.model, *(str(value) for value in (drafter.all_values() if drafter else ()))]
