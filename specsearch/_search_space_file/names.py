"""The names of knobs, flags and environment variables: what they are called here and which ones are not free."""

import difflib
import re
from collections.abc import Iterable, Mapping

from specsearch import reserved
from specsearch._search_space_file.document import did_you_mean
from specsearch.launch import is_secret

ENV = "env."

# Named knobs and what their values are.
KNOBS: Mapping[str, type[bool | int | str]] = {
    "speculative_algorithm": str,
    "draft_model": str,
    "num_steps": int,
    "eagle_topk": int,
    "num_draft_tokens": int,
    "cuda_graph": bool,
    "decode_cuda_graph": bool,
    "cuda_graph_max_bs": int,
    "cuda_graph_bs": str,
    "num_continuous_decode_steps": int,
    "custom_all_reduce": bool,
    "attention_backend": str,
}
SMALLEST: Mapping[str, int] = {
    "num_steps": 1,
    "eagle_topk": 1,
    "num_draft_tokens": 2,  # the root and one draft
    "cuda_graph_max_bs": 1,
    "num_continuous_decode_steps": 1,
}
LISTS = ("cuda_graph_bs", "cuda_graph_bs_prefill")  # batch sizes, kept as one text: "1 2 4 8"

# SGLang's own spellings of named knobs.
ALIASES: Mapping[str, str] = {
    "speculative_algo": "speculative_algorithm",
    "speculative_draft_model_path": "draft_model",
    "speculative_draft_model": "draft_model",
    "draft_model_path": "draft_model",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "eagle_topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    "cuda_graph_bs_decode": "cuda_graph_bs",
}
# SGLang's switches that turn off what a named knob turns on.
NEGATIONS: Mapping[str, str] = {
    "disable_cuda_graph": "cuda_graph",
    "disable_decode_cuda_graph": "decode_cuda_graph",
    "disable_custom_all_reduce": "custom_all_reduce",
}

# NVIDIA/nccl 698, 355 and 1739: other thread counts and buffer sizes gave wrong sums or hung.
POWERS_OF_TWO = tuple(
    f"{ENV}{name}" for name in ("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE")
)
# The only thread counts that NCCL's documentation allows.
THREAD_COUNTS = ("64", "128", "256", "512")

_FLAG = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")  # no flag is written so
# How near a name must be to a named knob to be taken for a slip: `num_step` is (0.94),
# `prefill_attention_backend`, a flag of its own, is not (0.81).
_A_SLIP = 0.9


def canonical(name: str) -> str:
    """The one name of a knob, whichever of its spellings is given."""
    return ALIASES.get(name, name)


def name_problem(name: str) -> str | None:
    """Why a parameter or pinned setting cannot have this name, or None."""
    if name.startswith(ENV):
        variable = name.removeprefix(ENV)
        return variable_problem(variable) or (reserved.SECRET_SEARCHED if is_secret(variable) else None)
    if is_bare_variable(name):
        return f"an environment variable is written {ENV}NAME; did you mean '{ENV}{name}'?"
    if not _FLAG.fullmatch(name):
        underscored = name.lstrip("-").replace("-", "_")
        near = f"; did you mean '{underscored}'?" if _FLAG.fullmatch(underscored) else ""
        return f"a name is written in small letters, digits and underscores{near}"
    if problem := reserved.flag_problem(name):
        return problem
    if canonical(name) in KNOBS or name in NEGATIONS:
        return None
    meant = slip(name)
    return f"unknown knob; did you mean '{meant}'?" if meant else None


def is_bare_variable(name: str) -> bool:
    """Whether a name is that of an environment variable without the `env.` before it."""
    return _CAPITALS.fullmatch(name) is not None


def slip(name: str) -> str | None:
    """The knob or variable that a name was most likely meant to be; None when it is one, or a flag of its own."""
    if is_bare_variable(name):
        return ENV + name
    if name in KNOBS or name in ALIASES or name in NEGATIONS or name.startswith(ENV):
        return None
    near = difflib.get_close_matches(name, [*KNOBS, *ALIASES], n=1, cutoff=_A_SLIP)
    return near[0] if near else None


def variable_problem(name: str) -> str | None:
    """Why an environment variable cannot be set, or None."""
    if not _VARIABLE.fullmatch(name):
        return "an environment variable is named in letters, digits and underscores"
    return reserved.variable_problem(name)


def unknown(name: str, known: Iterable[str]) -> str:
    """What is said of a name that is no parameter of the space."""
    known = sorted(known)
    return "no such parameter" + (did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}")
