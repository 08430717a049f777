"""From a search-space file to a study that could start: engine, live space, inert knobs, first launches, cost.

Nothing here starts a server or needs a GPU.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specsearch.config import StudyConfig, load_study, parse_duration, with_budget
from specsearch.engines import Engine, make_engine
from specsearch.errors import ConfigError
from specsearch.host.probe import node_problems
from specsearch.launch import LaunchPlan
from specsearch.runners.workplace import gpus_per_trial, uses_nvml
from specsearch.search_space import Point, SearchSpace, Value, point_key
from specsearch.study import count_searched, typical_seconds
from specsearch.trial import TrialKind, TrialResult, TrialStatus, short_name

# Seconds a launch may take before anything is known: 10 to 30 minutes for a large model (product.md's figure,
# the middle is taken), the log of a simulated server otherwise.
GUESSED_LAUNCH_S = 20 * 60.0
GUESSED_SIMULATED_LAUNCH_S = 7.0
GUESSED_LOG_BYTES = 8 << 20


@dataclass(frozen=True)
class Prepared:
    """A study ready to be run: the space knows the engine's rules and holds no inert parameter."""

    config: StudyConfig
    engine: Engine
    warnings: tuple[str, ...]
    inert: Mapping[str, str]  # parameters that are not searched, and why

    @property
    def gpus_per_trial(self) -> int:
        return gpus_per_trial(self.config)

    def first_points(self) -> list[tuple[str, Point]]:
        """What is launched whatever the results: the start baseline, then the seed points; no point twice."""
        space = self.config.space
        named = [("baseline", space.start_baseline(self.config.baseline))]
        named += [("seed", space.canonical(point)) for point in self.config.seed_points]
        first: dict[str, tuple[str, Point]] = {}
        for kind, point in named:
            if not (kind == "seed" and space.problems(point)):
                first.setdefault(point_key(point), (kind, point))
        return list(first.values())

    def rejected_seeds(self) -> list[tuple[int, list[str]]]:
        """Seed points, by their place in the file from 1, that cannot be run, and why."""
        space = self.config.space
        found = [(n, space.problems(space.canonical(point))) for n, point in enumerate(self.config.seed_points, 1)]
        return [(number, problems) for number, problems in found if problems]

    def first_plans(self) -> list[tuple[str, LaunchPlan]]:
        """The launch plans of the first points, as they would be on the first node; the port is a placeholder."""
        plans = []
        for number, (kind, point) in enumerate(self.first_points()):
            plan = self.engine.plan(
                point,
                port=30000,
                log_path=Path(f"logs/t{number:04d}-1.log"),
                tmpdir=Path("/tmp"),
                gpu_indices=tuple(range(self.gpus_per_trial)),
                trial="dry-run",
            )
            plans.append((f"t{number:04d} {kind} {short_name(point)}", plan))
        return plans


@dataclass(frozen=True, slots=True)
class Cost:
    """What is left to spend, as far as it can be told; limits of the budget are not applied to `unlimited_hours`."""

    launches: int
    launch_s: float  # of one
    hours: float
    gpu_hours: float
    unlimited_hours: float
    disk_bytes: int
    guessed: bool  # no trial was measured yet


def load_prepared(arguments: argparse.Namespace) -> Prepared:
    """The study that the options of `tune` describe; raises ConfigError with every mistake."""
    config = with_engine_python(load_study(arguments.space), arguments.engine_python)
    wall_time_s = None if arguments.time_budget is None else _time_budget(arguments.time_budget)
    config = with_budget(config, trials=arguments.trials, wall_time_s=wall_time_s)
    config = replace(
        config, force_inert=(*config.force_inert, *arguments.force_knob), keep_requests=arguments.keep_requests
    )
    return prepare(config, dry_run=arguments.dry_run)


def _time_budget(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError("--time-budget", [str(error)]) from None


def with_engine_python(config: StudyConfig, python: str | None) -> StudyConfig:
    """The study with another interpreter for its engine, given relative to the working folder."""
    if python is None:
        return config
    path = str(Path(python).expanduser().absolute()) if "/" in python else python
    return replace(config, engine=replace(config.engine, python=path))


def host_problems(config: StudyConfig, results_dir: Path) -> tuple[list[str], list[str]]:
    """What makes this host unfit for the study, and what is only worth a warning; sentences."""
    gpus = gpus_per_trial(config) if uses_nvml(config) else 0
    problems, warnings = node_problems(gpu_count=gpus, results_dir=results_dir, needs_nvml=gpus > 0)
    return list(problems), list(warnings)


def prepare(config: StudyConfig, *, dry_run: bool) -> Prepared:
    """Check everything that can be known before a launch; raises ConfigError that lists every mistake."""
    engine = make_engine(config.engine, config.load_points)
    space = replace(config.space, rules=engine.rules)
    fitness = engine.fitness(space, config.load_points, dry_run=dry_run)
    inert = {name: why for name, why in fitness.inert.items() if name in space.by_name}
    dropped = {name for name in inert if name not in config.force_inert}
    unknown = [name for name in config.force_inert if name not in space.by_name]
    space = replace(space, parameters=tuple(p for p in space.parameters if p.name not in dropped))
    config = replace(
        config,
        space=space,
        seed_points=tuple(_without(point, dropped) for point in config.seed_points),
        baseline=_without(config.baseline, dropped),
        force_inert=tuple(name for name in inert if name not in dropped),
    )
    errors = [*fitness.errors, *_empty_space(space), *_baseline_problems(config)]
    errors += [f"--force-knob {name}: the space has no such parameter" for name in unknown]
    if errors:
        raise ConfigError(str(config.source), errors)
    warnings = [*config.warnings, *fitness.warnings, *_inert_warnings(inert, config)]
    return Prepared(config, engine, tuple(dict.fromkeys(warnings)), {name: inert[name] for name in dropped})


def _without(point: Point, names: set[str]) -> dict[str, Value]:
    return {name: value for name, value in point.items() if name not in names}


def _inert_warnings(inert: Mapping[str, str], config: StudyConfig) -> list[str]:
    said = []
    for name, why in inert.items():
        forced = name in config.force_inert
        said.append(f"{name}: {why}; " + ("searched all the same, as forced" if forced else "not searched"))
    return said


def _empty_space(space: SearchSpace) -> list[str]:
    points = space.valid_points(_SMALL)
    return ["no point of the space can be launched; see its constraints and the engine's rules"] if points == [] else []


def _baseline_problems(config: StudyConfig) -> list[str]:
    problems = config.space.problems(config.space.start_baseline(config.baseline))
    return [f"baseline: {problem}" for problem in problems]


_SMALL = 20_000  # combinations; a larger space is not enumerated just to see whether it is empty


def cost(prepared: Prepared, rows: list[TrialResult]) -> Cost:
    """At most so much is left to spend, from the budget and what a launch has taken so far (or a guess)."""
    budget, measured = prepared.config.budget, typical_seconds(rows)
    guess = GUESSED_SIMULATED_LAUNCH_S if prepared.engine.is_simulated else GUESSED_LAUNCH_S
    seconds = measured or guess
    points = prepared.config.space.valid_points(_SMALL)
    launches = min(n for n in (budget.trials, len(points) if points else None, 10**9) if n is not None)
    has_baseline = any(row.kind == TrialKind.BASELINE and row.status == TrialStatus.OK for row in rows)
    # Beside the search there are the start baseline and the matched plain run of the best.
    total = max(0, launches - count_searched(rows)) + (1 if has_baseline else 2)
    unlimited = total * seconds / 3600
    gpus = prepared.gpus_per_trial
    hours = min(unlimited, (budget.wall_time_s or math.inf) / 3600, (budget.gpu_hours or math.inf) / max(gpus, 1))
    return Cost(
        launches=total,
        launch_s=seconds,
        hours=hours,
        gpu_hours=hours * gpus,
        unlimited_hours=unlimited,
        disk_bytes=total * GUESSED_LOG_BYTES,
        guessed=not measured,
    )
