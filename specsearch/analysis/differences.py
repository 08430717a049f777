"""In what two servers differed beyond the knobs in which their points differ: what else may explain a gap."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from specsearch.search_space import UNSET, Point, is_plain, is_speculative_knob, same_value
from specsearch.trial import TrialResult

ENV = "env."
_GRAPHS = "cuda_graph_config"
_PHASES = ("decode", "prefill")
_SIZES = ("bs", "max_bs")
_OLD_GRAPHS = ("disable_cuda_graph", "cuda_graph_bs", "cuda_graph_max_bs")  # of servers without cuda_graph_config
_BOTH_PHASES = (_GRAPHS, "cuda_graph", "disable_cuda_graph")
_MEMORY = "mem_fraction_static"

# Knobs whose setting has another name, or that settle more than one.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "custom_all_reduce": ("disable_custom_all_reduce",),
    "attention_backend": ("prefill_attention_backend", "decode_attention_backend"),
}
# Beside everything that is called speculative.
_OF_SPECULATION = ("enable_multi_layer_eagle",)
# Variables that say where a launch ran and not how.
_OF_THE_PLACE = ("_DIR", "_PATH", "_BASE", "_PORT", "_RUN_ID", "_VISIBLE_DEVICES")

_KERNELS, _SCHEDULE = "other kernels", "one of the two prepares a batch while the GPU computes, the other waits for it"
_PADDING = "other batch sizes are captured, so batches are padded to other sizes"
_NOTES: Mapping[str, str] = {
    "attention_backend": _KERNELS,
    "prefill_attention_backend": _KERNELS,
    "decode_attention_backend": _KERNELS,
    "sampling_backend": _KERNELS,
    "moe_runner_backend": _KERNELS,
    "page_size": "other pages of the KV cache, and with them other kernels",
    "dtype": "another number format",
    "kv_cache_dtype": "another number format in the KV cache",
    "quantization": "another number format of the weights",
    "max_running_requests": "another number of requests is admitted at once",
    "disable_overlap_schedule": _SCHEDULE,
    "enable_mixed_chunk": "prefill and decoding share batches in one of the two only",
    "chunked_prefill_size": "long prompts are cut into other pieces",
    "disable_radix_cache": "prompts are cached in one of the two only",
    "context_length": "another longest request, and other buffers for it",
    _MEMORY: "another share of the memory is left to the KV cache",
    "random_seed": "another seed",
    "disable_custom_all_reduce": "another kernel sums over the GPUs",
    "disable_cuda_graph": "one of the two decodes without graphs",
    "cuda_graph_bs": _PADDING,
    "cuda_graph_max_bs": _PADDING,
    f"{_GRAPHS}.decode.backend": "one of the two decodes without graphs, or with another kind",
    f"{_GRAPHS}.decode.bs": _PADDING,
    f"{_GRAPHS}.decode.max_bs": _PADDING,
    f"{_GRAPHS}.prefill.backend": "prompts are processed without graphs in one of the two, or with another kind",
    f"{ENV}NCCL_GRAPH_REGISTER": "NCCL registers the buffers of captured graphs in one of the two only",
    f"{ENV}NCCL_CUMEM_ENABLE": "NCCL allocates its buffers in another way",
    f"{ENV}NCCL_NVLS_ENABLE": "NCCL may sum inside the switch in one of the two only",
}
_NCCL = "NCCL may take another way"
_FOR_THE_DRAFTER = "lowered on purpose, by what this version keeps free for a drafter"


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that the two servers ran with different values; `unset` where a server did not have it."""

    name: str  # as the server calls it; `env.` before a variable
    plain: str
    trial: str
    note: str | None = None  # what it may do to a comparison, where that is known
    deliberate: bool = False  # specsearch's own doing, so that the two stay comparable


@dataclass(frozen=True, slots=True)
class Comparison:
    """A trial and a plain run, and what of their servers differs beyond searched knobs and speculation itself."""

    trial: int
    plain: int
    settings_known: bool  # whether both servers told what they run
    environment_known: bool  # whether the variables of both could be read
    differences: tuple[Difference, ...] = ()

    @property
    def confounders(self) -> tuple[str, ...]:
        """Names of the settings that may explain a gap between the two as well."""
        return tuple(difference.name for difference in self.differences if not difference.deliberate)


def compare(row: TrialResult, plain: TrialResult) -> Comparison:
    """What a gap between a trial and a plain run may owe to, beside their points and speculation itself."""
    settings_known = bool(row.effective and plain.effective)
    environment_known = row.effective_env is not None and plain.effective_env is not None
    found: list[tuple[str, str, str]] = []
    if settings_known:
        found += _apart(*_on_a_par(_flat(row.effective), _flat(plain.effective)))
    if environment_known:
        found += _apart(_variables(row.effective_env or {}), _variables(plain.effective_env or {}))
    searched = knobs_apart(row.point, plain.point)
    differences = tuple(
        Difference(name, before, after, *_note(name, row, before, after))
        for name, after, before in found
        if not _explained(name, searched)
    )
    return Comparison(row.number, plain.number, settings_known, environment_known, differences)


def knobs_apart(left: Point, right: Point) -> tuple[str, ...]:
    """The searched knobs, speculative ones left out, in which two points differ; one left out equals `unset`."""
    names = {name for name in left.keys() | right.keys() if not is_speculative_knob(name)}
    return tuple(sorted(name for name in names if not same_value(left.get(name, UNSET), right.get(name, UNSET))))


def _explained(name: str, searched: Collection[str]) -> bool:
    """Whether speculation itself or a searched knob in which the points differ makes this difference."""
    if is_speculative_knob(name) or name in _OF_SPECULATION or name in searched:
        return True
    if name.startswith(_GRAPHS) or name in _OLD_GRAPHS:
        return any(knob in _BOTH_PHASES or _phase(knob) == _phase(name) for knob in searched if "cuda_graph" in knob)
    return any(name in _SETTINGS.get(knob, ()) for knob in searched)


def _phase(name: str) -> str:
    return "prefill" if "prefill" in name else "decode"


def _apart(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(left.keys() | right.keys()):
        pair = left.get(name, UNSET), right.get(name, UNSET)
        if pair[0] != pair[1]:
            yield name, *pair


def _flat(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings, those of graphs one by one; a text that cannot be read stays whole."""
    flat = {name: value for name, value in settings.items() if name != _GRAPHS}
    text = settings.get(_GRAPHS)
    if text is None:
        return flat
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    phases = {phase: config.get(phase) for phase in _PHASES} if isinstance(config, dict) else {}
    if not phases:
        return flat | {_GRAPHS: text}
    for phase, told in phases.items():
        for key in ("backend", *_SIZES):
            if isinstance(told, dict) and told.get(key) is not None:
                flat[f"{_GRAPHS}.{phase}.{key}"] = _text(told[key])
    return flat


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _on_a_par(left: dict[str, str], right: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Both without sizes of graphs that one of them does not capture, and without the largest where lists differ."""
    silent = set()
    for phase in _PHASES:
        names = [f"{_GRAPHS}.{phase}.{key}" for key in ("backend", *_SIZES)]
        backends = {settings.get(names[0], "disabled") for settings in (left, right)}
        if "disabled" in backends:
            silent |= {*names[1:]}
        elif left.get(names[1]) != right.get(names[1]):
            silent.add(names[2])
    if "true" in (left.get("disable_cuda_graph"), right.get("disable_cuda_graph")):
        silent |= {"cuda_graph_bs", "cuda_graph_max_bs"}
    elif left.get("cuda_graph_bs") != right.get("cuda_graph_bs"):
        silent.add("cuda_graph_max_bs")
    first, second = ({name: value for name, value in s.items() if name not in silent} for s in (left, right))
    return first, second


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {f"{ENV}{name}": value for name, value in environment.items() if not name.endswith(_OF_THE_PLACE)}


def _note(name: str, row: TrialResult, plain: str, trial: str) -> tuple[str | None, bool]:
    """What a difference may do, and whether it is specsearch's own doing."""
    if name == _MEMORY and not is_plain(row.point) and _runs_as_pinned(row, trial) and _number(trial) < _number(plain):
        return _FOR_THE_DRAFTER, True
    return _NOTES.get(name, _NCCL if name.startswith(f"{ENV}NCCL_") else None), False


def _runs_as_pinned(row: TrialResult, value: str) -> bool:
    return _MEMORY in row.pins and _number(str(row.pins[_MEMORY])) == _number(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
