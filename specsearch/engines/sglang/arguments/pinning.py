"""What every trial after the baseline is pinned to, so that it differs from plain decoding in nothing but its point.

SGLang resolves what it is not told by rules that look at speculation, at top-k and at graphs: another attention
backend, another share of memory, another list of captured batches. The baseline's resolved values stand in for it.
"""

import json
from collections.abc import Collection, Mapping

from specsearch.engines.sglang.installed.version import Profile
from specsearch.search_space import ALGORITHM, PLAIN, Point, Value

_WHOLE = ("page_size", "context_length", "chunked_prefill_size", "max_running_requests", "random_seed")
_BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
_MEMORY = "mem_fraction_static"
MEMORY_FREE = "memory_free_at_start_gb"  # a fact of the baseline, beside its settings
_GRAPHS = ("cuda_graph", "cuda_graph_max_bs", "cuda_graph_bs")
VARIABLES = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_GRAPH_REGISTER")


def flags(settled: Mapping[str, str], profile: Profile, point: Point, args: Mapping[str, Value]) -> dict[str, Value]:
    """The flags, by their names in a search space, that neither the point nor the pinned arguments give."""
    pins: dict[str, Value] = {
        name: int(settled[name]) for name in _WHOLE if settled.get(name, "").lstrip("-").isdecimal()
    }
    if any(name in point for name in _BACKENDS):
        pins.pop("page_size", None)  # which belongs to the backend of the baseline
    else:
        pins |= {name: settled[name] for name in _BACKENDS if name in settled}
    pins |= _memory(settled, profile, point)
    are_off = any(point.get(name) is False for name in ("cuda_graph", "decode_cuda_graph"))
    if not any(name in point for name in _graph_names(profile)[1:]) and not are_off:
        pins |= _graph_batches(settled, args, profile)
    return {name: value for name, value in pins.items() if name not in point and name not in args}


def names(args: Mapping[str, Value], given: Collection[str], profile: Profile) -> tuple[str, ...]:
    """What may be pinned beside the pinned arguments and the variables that something else gives or forces."""
    are_off = any(args.get(name) is False for name in ("cuda_graph", "decode_cuda_graph"))
    no_graphs = args.get("device") == "cpu" or are_off
    batches = () if no_graphs or any(name in args for name in _graph_names(profile)[1:]) else ("cuda_graph_bs",)
    flags = (name for name in (*_BACKENDS, *_WHOLE, _MEMORY, *batches) if name not in args)
    return (*flags, *(f"env.{name}" for name in VARIABLES if name not in given))


def variables(settled: Mapping[str, str], given: Collection[str]) -> dict[str, Value]:
    """The environment variables, with `env.` before their names, that nothing else gives or forces."""
    told = {name: settled.get(f"env.{name}") for name in VARIABLES if name not in given}
    return {f"env.{name}": value for name, value in told.items() if value is not None}


def _memory(settled: Mapping[str, str], profile: Profile, point: Point) -> dict[str, Value]:
    """The baseline's share of memory, less what this version itself keeps free for a drafter."""
    try:
        share = float(settled[_MEMORY])
    except (KeyError, ValueError):
        return {}
    algorithm = str(point.get(ALGORITHM, PLAIN)).upper()
    kept_free_gb = profile.kept_free_gb.get(algorithm, 0.0)
    if kept_free_gb and MEMORY_FREE in settled:
        share = round(share - kept_free_gb / float(settled[MEMORY_FREE]), 3)
    return {_MEMORY: share}


def _graph_batches(settled: Mapping[str, str], args: Mapping[str, Value], profile: Profile) -> dict[str, Value]:
    """The list of batch sizes that the baseline captured; SGLang's own list is finer where it speculates."""
    if settled.get("device") == "cpu" or args.get("cuda_graph") is False or profile.graph_bs in args:
        return {}
    try:
        decode = json.loads(settled.get("cuda_graph_config", "{}")).get("decode", {})
    except ValueError:
        decode = {}
    sizes = decode.get("bs") if decode.get("backend") != "disabled" else None
    if sizes is None and settled.get("disable_cuda_graph") == "false" and "cuda_graph_bs" in settled:
        sizes = settled["cuda_graph_bs"].split()  # as older versions tell it
    return {"cuda_graph_bs": " ".join(map(str, sizes))} if sizes else {}


def _graph_names(profile: Profile) -> tuple[str, ...]:
    return (*_GRAPHS, profile.graph_max_bs, profile.graph_bs)
