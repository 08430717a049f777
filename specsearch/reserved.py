"""Flags and variables that no search-space file may give a server, and why."""

from collections.abc import Mapping

_TP_SIZE = "it is engine.tp_size"
_MODEL = "it is engine.model"
_ONE_NODE = "a trial runs on one node"
_OWN_GPUS = "a trial owns the GPUs it was given"
OWNED_FLAGS: Mapping[str, str] = {
    "port": "every trial gets a fresh port",
    "host": "servers of trials listen on this machine only",
    "model": _MODEL,
    "model_path": _MODEL,
    "tp": _TP_SIZE,
    "tp_size": _TP_SIZE,
    "tensor_parallel_size": _TP_SIZE,
    "served_model_name": "servers of trials go by the name of their model",
    "weight_version": "a trial recognises its own server by it",
    "config": "a second file of arguments would hide what was launched",
    "use_ray": "it would take the GPUs of a trial a second time",
    "nnodes": _ONE_NODE,
    "node_rank": _ONE_NODE,
    "dist_init_addr": _ONE_NODE,
    "nccl_init_addr": _ONE_NODE,
    "base_gpu_id": _OWN_GPUS,
    "gpu_id_step": _OWN_GPUS,
    "log_requests": "it writes every prompt into the trial's log while the clock runs",
    "crash_dump_folder": "every trial has its own log folder",
}
_NO_KEY = "the requests of specsearch carry no key, so that every one would be refused"
_NO_TLS = "the requests of specsearch are plain HTTP, which a server with a certificate does not answer"
# With these a server may start, and nothing can be measured.
REFUSED_FLAGS: Mapping[str, str] = {
    "api_key": _NO_KEY,
    "admin_api_key": _NO_KEY,
    "ssl_keyfile": _NO_TLS,
    "ssl_certfile": _NO_TLS,
    "ssl_ca_certs": _NO_TLS,
    "ssl_keyfile_password": _NO_TLS,
    "enable_ssl_refresh": _NO_TLS,
}
# A flag → the only values with which something can be measured, and why.
ONLY: Mapping[str, tuple[tuple[bool | int | str, ...], str]] = {
    "log_level": (("info", "debug"), "what a trial learns from the log, readiness included, is written at level info"),
    "skip_tokenizer_init": ((False,), "prompts are text, which a server without a tokenizer does not take"),
    "disaggregation_mode": (("null",), "a server that only prefills or only decodes answers no request by itself"),
    "pp_size": ((1,), "a trial claims engine.tp_size GPUs, and pipeline stages need that many each"),
}
# SGLang's second spellings; every rule knows the first one only.
OTHER_SPELLINGS: Mapping[str, str] = {
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "attention_data_parallel_size": "attn_dp_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}
OWNED_VARIABLES: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": _OWN_GPUS,
    "NVIDIA_VISIBLE_DEVICES": _OWN_GPUS,
    "TMPDIR": "every trial gets its own",
}
SECRET_SEARCHED = "a secret cannot be searched: its values would stand in names, logs and rows"


def flag_problem(name: str) -> str | None:
    """Why a flag, written with underscores, must not be given, or None; what is said goes on from its name."""
    if name in OWNED_FLAGS:
        return f"is set by specsearch: {OWNED_FLAGS[name]}"
    if name in REFUSED_FLAGS or name.startswith("ssl_"):
        return f"cannot be given: {REFUSED_FLAGS.get(name, _NO_TLS)}; leave it out"
    return f"write {OTHER_SPELLINGS[name]}" if name in OTHER_SPELLINGS else None


def value_problem(name: str, value: object) -> str | None:
    """Why a flag must not have a value, or None; what is said goes on from its name."""
    allowed, reason = ONLY.get(name, ((), ""))
    if not allowed or any(type(value) is type(one) and value == one for one in allowed):
        return None
    return f"{_text(value)} cannot be given: {reason}; write {' or '.join(map(_text, allowed))}"


def variable_problem(name: str) -> str | None:
    """Why a variable must not be given, or None; what is said goes on from its name."""
    if name.startswith("SPECSEARCH_"):
        return "is set by specsearch: variables that begin with SPECSEARCH_ are its own"
    return f"is set by specsearch: {OWNED_VARIABLES[name]}" if name in OWNED_VARIABLES else None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
