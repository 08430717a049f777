"""What each section of a search-space file may hold, and what is said of a section that holds something else.

The descriptions here are the field tables of docs/search-spaces.md. A default that is also a default of the
program is taken from the dataclasses of config.py, so that it is written once.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from specsearch._search_space_file.document import Document, Place, did_you_mean, shown
from specsearch.config import ClusterConfig, EngineConfig, Limits, SamplerConfig, SimulatedHardware, parse_duration
from specsearch.objective import Objective
from specsearch.study import Budget

_ENGINE = EngineConfig(type="", model="")
_SIMULATED = SimulatedHardware()
_LIMITS = Limits()
_CLUSTER = ClusterConfig()
_LARGEST = 2**31 - 1


def _seconds(value: object) -> object:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise PydanticCustomError("duration", "{why}", {"why": str(error)}) from None
    raise PydanticCustomError(
        "duration", "expected a time such as 90, 90s, 30m or 8h, saw {seen}", {"seen": shown(value)}
    )


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": "time"})]
Words = Annotated[list[str], BeforeValidator(_as_list), WithJsonSchema({"type": "text or list of texts"})]
Count = Annotated[int, Field(ge=1, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Any_ = object  # a value whose rules depend on the knob; see values.py


class Section(BaseModel):
    """A mapping of the file; unknown keys and values of another type are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _EngineSection(Section):
    python: str | None = Field(
        None, description="interpreter that has the engine; default: the one that runs specsearch"
    )
    version: str | None = Field(None, description="consulted only where no engine is installed, as in a dry run")
    command_prefix: list[str] = Field(
        [],
        description="words put before the launch command, such as `[numactl, -N, 0]`; "
        "`{env}`, `{gpus}`, `{name}` and `{tmpdir}` are filled in for a [container](containers.md)",
    )
    stop_command: list[str] = Field(
        [],
        description="ends a container that outlives the end of its client, such as `[docker, kill, '{name}']`",
    )
    tp_size: Annotated[int, Field(ge=1, le=64)] = Field(
        _ENGINE.tp_size, description="tensor-parallel size; a trial owns that many GPUs"
    )
    args: dict[str, Any_] = Field({}, description="server flags and named knobs pinned in every trial")
    env: dict[str, Any_] = Field(
        {}, description="environment variables pinned in every trial, taken as they are written"
    )
    allow_odd_nccl_sizes: bool = Field(
        False, description="take NCCL thread counts and buffer sizes that are no powers of two"
    )
    check_drafter: bool = Field(
        _ENGINE.check_drafter,
        description="refuse a drafter whose files do not fit algorithm and target; `false`: only say so",
    )


class SglangEngineSection(_EngineSection):
    """`engine:` with `type: sglang`."""

    type: Literal["sglang"] = Field(description="the real SGLang")
    model: str = Field(min_length=1, description="target model: a folder or a hub name")


class SimulatedSection(Section):
    """`engine.simulated:`."""

    gpu: str = Field(_SIMULATED.gpu, description="the GPU that is pretended")
    target: str = Field(_SIMULATED.target, description="the target model that is pretended")
    drafter: str = Field(_SIMULATED.drafter, description="the drafter that is pretended")
    time_scale: float = Field(
        _SIMULATED.time_scale,
        gt=0,
        le=1,
        description="seconds that a second of loading takes; decoding is never scaled",
    )
    seed: int = Field(_SIMULATED.seed, ge=0, le=_LARGEST, description="of the noise")
    noise: float = Field(_SIMULATED.noise, ge=0, le=1, description="relative standard deviation of a decode step")
    gpus: int | None = Field(None, ge=0, le=64, description="GPUs of the pretended node; as many as needed by default")
    faults: list[dict[str, Any_]] = Field([], description="what goes wrong, and at which settings")


class SimulatedEngineSection(_EngineSection):
    """`engine:` with `type: simulated`."""

    type: Literal["simulated"] = Field(
        description="a server process that behaves like SGLang on GPUs that are not there"
    )
    model: str | None = Field(None, min_length=1, description="name of the target model; default: `simulated.target`")
    simulated: SimulatedSection = Field(
        default_factory=lambda: SimulatedSection.model_validate({}), description="the machine that is pretended"
    )


When = Annotated[
    dict[str, Any_], Field(description="other parameters and the values they must have for this one to exist")
]


class ChoiceSection(Section):
    """A parameter with `type: choice`."""

    type: Literal["choice"] = Field(description="one of the listed values")
    values: list[Any_] = Field(min_length=1, max_length=1000, description="all of one type; `unset` leaves it out")
    when: When = {}


class IntSection(Section):
    """A parameter with `type: int`."""

    type: Literal["int"] = Field(description="an integer from `low` to `high`")
    low: int = Field(description="smallest value")
    high: int = Field(description="largest value, included")
    step: Count = Field(1, description="distance between two values")
    log: bool = Field(False, description="samplers think in ratios: 2 to 4 is as far as 16 to 32")
    when: When = {}


class WorkloadSection(Section):
    """`workloads.NAME:`."""

    file: str | None = Field(
        None, description='JSONL of `{"prompt": …}`, `{"text": …}` or texts; default: the shipped prompts of that name'
    )
    temperature: float = Field(0.0, ge=0, le=10, description="sampling temperature; 0 is greedy")
    kind: Literal["text", "random"] = Field(
        "text", description="`random` for prompts of random words, whose acceptance says nothing about real text"
    )


class LoadPointSection(Section):
    """An item of `load_points:`."""

    workload: str = Field(description="`chat`, `code`, `math`, `long_context`, `random` or a name from `workloads`")
    concurrency: Annotated[int, Field(ge=1, le=65536)] = Field(description="requests in flight at any time")
    output_tokens: Count = Field(256, description="tokens asked for in each request")
    requests: Count | None = Field(
        None, description="requests in each repeat; default: every prompt once, and at least twice the concurrency"
    )
    repeats: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="how often the load point is measured per launch"
    )


class ObjectiveSection(Section):
    """`objective:`."""

    metric: str = Field(Objective().metric, description="the metric that is to be as good as possible")
    at: Words = Field(["all"], description="load points such as `chat@1`, or `all`")
    aggregate: Literal["geomean", "mean", "min"] = Field("geomean", description="how load points become one number")
    subject_to: Words = Field([], description="bounds on metrics, such as `ttft_p99_ms <= 500`")


class BudgetSection(Section):
    """`budget:`."""

    trials: Count | None = Field(
        Budget().trials,
        description="launches of the search; the baseline and retries are not counted; `null`: no limit",
    )
    wall_time: Duration | None = Field(None, description="wall time of the study")
    gpu_hours: Annotated[float, Field(gt=0)] | None = Field(None, description="GPU-hours of all launches")


class SamplerSection(Section):
    """`sampler:`."""

    type: Literal["tpe", "random", "graybox"] = Field(
        "tpe", description="who proposes the next point; `graybox` is not there yet, `tpe` proposes in its place"
    )
    seed: int = Field(SamplerConfig().seed, ge=0, le=_LARGEST, description="of the sampler")


class ClusterSection(Section):
    """`cluster:`."""

    trials_per_node: Annotated[int, Field(ge=1, le=64)] = Field(
        _CLUSTER.trials_per_node, description="trials that share a node and disturb each other when more than 1"
    )
    resource_wait: Duration = Field(_CLUSTER.resource_wait_s, description="how long GPUs held by others are waited for")


class LimitsSection(Section):
    """`limits:`."""

    start: Duration = Field(_LIMITS.start_s, description="launch to ready, at most")
    silence: Duration = Field(_LIMITS.silence_s, description="a starting server that logs nothing for so long hangs")
    request: Duration = Field(_LIMITS.request_s, description="one request, at most")
    stall: Duration = Field(_LIMITS.stall_s, description="no token from any request for so long while measuring")
    stop: Duration = Field(_LIMITS.stop_s, description="from the polite to the hard end of a server")
    release: Duration = Field(_LIMITS.release_s, description="until GPU memory is free, before a launch and after it")
    failed_request_share: Share = Field(_LIMITS.failed_request_share, description="more failed requests end the trial")
    cached_token_share: Share = Field(
        _LIMITS.cached_token_share, description="more prompt tokens from the prefix cache make the trial invalid"
    )
    degenerate_share: Share = Field(
        _LIMITS.degenerate_share, description="more replies that repeat themselves make the trial invalid"
    )


EngineSection = SglangEngineSection | SimulatedEngineSection
ParameterSection = ChoiceSection | IntSection

# What stands at the top of the file, and what it is.
SECTIONS: Mapping[str, str] = {
    "name": "name of the study; default: the name of the file",
    "engine": "how servers are launched; needed",
    "parameters": "what is searched: named knobs, other server flags, `env.NAME`; needed",
    "constraints": "expressions over parameters that every point obeys",
    "baseline": "settings of the start baseline that differ from the engine's defaults",
    "seed_points": "points that are tried first",
    "force_inert": "parameters to search even where the engine is known to ignore them",
    "workloads": "prompts of your own",
    "load_points": "what is measured in every trial; needed",
    "objective": "what is best",
    "budget": "when to stop",
    "sampler": "who proposes",
    "cluster": "how trials share the cluster",
    "limits": "how long is waited for what, and where numbers stop being believed",
}

ENGINE: TypeAdapter[EngineSection] = TypeAdapter(Annotated[EngineSection, Field(discriminator="type")])
PARAMETER: TypeAdapter[ParameterSection] = TypeAdapter(Annotated[ParameterSection, Field(discriminator="type")])
_TAGGED: Mapping[str, type[Section]] = {
    "sglang": SglangEngineSection,
    "simulated": SimulatedEngineSection,
    "choice": ChoiceSection,
    "int": IntSection,
}

T = TypeVar("T")
S = TypeVar("S", bound=Section)


def read_section(model: type[S], document: Document, place: Place) -> S | None:
    """The section at a place, its defaults where the file has none.

    Fields that are wrong are noted and left out, so that the rest can be checked in the same run; None when the rest
    is no such section.
    """
    return _validated(model.model_validate, model, document, place)


def read_tagged(adapter: TypeAdapter[T], document: Document, place: Place) -> T | None:
    """Like `read_section`, for a section told apart by its `type`."""
    return _validated(adapter.validate_python, None, document, place)


def _validated(
    validate: Callable[[object], T], model: type[Section] | None, document: Document, place: Place
) -> T | None:
    given = document.section(place)
    try:
        return validate({} if given is None and place not in document.lines else given)
    except ValidationError as error:
        noted = [_note(document, place, model, details) for details in error.errors(include_url=False)]
    wrong = {inside[len(place)] for inside in noted if len(inside) > len(place)}
    with suppress(ValidationError):
        return validate(
            {key: value for key, value in given.items() if key not in wrong} if isinstance(given, dict) else given
        )
    return None


def _note(document: Document, place: Place, model: type[Section] | None, details: ErrorDetails) -> Place:
    """Say what is wrong in a section; the place that is wrong comes back."""
    inside, holder, parts = place, model, details["loc"]
    if model is None and parts:  # of a section told apart by its `type`, which pydantic puts first
        holder, parts = _TAGGED[str(parts[0])], parts[1:]
    for part in parts:
        if (*inside, part) in document.lines or details["type"] == "missing":
            holder = SimulatedSection if part == "simulated" else holder
            inside = (*inside, part)
    if details["type"] == "missing":
        line = document.line(inside[:-1])
        wanted = holder.model_fields[str(inside[-1])].description if holder else None
        document.problem(inside, "is missing" + (f": {wanted}" if wanted else ""), line=line)
    elif details["type"] == "extra_forbidden":
        known = list(holder.model_fields) if holder else []
        hint = did_you_mean(inside[-1], known) or f"; allowed are {', '.join(known)}"
        document.problem(inside, f"unknown key{hint}")
    elif details["type"] == "union_tag_invalid":
        document.problem((*inside, "type"), _sentence(details))
    elif details["type"] == "union_tag_not_found":
        tags = "sglang, simulated" if place == ("engine",) else "choice, int"
        document.problem(inside, f"`type` is missing; allowed are {tags}")
    else:
        document.problem(inside, _sentence(details))
    return inside


def _sentence(details: ErrorDetails) -> str:
    seen: Any = details["input"]
    context = details.get("ctx", {})
    match details["type"]:
        case "int_type" | "int_from_float":
            return f"expected an integer, saw {shown(seen)}"
        case "float_type":
            return f"expected a number, saw {shown(seen)}"
        case "bool_type":
            return f"expected true or false, saw {shown(seen)}"
        case "string_type":
            quotes = "; write it in quotes" if isinstance(seen, int | float) else ""
            return f"expected a text, saw {shown(seen)}{quotes}"
        case "list_type":
            return f"expected a list, saw {shown(seen)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"expected a mapping, saw {shown(seen)}"
        case "union_tag_invalid":
            tags = str(context["expected_tags"]).replace("'", "")
            near = did_you_mean(context["tag"], tags.split(", "))
            return f"type {shown(context['tag'])} is unknown; allowed are {tags}{near}"
        case "literal_error":
            allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ")
            return f"saw {shown(seen)}; allowed are {allowed}{did_you_mean(seen, allowed.split(', '))}"
        case "too_short" | "string_too_short":
            return "is empty"
        case "too_long":
            return f"has {context['actual_length']} values; at most {context['max_length']} are allowed"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            wanted = details["msg"].removeprefix("Input should be ")
            return f"saw {shown(seen)}; must be {wanted}"
    return details["msg"]
