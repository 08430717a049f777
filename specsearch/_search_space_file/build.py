"""The sections of a file put together as a StudyConfig."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specsearch._search_space_file import models, names, workloads
from specsearch._search_space_file.document import Document, Place, did_you_mean, read_document, shown
from specsearch._search_space_file.launching import read_command_prefix, read_stop_command
from specsearch._search_space_file.models import EngineSection, LoadPointSection, WorkloadSection
from specsearch._search_space_file.points import read_baseline, read_seed_points
from specsearch._search_space_file.space import Known, Pinned, check_power_of_two, read_parameters, read_space
from specsearch._search_space_file.speculation_rules import check_speculation
from specsearch._search_space_file.values import absolute, absolute_program, read_value
from specsearch.config import ClusterConfig, EngineConfig, Limits, SamplerConfig, SimulatedHardware, StudyConfig
from specsearch.metrics import METRICS
from specsearch.objective import Bound, Objective
from specsearch.search_space import UNSET, SearchSpace, Value, is_speculative_knob
from specsearch.study import Budget
from specsearch.workload import RANDOM, TEXT, LoadPoint, Workload

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def read_study(path: Path) -> StudyConfig:
    """Read a search-space file; raises ConfigError that lists everything wrong with it."""
    document = read_document(path)
    _check_sections(document)
    engine_section = models.read_tagged(models.ENGINE, document, ("engine",))
    pinned = Pinned()
    engine = _engine(document, engine_section, pinned) if engine_section else None
    known = read_parameters(document, pinned, odd_nccl=bool(engine_section and engine_section.allow_odd_nccl_sizes))
    space = read_space(document, known)
    if engine:
        check_speculation(document, known, drafter_needed=engine.type == "sglang")
    load_points = _load_points(document)
    objective = _objective(document, load_points)
    config = StudyConfig(
        name=_name(document),
        source=path,
        engine=engine or EngineConfig(type="", model=""),
        space=space or SearchSpace(()),
        load_points=tuple(load_points),
        objective=objective,
        budget=_budget(document),
        sampler=_sampler(document),
        cluster=_cluster(document),
        limits=_limits(document),
        seed_points=read_seed_points(document, known, load_points),
        baseline=read_baseline(document, known),
        force_inert=_force_inert(document, known),
    )
    document.raise_problems()
    return replace(config, warnings=tuple(dict.fromkeys(document.warnings)))


def _check_sections(document: Document) -> None:
    for key in document.data:
        if key not in models.SECTIONS:
            known = did_you_mean(key, models.SECTIONS) or f"; allowed are {', '.join(models.SECTIONS)}"
            document.problem((key,), f"unknown section{known}")


def _name(document: Document) -> str:
    if ("name",) not in document.lines:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", document.path.stem).strip("-._") or "study"
    name = document.section(("name",))
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    document.problem(("name",), f"expected letters, digits, dots and dashes, 80 at most, saw {shown(name)}")
    return ""


def _engine(document: Document, section: EngineSection, pinned: Pinned) -> EngineConfig:
    folder = document.folder
    simulated = SimulatedHardware()
    if isinstance(section, models.SimulatedEngineSection):
        fields = section.simulated.model_dump(exclude={"faults"})
        _check_faults(document, section.simulated.faults)
        simulated = SimulatedHardware(**fields, faults=tuple(section.simulated.faults))
    return EngineConfig(
        type=section.type,
        model=absolute(folder, section.model or simulated.target),
        tp_size=section.tp_size,
        python=absolute_program(folder, section.python) if section.python else None,
        version=section.version,
        command_prefix=read_command_prefix(document, section),
        stop_command=read_stop_command(document, section),
        args=_pinned_args(document, section, pinned),
        env=_pinned_env(document, section, pinned),
        check_drafter=section.check_drafter,
        simulated=simulated,
    )


def _check_faults(document: Document, faults: Sequence[Mapping[str, object]]) -> None:
    """Whether each says its kind; which kinds there are is the engine's to know."""
    for index, fault in enumerate(faults):
        if fault.get("kind") is None:
            document.problem(("engine", "simulated", "faults", index), "kind is missing, such as {kind: oom_graph}")


def _pinned_args(document: Document, section: EngineSection, pinned: Pinned) -> dict[str, Value]:
    args: dict[str, Value] = {}
    for written in section.args:
        name, place = names.NEGATIONS.get(written) or names.canonical(written), ("engine", "args", written)
        problem = _pinned_problem(written, name, pinned)
        if problem:
            document.problem(place, problem)
            continue
        value = read_value(document, place, name)
        if value == UNSET:
            document.problem(place, f"{UNSET} pins nothing; leave the line out")
        if written in names.NEGATIONS and isinstance(value, bool):
            value = not value
        pinned.places[name] = place
        if is_speculative_knob(name):
            pinned.speculative[name] = value
        elif value is not None:
            args[name] = value
    return args


def _pinned_problem(written: str, name: str, pinned: Pinned) -> str | None:
    if written.startswith(names.ENV) or names.is_bare_variable(written):
        return "an environment variable is pinned in engine.env"
    if name in pinned.places:
        return f"{pinned.places[name][-1]} is the same knob; keep one"
    return names.name_problem(written)


def _pinned_env(document: Document, section: EngineSection, pinned: Pinned) -> dict[str, str]:
    env: dict[str, str] = {}
    for variable in section.env:
        place = ("engine", "env", variable)
        problem = names.variable_problem(variable)
        value = read_value(document, place, names.ENV + variable)
        if problem:
            document.problem(place, problem)
        elif value == UNSET:
            document.problem(place, f"{UNSET} pins nothing; leave the line out")
        elif value is not None:
            env[variable] = str(value)
            pinned.places[names.ENV + variable] = place
            if names.ENV + variable in names.POWERS_OF_TWO and not section.allow_odd_nccl_sizes:
                check_power_of_two(document, place, names.ENV + variable, [str(value)])
    return env


def _items(document: Document, section: str, kind: type[list[object]] | type[dict[str, object]]) -> list[Place]:
    """The places of the items of a section that is a list or a mapping; noted when it is something else."""
    given = document.section((section,))
    if given is None and (section,) not in document.lines:
        return []
    if not isinstance(given, kind):
        document.problem((section,), f"expected a {'list' if kind is list else 'mapping'}, saw {shown(given)}")
        return []
    return (
        [(section, index) for index in range(len(given))] if isinstance(given, list) else [(section, k) for k in given]
    )


def _load_points(document: Document) -> list[LoadPoint]:
    own = _own_workloads(document)
    places = _items(document, "load_points", list)
    if not places:
        example = "for instance [{workload: chat, concurrency: 1}]"
        document.problem(("load_points",), f"needs at least one load point, {example}")
    found: dict[str, LoadPoint] = {}
    for place in places:
        section = models.read_section(LoadPointSection, document, place)
        load_point = _load_point(document, place, section, own) if section else None
        if load_point and load_point.name in found:
            document.problem(place, f"{load_point.name} is listed twice")
        elif load_point:
            found[load_point.name] = load_point
    return list(found.values())


def _load_point(
    document: Document, place: Place, section: LoadPointSection, own: Mapping[str, Workload | None]
) -> LoadPoint | None:
    workload = _workload(document, (*place, "workload"), section.workload, own)
    if workload is None:
        return None
    if workload.kind == RANDOM:
        document.warnings.append(workloads.RANDOM_WARNING.format(name=workload.name))
    if section.requests and section.requests < section.concurrency:
        document.problem(
            (*place, "requests"),
            f"{section.requests} requests never reach concurrency {section.concurrency}; ask for that many or more",
        )
    return LoadPoint(workload, section.concurrency, section.output_tokens, section.requests, section.repeats)


def _workload(document: Document, place: Place, name: str, own: Mapping[str, Workload | None]) -> Workload | None:
    if name in own:
        return own[name]
    if name == workloads.RANDOM_NAME:
        return Workload(name, workloads.random_prompts(seed=0), RANDOM)
    if name not in workloads.SHIPPED:
        there = [*own, *workloads.SHIPPED, workloads.RANDOM_NAME]
        document.problem(place, "no such workload" + (did_you_mean(name, there) or f"; there are {', '.join(there)}"))
        return None
    return _from_file(document, place, name, workloads.shipped_file(name))


def _from_file(
    document: Document, place: Place, name: str, file: Path, kind: str = TEXT, temperature: float = 0.0
) -> Workload | None:
    try:
        return Workload(name, workloads.read_prompts(file), kind, temperature)
    except ValueError as error:
        document.problem(place, str(error))
        return None


def _own_workloads(document: Document) -> dict[str, Workload | None]:
    """The workloads of the file; None for one that is written wrongly."""
    found: dict[str, Workload | None] = {}
    for place in _items(document, "workloads", dict):
        name = str(place[-1])
        found[name] = None
        if not _NAME.fullmatch(name):
            document.problem(place, "a workload is named in letters, digits, dots and dashes")
        section = models.read_section(WorkloadSection, document, place)
        if section:
            found[name] = _own_workload(document, place, name, section)
    return found


def _own_workload(document: Document, place: Place, name: str, section: WorkloadSection) -> Workload | None:
    if section.file:
        file = Path(absolute(document.folder, section.file))
        return _from_file(document, (*place, "file"), name, document.folder / file, section.kind, section.temperature)
    if section.kind == RANDOM:
        return Workload(name, workloads.random_prompts(seed=0), RANDOM, section.temperature)
    if name in workloads.SHIPPED:
        return _from_file(document, place, name, workloads.shipped_file(name), temperature=section.temperature)
    document.problem(place, f"needs a file; only {', '.join(workloads.SHIPPED)} are shipped")
    return None


def _objective(document: Document, load_points: Sequence[LoadPoint]) -> Objective:
    section = models.read_section(models.ObjectiveSection, document, ("objective",))
    if section is None:
        return Objective()
    directed = [metric.name for metric in METRICS.values() if metric.better]
    if section.metric not in METRICS:
        document.problem(("objective", "metric"), _unknown_metric(section.metric, directed))
    elif METRICS[section.metric].better == 0:
        document.problem(("objective", "metric"), f"{section.metric} is neither better when more nor when less")
    elif section.metric in _NOT_IN_PLAIN:
        why = "plain decoding has none, so that nothing could be compared with a baseline; bound it with subject_to"
        document.problem(("objective", "metric"), f"{section.metric}: {why}")
    at = () if section.at == ["all"] else tuple(section.at)
    there = [load_point.name for load_point in load_points]
    unsure = document.has_problem(("load_points",)) or document.has_problem(("workloads",))
    for index, name in enumerate(at):
        if name not in there and not unsure:
            hint = did_you_mean(name, there) or f"; there are {', '.join(there)}, or all"
            document.problem(_one_of(document, "at", index), f"no load point {shown(name)}{hint}")
    return Objective(section.metric, at, section.aggregate, _bounds(document, section.subject_to))


_NOT_IN_PLAIN = ("accept_length", "accept_rate")


def _unknown_metric(name: str, there: Sequence[str]) -> str:
    """The nearest metric first, then all of them."""
    near = did_you_mean(name, there)
    return f"no such metric{near}{' There' if near else '; there'} are {', '.join(there)}"


def _one_of(document: Document, key: str, index: int) -> Place:
    """The place of an item of an objective's list, which may also be written as a single text."""
    return ("objective", key, index) if ("objective", key, index) in document.lines else ("objective", key)


def _bounds(document: Document, texts: Sequence[str]) -> tuple[Bound, ...]:
    bounds: list[Bound] = []
    for index, text in enumerate(texts):
        place = _one_of(document, "subject_to", index)
        compared = re.match(r"\s*(\w{1,80})\s*[<>]=", text)
        if compared and compared[1] not in METRICS:
            document.problem(place, f"{compared[1]}: {_unknown_metric(compared[1], list(METRICS))}")
            continue
        try:
            bound = Bound.parse(text)
        except ValueError as error:
            word = text.split(" ")[0]
            document.problem(place, f"{error}{'' if word in METRICS else did_you_mean(word, METRICS)}")
            continue
        against = next((other for other in bounds if _contradict(bound, other)), None)
        if against:
            document.problem(place, f"no measurement can obey both {bound} and {against}")
        bounds.append(bound)
    return tuple(bounds)


def _contradict(one: Bound, other: Bound) -> bool:
    if one.metric != other.metric or one.comparison == other.comparison:
        return False
    most, least = (one, other) if one.comparison == "<=" else (other, one)
    return most.limit < least.limit


def _budget(document: Document) -> Budget:
    section = models.read_section(models.BudgetSection, document, ("budget",))
    return Budget(section.trials, section.wall_time, section.gpu_hours) if section else Budget()


def _sampler(document: Document) -> SamplerConfig:
    section = models.read_section(models.SamplerSection, document, ("sampler",))
    if section is None:
        return SamplerConfig()
    if section.type == "graybox":
        document.warnings.append("sampler graybox is not there yet; tpe proposes in its place")
    return SamplerConfig("tpe" if section.type == "graybox" else section.type, section.seed)


def _cluster(document: Document) -> ClusterConfig:
    section = models.read_section(models.ClusterSection, document, ("cluster",))
    if section is None:
        return ClusterConfig()
    if section.trials_per_node > 1:
        document.warnings.append(
            f"{section.trials_per_node} trials share a node and disturb each other's numbers; compare them with care"
        )
    return ClusterConfig(section.trials_per_node, section.resource_wait)


def _limits(document: Document) -> Limits:
    section = models.read_section(models.LimitsSection, document, ("limits",))
    if section is None:
        return Limits()
    given = section.model_dump()
    return Limits(**{name if name.endswith("_share") else f"{name}_s": value for name, value in given.items()})


def _force_inert(document: Document, known: Known) -> tuple[str, ...]:
    found = []
    for place in _items(document, "force_inert", list):
        given = document.section(place)
        name = names.canonical(given) if isinstance(given, str) else ""
        if not name:
            document.problem(place, f"expected a parameter, saw {shown(given)}")
        elif name not in known.parameters:
            known.note_missing(document, place, name)
        found.append(name)
    return tuple(found)
