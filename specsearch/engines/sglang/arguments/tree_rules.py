"""Which trees SGLang drafts and verifies: their size, and what attention backends and pages can do with them."""

from collections.abc import Iterator

from specsearch import speculation
from specsearch.engines.sglang.arguments import adaptive
from specsearch.engines.sglang.arguments.asked import Asked, is_true
from specsearch.engines.sglang.installed.profiles import Profile
from specsearch.engines.sglang.models.drafter import Kind, classify, is_mla

TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
# Backends for multi-head latent attention; all that draft in steps draft chains.
_MLA_BACKENDS = ("flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla")
_MLA_CHAINS = (*_MLA_BACKENDS, "flashinfer")
# Backends that cannot draft at all → the first version that can; () for none up to 0.5.23.
_DRAFTS_SINCE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("torch_native", "flex_attention", "cutlass_mla", "dual_chunk_flash_attn", "wave"), ()),
    **dict.fromkeys(("hpc_ops", "llada2_cfg_flashinfer"), ()),
    "fa4": (0, 5, 10),
    "tokenspeed_mla": (0, 5, 12),
    "cutedsl_mla": (0, 5, 13),
    "intel_amx": (0, 5, 16),
    "intel_xpu": (0, 5, 20),
}
# Backends that change the page size to what they can: → (sizes they take, the one they change others to).
_PAGES: dict[str, tuple[tuple[int, ...], int]] = {
    "flashmla": ((64,), 64),
    "cutlass_mla": ((128,), 128),
    "trtllm_mla": ((32, 64), 64),
    "cutedsl_mla": ((32, 64), 64),
    "tokenspeed_mla": ((32, 64), 64),
    "trtllm_mha": ((16, 32, 64, 128), 64),
    "hpc_ops": ((64,), 64),
}
_DECIDE_IN_DECODING = ("flashmla", "cutlass_mla", "trtllm_mla")
# Before, the draft's attention was chosen by whether the target has multi-head latent attention.
_OWN_ATTENTION = (0, 5, 15)


def triple_problems(asked: Asked) -> Iterator[str]:
    """Are steps, top-k and draft tokens given as a whole, and can a tree hold them?"""
    given = [asked.whole(name) for name in TRIPLE]
    if not any(name in asked.settings for name in TRIPLE):
        return  # SGLang chooses all three
    if adaptive.is_adaptive(asked.settings) and asked.release >= (0, 5, 14):
        return  # SGLang chooses what is missing
    if None in given:
        missing = [name for name in TRIPLE if name not in asked.settings]
        wrong = [asked.said(name) for name in TRIPLE if name in asked.settings and asked.whole(name) is None]
        if missing:
            all_three = "num_steps, eagle_topk and num_draft_tokens"
            yield f"{', '.join(missing)} missing: SGLang wants {all_three} together or none of them"
        if wrong:
            yield f"{', '.join(wrong)}: expected whole numbers"
        return
    steps, top_k, tokens = (value for value in given if value is not None)
    problem = speculation.triple_problem(steps, top_k, tokens)
    if problem:
        yield problem


def tree_problems(asked: Asked, profile: Profile) -> Iterator[str]:
    """What the attention backends and pages of the target say to a tree."""
    top_k = asked.whole("eagle_topk")
    if top_k is None or top_k <= 1:
        return
    for name in dict.fromkeys(filter(None, map(asked.phase_backend, ("prefill", "decode")))):
        if asked.text(name) == "trtllm_mha":
            yield f"eagle_topk {top_k} with {asked.said(name)}, which verifies chains only: use eagle_topk 1"
    yield from _page_problems(asked, top_k, profile.tree_page_backends)
    variable = profile.chain_only_env
    if variable and is_true(asked.environment.get(variable)):
        yield f"eagle_topk {top_k} with {variable}=1, with which this SGLang verifies chains only: drop either"


def _page_problems(asked: Asked, top_k: int, allowed: tuple[str, ...]) -> Iterator[str]:
    page, backend = page_size(asked), asked.backend
    if page is None or page <= 1 or backend is None or asked.text(backend) in allowed:
        return
    is_asked = page == asked.whole("page_size")
    seen = asked.said("page_size") if is_asked else f"pages of {page} tokens, which the backend makes them,"
    yield (
        f"eagle_topk {top_k} with {seen} needs one of the attention backends {', '.join(allowed)}, "
        f"not {asked.said(backend)}: use one of them or {'page_size' if is_asked else 'eagle_topk'} 1"
    )


def page_size(asked: Asked) -> int | None:
    """The page size that SGLang would use; None where it is left to SGLang and may be any."""
    page = asked.whole("page_size")
    for name in ("attention_backend", "decode_attention_backend", "prefill_attention_backend"):
        backend = asked.text(name) or ""
        sizes, otherwise = _PAGES.get(backend, ((), 0))
        reads_prompts_only = name.startswith("prefill") and backend in _DECIDE_IN_DECODING
        if sizes and page not in sizes and not reads_prompts_only:
            page = otherwise
    return page


def draft_backend_problems(asked: Asked) -> Iterator[str]:
    """What the attention backend of the drafter says to its steps and to the drafter's kind of attention."""
    steps, top_k = asked.whole("num_steps"), asked.whole("eagle_topk")
    for name in _draft_backends(asked, steps):
        backend = asked.text(name) or ""
        since = _DRAFTS_SINCE.get(backend)
        if since is not None and not (since and asked.release >= since):
            yield f"no drafter runs with {asked.said(name)}: {_OTHER_BACKEND}"
        elif asked.drafting is not None:
            yield from _mla_problems(asked, name, backend, is_tree=(top_k or 1) > 1 and (steps or 1) > 1)


_OTHER_BACKEND = "give speculative_draft_attention_backend another one, such as triton or flashinfer"


def _draft_backends(asked: Asked, steps: int | None) -> list[str]:
    """The settings that decide on the drafter's backend: for its own steps, and to read what was accepted."""
    own = "speculative_draft_attention_backend"
    if asked.text(own):
        return [own]
    extend = "decode" if asked.text("speculative_attention_mode") == "decode" else "prefill"
    phases = ("decode", extend) if steps is None or steps > 1 else (extend,)
    return list(dict.fromkeys(filter(None, map(asked.phase_backend, phases))))


def assistant_problems(asked: Asked) -> Iterator[str]:
    """What SGLang demands of a Gemma 4 assistant, which it runs by an algorithm of its own."""
    if asked.drafter is None or classify(asked.drafter, asked.tensors).kind is not Kind.ASSISTANT:
        return
    if asked.release < (0, 5, 12):
        yield f"draft_model {asked.draft_model} is a Gemma 4 assistant, which SGLang runs since 0.5.12"
    if not any(name in asked.settings for name in TRIPLE):
        yield f"a Gemma 4 assistant has no steps by default: give {', '.join(TRIPLE)}"
    for name in _draft_backends(asked, asked.whole("num_steps")):
        if (asked.whole("eagle_topk") or 1) > 1 and asked.text(name) not in ("triton", "trtllm_mha"):
            yield f"a Gemma 4 assistant drafts trees with triton and trtllm_mha only, not {asked.said(name)}"


def _mla_problems(asked: Asked, name: str, backend: str, *, is_tree: bool) -> Iterator[str]:
    latent = asked.drafting is not None and is_mla(asked.drafting)
    if backend in _MLA_BACKENDS and not latent:
        yield (
            f"{asked.said(name)} is for multi-head latent attention, which the drafter does not have: {_OTHER_BACKEND}"
        )
        return
    by_target = asked.release < _OWN_ATTENTION and asked.target is not None and is_mla(asked.target)
    if is_tree and backend in _MLA_CHAINS and (latent or by_target):
        yield (
            f"eagle_topk {asked.whole('eagle_topk')} with {asked.said(name)}, which drafts chains only where attention "
            "is multi-head latent: use eagle_topk 1 or another speculative_draft_attention_backend"
        )
