"""What can be said of version, flags, drafters and space before anything is launched; every finding is a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specsearch.config import EngineConfig
from specsearch.engines.sglang import drafter as drafters
from specsearch.engines.sglang.flags import ENV, reserved_problem, unknown_problem
from specsearch.engines.sglang.rules import (
    ALLOW_LONGER_CONTEXT,
    ENV_DEFAULTS,
    INERT,
    SGLangRules,
    context_length_of,
    is_true,
)
from specsearch.engines.sglang.version import NEWEST, OLDEST, Installation, declared_flags, release
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, Rules, SearchSpace, Value, is_speculative_knob
from specsearch.workload import LoadPoint

MOST_VISITED = (
    20_000  # combinations; about a second. A larger space is not enumerated, its points are checked one by one
)
# The parameters that the rules speak of; the others cannot make a value impossible.
_RULED = (
    *(ALGORITHM, "draft_model", "num_steps", "eagle_topk", "num_draft_tokens", "speculative_adaptive"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "page_size", "context_length"),
    *("env.SGLANG_ENABLE_SPEC_V2", f"env.{ALLOW_LONGER_CONTEXT}"),
)  # fmt: skip


@dataclass(slots=True)
class Findings:
    """Errors and warnings, in the order in which they were found."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def examine_version(
    found: Findings, installed: Installation, config: EngineConfig, python: str, *, dry_run: bool
) -> None:
    """Is there an SGLang, and one that is known?"""
    if installed.version is None:
        problem = installed.problem or _nothing_installed(config, python)
        if dry_run or config.command_prefix:
            spelled = f"flags are spelled for {config.version or NEWEST} and not checked"
            found.warnings.append(f"{problem}; {spelled}")
        else:
            found.errors.append(problem)
    version = installed.version or config.version or NEWEST
    if installed.version and config.version and installed.version != config.version:
        found.warnings.append(f"engine.version {config.version} is not consulted: {python} has SGLang {version}")
    if release(version) < release(OLDEST) and any(release(version)):
        found.errors.append(f"SGLang {version} is older than {OLDEST}, the oldest that is supported")
    elif release(version) > release(NEWEST) or not any(release(version)):
        found.warnings.append(f"SGLang {version} is not known; it is taken to behave like {NEWEST}")


def _nothing_installed(config: EngineConfig, python: str) -> str:
    seen = f"no SGLang is installed in {python}"
    if config.python:
        return f"{seen}, which engine.python names; correct it, or give --engine-python PATH"
    return f"{seen}; install specsearch[sglang], or name the interpreter that has it in engine.python"


def examine_flags(found: Findings, installed: Installation, rules: SGLangRules, space: SearchSpace) -> None:
    """Does the installed version have every flag, by that spelling and no other?"""
    declared = declared_flags(installed.package) if installed.package else None
    if installed.version and declared is None:
        found.warnings.append(f"the source of SGLang {installed.version} is not readable: flags are not checked")
    pinned_env = (f"{ENV}{name}" for name in rules.env)
    for name in dict.fromkeys((*rules.args, *pinned_env, *space.by_name)):
        problem = reserved_problem(name)
        if problem is None and declared is not None and not name.startswith(ENV):
            problem = unknown_problem(name, declared, installed.version or "", rules.profile)
        if problem:
            found.errors.append(in_file(problem, name, space))
    found.warnings += [f"{name} is pinned and changes nothing: {INERT[name]}" for name in rules.args if name in INERT]
    if ALGORITHM in rules.args:
        found.errors.append(
            f"{ALGORITHM} cannot be pinned in engine.args, which hold in plain decoding too: "
            "make it a parameter with one value"
        )


def in_file(problem: str, name: str, space: SearchSpace) -> str:
    """A sentence that begins with the name of a setting, begun with its place in the search-space file instead."""
    parameter = space.by_name.get(name)
    if parameter is None:
        return f"engine.{problem}" if name.startswith(ENV) else f"engine.args.{problem}"
    # A speculative knob with one value may be pinned in engine.args as well: then no place is said.
    may_be_pinned = is_speculative_knob(name) and len(parameter.all_values()) == 1 and not parameter.when
    return problem if may_be_pinned else f"parameters.{problem}"


def examine_drafters(found: Findings, rules: SGLangRules, space: SearchSpace, *, dry_run: bool) -> None:
    """Can the configurations of target and drafters be read, and is a drafter stretched beyond its context?"""
    target = drafters.read_config(rules.model, rules.env)
    models = [("engine.model", rules.model), *(("draft_model", model) for model in _draft_models(rules, space))]
    for role, model in models:
        problem = drafters.missing_config(role, model, rules.env)
        if problem:
            only_a_warning = dry_run or drafters.is_hub_id(model)
            (found.warnings if only_a_warning else found.errors).append(problem)
    if not is_true(rules.env.get(ALLOW_LONGER_CONTEXT)):
        return
    for _, model in models[1:]:
        drafter = drafters.read_config(model, rules.env)
        short = drafters.short_context(drafter, target, context_length_of(rules.args)) if drafter else None
        if short:
            found.warnings.append(
                f"draft_model {model} has a context of {short[0]} tokens and is stretched to {short[1]} by "
                f"{ALLOW_LONGER_CONTEXT}: prompt and output together should stay below {short[0]}"
            )


def examine_points(found: Findings, rules: SGLangRules, space: SearchSpace, load_points: Sequence[LoadPoint]) -> None:
    """Which values can no point have, and which would measure something other than they say?"""
    found.errors += _forced_variables(rules, space)
    found.warnings += _equal_variables(space)
    found.warnings += _small_graphs(rules, space, load_points)
    found.warnings += _unknown_algorithms(space)
    examine_values(found, rules, space)


def _draft_models(rules: SGLangRules, space: SearchSpace) -> list[str]:
    pinned = [rules.args["draft_model"]] if "draft_model" in rules.args else []
    searched = space.by_name["draft_model"].all_values() if "draft_model" in space.by_name else ()
    return [str(model) for model in dict.fromkeys([*pinned, *searched]) if model != UNSET]


def _forced_variables(rules: SGLangRules, space: SearchSpace) -> Iterator[str]:
    for name, (culprit, value) in rules.forced(rules.settings({})).items():
        outcome = f"to {value}" if value else "to a value of its own"
        if f"{ENV}{name}" in space.by_name:
            yield f"parameters.{ENV}{name} cannot be searched: {culprit} sets it {outcome} whatever the server is given"
        elif name in rules.env and rules.env[name] != value:
            yield f"engine.{ENV}{name}={rules.env[name]} has no effect: {culprit} sets it {outcome}"


def _equal_variables(space: SearchSpace) -> Iterator[str]:
    for name, value in ENV_DEFAULTS.items():
        parameter = space.by_name.get(f"{ENV}{name}")
        values = list(map(str, parameter.all_values())) if parameter else []
        if UNSET in values and value in values:
            yield f"{ENV}{name}: SGLang sets it to {value} where it is unset, so unset and {value} are one; drop either"


def _small_graphs(rules: SGLangRules, space: SearchSpace, load_points: Sequence[LoadPoint]) -> Iterator[str]:
    largest = max((point.concurrency for point in load_points), default=0)
    for name in ("cuda_graph_max_bs", rules.profile.graph_max_bs):
        parameter = space.by_name.get(name)
        values: Sequence[Value] = parameter.all_values() if parameter else [rules.args.get(name, UNSET)]
        small = [str(value) for value in values if isinstance(value, int) and value < largest]
        if small:
            yield (
                f"{name} {', '.join(small)}: batches of up to {largest} requests are measured, and those beyond the "
                "largest captured batch run without a graph"
            )


def _unknown_algorithms(space: SearchSpace) -> Iterator[str]:
    parameter = space.by_name.get(ALGORITHM)
    for value in parameter.all_values() if parameter else ():
        if value != PLAIN and str(value).upper() not in drafters.SHIPPED_ALGORITHMS:
            yield (
                f"{ALGORITHM} {value} is none that SGLang ships ({', '.join(drafters.SHIPPED_ALGORITHMS)}); "
                "without a plugin of that name every launch fails"
            )


class _Recorder:
    """The rules, with a note of the first problem of every value."""

    def __init__(self, rules: SGLangRules) -> None:
        self._rules = rules
        self.first: dict[tuple[str, Value], str] = {}
        self.has_passed = False

    def derived(self, name: str, partial: Point) -> Value | None:
        return self._rules.derived(name, partial)

    def default(self, name: str) -> Value | None:
        return self._rules.default(name)

    def problems(self, point: Point) -> Sequence[str]:
        problems = self._rules.problems(point)
        if problems:
            for item in point.items():
                self.first.setdefault(item, problems[0])
        else:
            self.has_passed = True
        return problems

    def settled_by(self, effective: Mapping[str, str]) -> Rules:
        return self._rules.settled_by(effective)

    def pins(self, point: Point) -> dict[str, Value]:
        return self._rules.pins(point)


def examine_values(found: Findings, rules: SGLangRules, space: SearchSpace) -> None:
    """Which values are in no point that can run?"""
    recorder = _Recorder(rules)
    points = replace(_projection(space), rules=recorder).valid_points(MOST_VISITED)
    if points is None:
        return
    if not points:
        contradiction = "the constraints exclude every point that could"
        reason = contradiction if recorder.has_passed else next(iter(recorder.first.values()), contradiction)
        found.errors.append(f"no point of this space can run: {reason}")
        return
    usable = {item for point in points for item in point.items()}
    told: set[str] = set()
    for parameter in replace(_projection(space), rules=recorder).ordered:
        useless = [value for value in parameter.all_values() if (parameter.name, value) not in usable]
        refused = [value for value in useless if (parameter.name, value) in recorder.first]
        reason = recorder.first[parameter.name, refused[0]] if refused else ""
        if refused and reason not in told:
            told.add(reason)
            decisive = parameter.name in (ALGORITHM, "draft_model")
            (found.errors if decisive else found.warnings).append(
                f"{parameter.name} {_some(refused)} can never run here: {reason}"
            )


def _some(values: Sequence[Value]) -> str:
    shown = ", ".join(map(str, values[:4]))
    return shown if len(values) <= 4 else f"{shown} and {len(values) - 4} more"


def _projection(space: SearchSpace) -> SearchSpace:
    """The space without the parameters on which no rule and no condition of a ruled one depends."""
    wanted = {name for name in _RULED if name in space.by_name}
    while True:
        parents = {parent for name in wanted for parent in space.by_name[name].when if parent in space.by_name}
        if parents <= wanted:
            break
        wanted |= parents
    return SearchSpace(tuple(p for p in space.parameters if p.name in wanted), space.constraints)
