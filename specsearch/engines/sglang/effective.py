"""What a server really runs: from its own description, its log and the environment of its ranks."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

from specsearch.engines.sglang.arguments.flags import ENV, flag_of
from specsearch.engines.sglang.arguments.rules import ENV_DEFAULTS, SGLangRules
from specsearch.launch import is_secret, is_secret_flag
from specsearch.search_space import ALGORITHM, UNSET, Point, Value

# Settings that differ between two launches of the same configuration, or that say nothing about it.
_OF_THE_LAUNCH = frozenset(
    {
        *("port", "host", "nccl_port", "grpc_port", "dist_init_addr", "launch_command", "startup_time"),
        *("internal_states", "weight_version", "version", "status", "frontend", "kv_events"),
        *("max_total_num_tokens", "max_req_input_len"),  # measured from free memory, a little different each time
        *("forward_pass_metrics_ipc_name", "forward_pass_metrics_worker_id"),
    }
)
# How graphs were asked for; `cuda_graph_config` says what became of it.
_ASKED_OF_GRAPHS = frozenset(
    {
        *("cuda_graph_max_bs_decode", "cuda_graph_bs_decode", "cuda_graph_backend_decode", "disable_decode_cuda_graph"),
        *("cuda_graph_max_bs_prefill", "cuda_graph_bs_prefill", "cuda_graph_backend_prefill"),
        *("disable_prefill_cuda_graph", "disable_cuda_graph"),
    }
)
_RANK = "sglang::scheduler"
_COMPUTES = (
    *("NCCL_", "SGLANG_", "SGL_", "CUDA_", "CUBLAS_", "NVIDIA_", "TORCH", "PYTORCH_"),
    *("OMP_", "TRITON_", "FLASHINFER_", "NVTE_"),
)
_OF_THE_PLACE = frozenset({"CUDA_VISIBLE_DEVICES", "SGLANG_RUN_ID", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"})


def canonical_settings(
    info: Mapping[str, object], told_by_log: Mapping[str, str] | None = None, tmpdir: str | None = None
) -> dict[str, str]:
    """The settings that two launches of one configuration share, as text; `info` is the server's description.

    What only the log tells fills what the description leaves open.
    """
    told = dict(told_by_log or {})
    kernel_is_off = told.pop("custom_all_reduce", None) == "false"
    settings = dict(told)
    left_out = _OF_THE_LAUNCH | (_ASKED_OF_GRAPHS if info.get("cuda_graph_config") else frozenset())
    for name, value in sorted(info.items()):
        if name in left_out or name.startswith("_") or value is None or is_secret_flag(name):
            continue
        text = as_text(value)
        if not (tmpdir and tmpdir in text):
            settings[name] = text
    if kernel_is_off:
        settings["disable_custom_all_reduce"] = "true"
    return dict(sorted(settings.items()))


def effective_key(
    settings: Mapping[str, str], rules: SGLangRules, point: Point, environment: Mapping[str, str] | None
) -> str:
    """Equal for equal effective configurations: inert settings do not count, forced variables count as forced.

    Where the environment of the ranks is known, its NCCL variables count and not the requested ones.
    """
    counted = {name: value for name, value in settings.items() if rules.why_inert(name) is None}
    requested = {**ENV_DEFAULTS, **rules.environment(point)}
    forced = rules.forced(rules.settings(point))
    requested |= {name: value or "forced" for name, (_, value) in forced.items() if name in requested}
    if environment is not None:
        names = {*requested, *(name for name in environment if name.startswith("NCCL_"))}
        requested = {name: environment.get(name, requested.get(name, UNSET)) for name in sorted(names)}
    return hashlib.sha256(json.dumps([counted, requested], sort_keys=True).encode()).hexdigest()


def overridden(
    point: Point,
    rules: SGLangRules,
    info: Mapping[str, object],
    settings: Mapping[str, str],
    environment: Mapping[str, str] | None,
) -> Iterator[str]:
    """What runs differently from what the point asks, as `num_draft_tokens: asked 16, runs 4`."""
    for name, asked in sorted(point.items()):
        only_prefill = name == "cuda_graph" and point.get("decode_cuda_graph") is False
        if asked == UNSET or only_prefill or rules.why_inert(name):
            continue
        runs = _running(name, asked, rules, info, settings, environment)
        if runs is not None and not _same(name, asked, runs):
            yield f"{name}: asked {as_text(asked)}, runs {runs}"


def lesson(point: Point, settings: Mapping[str, str]) -> str | None:
    """A constraint that keeps out a value that was found to be the same as another on these GPUs.

    With the custom kernel asked for and off, it is the value false that stays: NCCL settings have a meaning under it.
    """
    is_off = settings.get("disable_custom_all_reduce") == "true"
    return "not custom_all_reduce" if is_off and point.get("custom_all_reduce") is True else None


def own_environment(processes: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str] | None:
    """The variables of the first rank among processes given as (command, environment); None when there is none.

    A rank starts with what its parent had set by then, so SGLang's own additions are among them.
    """
    for command, environment in processes:
        if command.startswith(_RANK):
            return {name: value for name, value in sorted(environment.items()) if _is_told(name)}
    return None


def _is_told(name: str) -> bool:
    return name.startswith(_COMPUTES) and name not in _OF_THE_PLACE and not is_secret(name)


def _running(
    name: str,
    asked: Value,
    rules: SGLangRules,
    info: Mapping[str, object],
    settings: Mapping[str, str],
    environment: Mapping[str, str] | None,
) -> str | None:
    """What runs for a knob; None when nothing says."""
    if name.startswith(ENV):
        variable = name.removeprefix(ENV)
        return environment.get(variable, UNSET) if environment is not None and _is_told(variable) else None
    if name == "custom_all_reduce" and settings.get("disable_custom_all_reduce") == "true":
        return "false"
    graphs = info.get("cuda_graph_config")
    decode = graphs.get("decode") if isinstance(graphs, dict) else None
    decode = decode if isinstance(decode, dict) else {}
    if name in ("cuda_graph", "decode_cuda_graph") and "backend" in decode:
        return as_text(decode["backend"] != "disabled")
    if name == "cuda_graph_max_bs" and decode.get("max_bs") is not None:
        return as_text(decode["max_bs"])
    if name == "cuda_graph_bs" and isinstance(decode.get("bs"), list):
        return as_text(decode["bs"])
    flag = flag_of(name, rules.profile)
    value = info.get(flag)
    if value is None:
        return "none" if name == ALGORITHM and flag in info else None
    is_switch_off = flag.startswith("disable_") and flag != name
    return as_text(not value if is_switch_off and isinstance(asked, bool) else value)


def _same(name: str, asked: Value, runs: str) -> bool:
    words = " ".join(as_text(asked).replace(",", " ").split()) if name == "cuda_graph_bs" else as_text(asked)
    if name == ALGORITHM and {words.upper(), runs.upper()} <= {"NEXTN", "EAGLE"}:
        return True  # SGLang's own name for the same thing
    if isinstance(asked, int | float) and not isinstance(asked, bool) and _is_number(runs):
        return float(asked) == float(runs)
    return words.lower() == runs.lower()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_text(value: object) -> str:
    """A setting as it is stored: text as it is, whole numbers in a row, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return " ".join(map(str, value))
    return json.dumps(value, sort_keys=True)
