"""Arguments and combinations of them that SGLang refuses, while parsing, resolving or starting."""

import re

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.errors import InfeasibleTrial

_CHAINS_ONLY = r"(?:supports|requires) (?:only )?(?:topk|(?:--)?speculative.eagle.topk)[ <=]*1\b|"
_CHAINS_ONLY += r"[Tt]opk > 1 [^\n]*support|n't support topk > 1|not support\s[^\n]*topk > 1"
# The backends that draft more than one step ahead; with a single step there is no such backend.
_DRAFT_BACKEND = r"(?:FlashMLA|Flashinfer MLA) only supports topk=1"
_SEARCH_OTHERS = "Exclude the combination with a constraint or a condition in the search space."
_TREES = ("*attention_backend", "linear_attn*", "page_size", "draft_model", "speculative_*", "enable_*", "env.SGLANG_*")

ARGUMENTS = (
    Cause(
        re.compile(r"error: (?:unrecognized arguments|ambiguous option|argument |the following arguments are requi)"),
        "arg_rejected",
        InfeasibleTrial,
        "SGLang's command line refused an argument",
        "Compare the flag with `python -m sglang.launch_server --help` of the installed version.",
        statement=True,
        starting=True,
    ),
    Cause(
        re.compile(r"selected index k out of range"),
        "infeasible_params",
        InfeasibleTrial,
        "the draft tree holds fewer tokens than num_draft_tokens asks for",
        "Keep num_draft_tokens - 1 at or below eagle_topk + (num_steps - 1) * eagle_topk**2; memory is not the matter.",
    ),
    Cause(
        re.compile(r"Target model's context_length"),
        "draft_context_too_short",
        InfeasibleTrial,
        "the drafter's context is shorter than the server's",
        "Lower context_length. SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 lets it start, but long requests may then "
        "be accepted badly or crash.",
        starting=True,
    ),
    Cause(
        re.compile(_DRAFT_BACKEND),
        "arg_rejected",
        InfeasibleTrial,
        "a draft tree of several steps is refused with this attention backend of the drafter",
        "Search eagle_topk 1 only, or another speculative_draft_attention_backend.",
        lesson="eagle_topk <= 1 or num_steps <= 1",
        within=_TREES,
    ),
    Cause(
        re.compile(_CHAINS_ONLY),
        "arg_rejected",
        InfeasibleTrial,
        "a draft tree is refused with this attention backend",
        "Search eagle_topk 1 only, or another attention_backend, or page_size 1.",
        lesson="eagle_topk <= 1",
        within=_TREES,
    ),
    Cause(
        re.compile(
            r"(?:does not implement|object has no attribute) '?set_eagle3_layers_to_capture|"
            r"does not support EAGLE3 speculative decoding"
        ),
        "arg_rejected",
        InfeasibleTrial,
        "this target gives no hidden states to an EAGLE-3 drafter",
        "Search another speculative_algorithm; this SGLang has no EAGLE-3 for the target's architecture.",
        lesson="speculative_algorithm != 'EAGLE3'",
        within=("draft_model",),  # one that asks for no hidden states of other layers may still run
    ),
    Cause(
        re.compile(r"is not supported in (?:decode )?attention backend|Unknown speculative algorithm name"),
        "arg_rejected",
        InfeasibleTrial,
        "SGLang refuses this combination of arguments",
        _SEARCH_OTHERS,
        starting=True,
    ),
)
