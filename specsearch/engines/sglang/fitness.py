"""What can be said of version, flags, drafters and space before anything is launched; every finding is a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specsearch.config import EngineConfig
from specsearch.engines.sglang.arguments.algorithms import NEEDS_A_DRAFTER, SHIPPED_ALGORITHMS
from specsearch.engines.sglang.arguments.flags import (
    ENV,
    missing_problem,
    reserved_problem,
    secret_problem,
    unknown_problem,
    value_problem,
)
from specsearch.engines.sglang.arguments.rules import (
    ALLOW_LONGER_CONTEXT,
    ENV_DEFAULTS,
    SGLangRules,
    context_length_of,
    is_true,
)
from specsearch.engines.sglang.installed.reliances import missing
from specsearch.engines.sglang.installed.version import NEWEST, OLDEST, Installation, is_known, release
from specsearch.engines.sglang.models import checkpoint
from specsearch.engines.sglang.models import drafter as drafters
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, Rules, SearchSpace, Value, is_speculative_knob
from specsearch.workload import LoadPoint

MOST_VISITED = (
    20_000  # combinations; two or three seconds. A larger space is not enumerated, its points are checked one by one
)
# The parameters that the rules speak of, the beginnings of names at the end; the others make no value impossible.
_RULED = (
    *(ALGORITHM, "draft_model", "num_steps", "eagle_topk", "num_draft_tokens", "uno_lora_path", "revision"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "page_size", "context_length"),
    *("chunked_prefill_size", "device", "pp_size", "dp_size", "attn_dp_size", "enable_dp_attention", "cuda_graph"),
    *("enable_dp_lm_head", "enable_multi_layer_eagle", "enable_two_batch_overlap", "enable_pdmux"),
    *("enable_deterministic_inference", "disable_cuda_graph_padding", "enable_torch_compile"),
    *("disable_overlap_schedule", "env.SGLANG_ENABLE_SPEC_V2", "env.SGLANG_ENABLE_PP_SPEC"),
    f"env.{ALLOW_LONGER_CONTEXT}",
)
_RULED_BEGINNING = "speculative_"


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
        if dry_run:
            spelled = f"flags are spelled for {config.version or NEWEST} and not checked"
            found.warnings.append(f"{problem}; {spelled}")
        else:
            found.errors.append(problem)
    version = installed.version or config.version or NEWEST
    if installed.version and config.version and installed.version != config.version:
        found.warnings.append(f"engine.version {config.version} is not consulted: {python} has SGLang {version}")
    if release(version) < release(OLDEST) and any(release(version)):
        found.errors.append(f"SGLang {version} is older than {OLDEST}, the oldest that is supported")
    elif installed.version:
        _examine_reliances(found, installed.version, installed)
    elif not is_known(version):
        found.warnings.append(f"SGLang {version} is not known; it is taken to behave like {NEWEST}")


def _examine_reliances(found: Findings, version: str, installed: Installation) -> None:
    """Does the installed source still hold what specsearch relies on?"""
    gone = list(missing(version, installed.absent))
    if not is_known(version):
        seen = "its source holds all that specsearch relies on" if installed.flags and not gone else ""
        seen = f"; {seen}" if seen else ""
        found.warnings.append(f"SGLang {version} is not known; it is taken to behave like {NEWEST}{seen}")
    for reliance in gone:
        said = f"SGLang {version} does not have {reliance.name} ({' or '.join(reliance.any_of)}): {reliance.without}"
        (found.errors if reliance.required else found.warnings).append(said)


def _nothing_installed(config: EngineConfig, python: str) -> str:
    seen = f"no SGLang is installed in {python}"
    if config.command_prefix:
        return (
            f"{seen} behind engine.command_prefix; take an image that has it, or name its interpreter in engine.python"
        )
    if config.python:
        return f"{seen}, which engine.python names; correct it, or give --engine-python PATH"
    return f"{seen}; install specsearch[sglang], or name the interpreter that has it in engine.python"


def examine_flags(found: Findings, installed: Installation, rules: SGLangRules, space: SearchSpace) -> None:
    """Does the installed version have every flag, by that spelling and no other, and does it do what it says?"""
    declared, version = installed.flags, rules.version or NEWEST
    if installed.version and declared is None:
        found.warnings.append(f"the source of SGLang {installed.version} is not readable: flags are not checked")
    pinned_env = (f"{ENV}{name}" for name in rules.env)
    for name in dict.fromkeys((*rules.args, *pinned_env, *space.by_name)):
        parameter = space.by_name.get(name)
        values = parameter.all_values() if parameter else [rules.args[name]] if name in rules.args else []
        problem = reserved_problem(name) or value_problem(name, values) or missing_problem(name, version, rules.profile)
        if problem is None and parameter:
            problem = secret_problem(name, values)
        if problem is None and declared is not None and not name.startswith(ENV):
            problem = unknown_problem(name, declared, version, rules.profile)
        if problem:
            found.errors.append(in_file(problem, name, space))
    inert = {name: why for name in rules.args if (why := rules.why_inert(name))}
    found.warnings += [f"{name} is pinned and changes nothing: {why}" for name, why in inert.items()]
    _examine_algorithms(found, rules, space)
    found.warnings += _unlike_schedules(rules, space)
    if ALGORITHM in rules.args:
        found.errors.append(
            f"{ALGORITHM} cannot be pinned in engine.args, which hold in plain decoding too: "
            "make it a parameter with one value"
        )


def _examine_algorithms(found: Findings, rules: SGLangRules, space: SearchSpace) -> None:
    """Does this version know the algorithms?"""
    shipped = rules.profile.algorithms
    for value in _algorithms(space):
        later = value.upper() in SHIPPED_ALGORITHMS or not rules.profile.takes_plugins
        if later and value.upper() not in shipped:
            said = f"{ALGORITHM} {value}: SGLang {rules.version or NEWEST} has {', '.join(shipped)}"
            (found.warnings if rules.profile.takes_plugins else found.errors).append(said)
    if "NGRAM" in map(str.upper, _algorithms(space)):
        found.warnings.append(
            f"{ALGORITHM} NGRAM drafts from what it has served: prompts that come again flatter it, and every repeat "
            "sends the same ones; give the workload as many different prompts as the traffic has"
        )


def _algorithms(space: SearchSpace) -> list[str]:
    parameter = space.by_name.get(ALGORITHM)
    return [str(value) for value in (parameter.all_values() if parameter else ()) if value != PLAIN]


def _unlike_schedules(rules: SGLangRules, space: SearchSpace) -> Iterator[str]:
    """Speculative trials that do not overlap scheduling with computing, which plain decoding does."""
    switch = "disable_overlap_schedule"
    if rules.args.get(switch) is True or switch in space.by_name:
        return
    parameter = space.by_name.get("eagle_topk")
    values = parameter.all_values() if parameter else (rules.args.get("eagle_topk", 1),)
    widths = [value for value in values if isinstance(value, int)]
    for algorithm in _algorithms(space):
        alone = [k for k in widths if not rules.profile.overlaps(algorithm.upper(), k, rules.environment({}))]
        if alone:
            which = "" if len(alone) == len(widths) else f" at eagle_topk {', '.join(map(str, alone))}"
            yield (
                f"SGLang {rules.version or NEWEST} runs {algorithm}{which} without overlapping scheduling and "
                "computing, which plain decoding does: a part of the difference is that; "
                f"pin {switch}: true in engine.args to compare like with like"
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
    """Can target and drafters be read, do they fit, and is a drafter stretched beyond its context?"""
    revisions = (_one_value(rules, space, "revision"), _one_value(rules, space, "speculative_draft_model_revision"))
    drafts = _draft_models(rules, space)
    models = [("engine.model", rules.model, revisions[0]), *(("draft_model", model, revisions[1]) for model in drafts)]
    for role, model, revision in models:
        problem = checkpoint.missing_config(role, model, rules.env, revision)
        if problem:
            only_a_warning = dry_run or checkpoint.is_hub_id(model) or checkpoint.is_elsewhere(model)
            (found.warnings if only_a_warning else found.errors).append(problem)
    if not rules.check_drafter:
        unchecked = "engine.check_drafter is false, so that it is launched all the same"
        found.warnings += [f"{said} ({unchecked})" for pair in _pairs(rules, space) for said in pair.misfits]
    if is_true(rules.env.get(ALLOW_LONGER_CONTEXT)):
        target = checkpoint.read_config(rules.model, rules.env, revisions[0])
        configs = {model: checkpoint.read_config(model, rules.env, revisions[1]) for model in drafts}
        found.warnings += _stretched(configs, target, context_length_of(rules.args))


def _stretched(
    drafts: Mapping[str, checkpoint.Config | None], target: checkpoint.Config | None, context_length: int | None
) -> Iterator[str]:
    for model, drafter in drafts.items():
        short = drafters.short_context(drafter, target, context_length) if drafter else None
        if short:
            yield (
                f"draft_model {model} has a context of {short[0]} tokens and is stretched to {short[1]} by "
                f"{ALLOW_LONGER_CONTEXT}: prompt and output together should stay below {short[0]}"
            )


@dataclass(frozen=True, slots=True)
class _Pair:
    """An algorithm of the space with one of its drafters."""

    algorithm: str
    model: str
    misfits: Sequence[str]

    def __str__(self) -> str:
        return f"{self.algorithm} with {self.model}"


def _pairs(rules: SGLangRules, space: SearchSpace) -> list[_Pair]:
    """Every algorithm with every drafter that the conditions of the space let it have."""
    parameter, revision = space.by_name.get("draft_model"), _one_value(rules, space, "speculative_draft_model_revision")
    among = parameter.when.get(ALGORITHM) if parameter else None
    drafted = [name for name in _algorithms(space) if name.upper() in NEEDS_A_DRAFTER]
    return [
        _Pair(algorithm, model, rules.misfits(algorithm, model, revision))
        for algorithm in drafted
        if among is None or algorithm in among
        for model in _draft_models(rules, space)
    ]


def _one_value(rules: SGLangRules, space: SearchSpace, name: str) -> Value | None:
    """The value that a setting has in every point; None where it has several or none."""
    parameter = space.by_name.get(name)
    values = parameter.all_values() if parameter else [rules.args.get(name, UNSET)]
    return values[0] if len(values) == 1 and values[0] != UNSET else None


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
        if value != PLAIN and str(value).upper() not in SHIPPED_ALGORITHMS:
            yield (
                f"{ALGORITHM} {value} is none that SGLang ships ({', '.join(SHIPPED_ALGORITHMS)}); "
                "without a plugin of that name every launch fails"
            )


class _Recorder(Rules):
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

    def pinnable(self) -> Sequence[str]:
        return self._rules.pinnable()


def examine_values(found: Findings, rules: SGLangRules, space: SearchSpace) -> None:
    """Which values are in no point that can run, and which drafter goes with which algorithm?"""
    pairs = _pairs(rules, space) if rules.check_drafter else []
    recorder = _Recorder(rules)
    points = replace(_projection(space), rules=recorder).valid_points(MOST_VISITED)
    if points is None:
        found.errors += _useless_of_pairs(pairs)
    elif points:
        _note_useless(found, recorder, replace(_projection(space), rules=recorder), points)
    else:
        contradiction = "the constraints exclude every point that could"
        reason = contradiction if recorder.has_passed else next(iter(recorder.first.values()), contradiction)
        found.errors.append(f"no point of this space can run: {reason}")
    found.warnings += _pairs_that_are_left(pairs)


def _note_useless(found: Findings, recorder: _Recorder, space: SearchSpace, points: Sequence[Point]) -> None:
    usable = {item for point in points for item in point.items()}
    told: set[str] = set()
    for parameter in space.ordered:
        useless = [value for value in parameter.all_values() if (parameter.name, value) not in usable]
        refused = [value for value in useless if (parameter.name, value) in recorder.first]
        reason = recorder.first[parameter.name, refused[0]] if refused else ""
        if refused and reason not in told:
            told.add(reason)
            decisive = parameter.name in (ALGORITHM, "draft_model")
            (found.errors if decisive else found.warnings).append(_never(parameter.name, refused, reason))


def _never(name: str, values: Sequence[Value], reason: str) -> str:
    return f"{name} {_some(values)} can never run here: {reason}"


def _useless_of_pairs(pairs: Sequence[_Pair]) -> Iterator[str]:
    """Algorithms and drafters that fit none of the other, in a space too large to be listed."""
    fit = [pair for pair in pairs if not pair.misfits]
    for name, of in ((ALGORITHM, "algorithm"), ("draft_model", "model")):
        used = {getattr(pair, of) for pair in fit}
        for value in dict.fromkeys(getattr(pair, of) for pair in pairs):
            if value not in used:
                yield _never(name, [value], next(pair.misfits[0] for pair in pairs if getattr(pair, of) == value))


def _pairs_that_are_left(pairs: Sequence[_Pair]) -> Iterator[str]:
    fit, wrong = [pair for pair in pairs if not pair.misfits], [pair for pair in pairs if pair.misfits]
    if fit and wrong:
        yield (
            f"{'; '.join(map(str, fit))} {'are' if len(fit) > 1 else 'is'} proposed and no other pair of algorithm and "
            f"drafter: {wrong[0].misfits[0]}"
        )


def _some(values: Sequence[Value]) -> str:
    shown = ", ".join(map(str, values[:4]))
    return shown if len(values) <= 4 else f"{shown} and {len(values) - 4} more"


def _projection(space: SearchSpace) -> SearchSpace:
    """The space without the parameters on which no rule and no condition of a ruled one depends."""
    wanted = {name for name in space.by_name if name in _RULED or name.startswith(_RULED_BEGINNING)}
    while True:
        parents = {parent for name in wanted for parent in space.by_name[name].when if parent in space.by_name}
        if parents <= wanted:
            break
        wanted |= parents
    return SearchSpace(tuple(p for p in space.parameters if p.name in wanted), space.constraints)
