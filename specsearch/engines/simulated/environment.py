"""What SGLang 0.5.23 writes into its environment before it starts its ranks: defaults, and what it overwrites."""

from collections.abc import Mapping
from typing import Any

from specsearch.engines.simulated.arguments import Resolved
from specsearch.engines.simulated.faults import Faults

_DETERMINISTIC: Mapping[str, str] = {
    "NCCL_ALGO": "allreduce:tree",
    "NCCL_MIN_NCHANNELS": "8",
    "NCCL_MAX_NCHANNELS": "8",
}


def settled(given: Mapping[str, str], resolved: Resolved, faults: Faults) -> dict[str, str]:
    """The environment of every rank."""
    args = resolved.args
    settled = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", **given}
    if max(args.tp_size, args.ep_size, args.dp_size) > 1 and _captures_graphs(args.cuda_graph_config):
        settled.setdefault("NCCL_GRAPH_REGISTER", "0")
    if args.enable_symm_mem:
        settled["NCCL_CUMEM_ENABLE"] = "1"
    if args.enable_symm_mem or args.enable_nccl_nvls:
        settled["NCCL_NVLS_ENABLE"] = "1"
    if args.enable_deterministic_inference and args.tp_size > 1:
        settled |= _DETERMINISTIC
    settled["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    forced = faults.get("variable_forced")
    return settled | ({forced.text("name"): forced.text("value")} if forced else {})


def _captures_graphs(config: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(phase.get("backend") != "disabled" for phase in config.values())
