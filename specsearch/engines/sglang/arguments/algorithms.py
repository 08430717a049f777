"""The speculative algorithms that SGLang ships: since when, with which drafter, and which knobs they take."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from specsearch.engines.sglang.arguments import adaptive
from specsearch.engines.sglang.arguments.asked import Asked, algorithm_of
from specsearch.engines.sglang.installed.profiles import PROFILES
from specsearch.engines.sglang.models import drafter as drafters
from specsearch.engines.sglang.models.checkpoint import Config
from specsearch.search_space import PLAIN, UNSET, Value

EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
SHIPPED_ALGORITHMS = PROFILES[-1].algorithms
NEEDS_A_DRAFTER = (*EAGLE_FAMILY, "DFLASH", "DSPARK")
_BLOCKS = ("DFLASH", "DSPARK")  # a block of tokens at once
# SGLang sets steps and top-k of these by itself: to 1, and for NGRAM from its breadth and its draft tokens.
_WITHOUT_STEPS = (*_BLOCKS, "NGRAM")
_BLOCK_SIZE = {"DFLASH": ("speculative_dflash_block_size", 0), "DSPARK": ("speculative_dspark_block_size", 1)}
# Knobs that some algorithms read and the others ignore, by the beginnings of their names.
_READ_BY: Mapping[str, tuple[str, ...]] = {
    "speculative_ngram_": ("NGRAM",),
    "speculative_dflash_": ("DFLASH",),
    "speculative_dspark_": ("DSPARK",),
    "uno_lora_path": ("UNO",),
    "speculative_token_map": ("EAGLE", "NEXTN", "STANDALONE"),  # an EAGLE-3 head brings its own
    "draft_model": NEEDS_A_DRAFTER,
    "speculative_draft_": NEEDS_A_DRAFTER,
}
# Targets whose checkpoint holds a drafter that SGLang takes by itself where none is named, by version.
_BUNDLED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"),
            *("GlmMoeDsaForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "BailingMoeV2_5ForCausalLM"),
            *("MistralLarge3ForCausalLM", "PixtralForConditionalGeneration"),
        ),
        (0, 5, 9),
    ),
    "HYV3ForCausalLM": (0, 5, 11),
    "DeepseekV4ForCausalLM": (0, 5, 12),
    "HYV4ForCausalLM": (0, 5, 20),
    "Qwen4ExpForConditionalGeneration": (0, 5, 20),
}
_NGRAM_BREADTH = 10  # SGLang's own speculative_ngram_max_bfs_breadth, which is the top-k of NGRAM
_UNO_MOST_TOKENS, _UNO_MOST_SLOTS = 128, 2048


def given_by_the_algorithm(name: str, settings: Mapping[str, Value], release: tuple[int, ...]) -> Value | None:
    """The value that a knob has under the algorithm of these settings whatever is asked; None where it is free.

    What the algorithm does not read is `unset`.
    """
    algorithm = algorithm_of(settings)
    if algorithm not in SHIPPED_ALGORITHMS:
        return UNSET if algorithm == PLAIN and name == "uno_lora_path" else None
    readers = _readers(name)
    if readers is not None and algorithm not in readers:
        return UNSET
    if name == adaptive.CONFIG and settings.get(adaptive.ADAPTIVE) in (False, UNSET):
        return UNSET
    if algorithm in _WITHOUT_STEPS and name in ("num_steps", "eagle_topk"):
        return UNSET
    if algorithm in _BLOCKS and name == "num_draft_tokens":
        flag, more = _BLOCK_SIZE[algorithm]
        return _more(settings.get(flag), more)
    if algorithm in EAGLE_FAMILY and adaptive.is_adaptive(settings):
        return _of_adaptive_speculation(name, settings, release)
    if algorithm in EAGLE_FAMILY and name == "num_draft_tokens" and settings.get("eagle_topk") == 1:
        return _more(settings.get("num_steps"))
    return None


@cache
def _readers(name: str) -> tuple[str, ...] | None:
    """The algorithms that read a knob; None where all that speculate do."""
    return next((readers for start, readers in _READ_BY.items() if name.startswith(start)), None)


def _of_adaptive_speculation(name: str, settings: Mapping[str, Value], release: tuple[int, ...]) -> Value | None:
    """A chain whose steps SGLang moves: the number asked for is only where it begins, so all of them are one."""
    if name == "eagle_topk":
        return 1
    if name == "num_steps":
        path = settings.get(adaptive.CONFIG)
        return adaptive.first_steps(path if isinstance(path, str) and path != UNSET else None, release)
    return _more(settings.get("num_steps")) if name == "num_draft_tokens" else None


def _more(count: Value | None, more: int = 1) -> Value | None:
    """So many more, such as the root beside the tokens of a chain; None where the count is not known."""
    return count + more if type(count) is int else None


def algorithm_problems(asked: Asked, known: Sequence[str]) -> Iterator[str]:
    """What this algorithm cannot run with, other than its drafter and its tree; `known` are those of the version."""
    if asked.algorithm in SHIPPED_ALGORITHMS and asked.algorithm not in known:
        since = next(profile.since for profile in PROFILES if asked.algorithm in profile.algorithms)
        yield f"{asked.algorithm} came with SGLang {since}; use another algorithm or a later SGLang"
        return
    if adaptive.is_adaptive(asked.settings):
        yield from adaptive.adaptive_problems(asked)
    if asked.attention_dp:
        yield from _attention_dp_problems(asked)
    own = {"NGRAM": _ngram_problems, "DFLASH": _dflash_problems, "DSPARK": _dspark_problems, "UNO": _uno_problems}
    if asked.algorithm in own:
        yield from own[asked.algorithm](asked)


def missing_drafter(asked: Asked) -> str | None:
    """Why the algorithm cannot do without a drafter here, or None."""
    algorithm, target = asked.algorithm, asked.target
    if algorithm not in NEEDS_A_DRAFTER or asked.draft_model is not None:
        return None
    if algorithm in ("EAGLE", "NEXTN"):
        if target is None or _bundles_a_drafter(target, asked.release):
            return None
        if drafters.has_an_mtp_head(target):
            return (
                f"{algorithm} needs a draft_model: name {asked.model} itself, whose multi-token prediction it can use"
            )
    if algorithm == "DSPARK" and (target is None or drafters.bundles_dspark(target) or asked.release >= (0, 5, 23)):
        return None  # since 0.5.23 a folder `dspark` below the target is looked for as well
    dies = "" if algorithm in _BLOCKS else ": without one SGLang takes the target as drafter and dies"
    return f"{algorithm} needs a draft_model{dies}"


def _bundles_a_drafter(target: Config, release: tuple[int, ...]) -> bool:
    known = [_BUNDLED[name] for name in drafters.architectures(target) if name in _BUNDLED]
    return any(since <= release for since in known)


def _attention_dp_problems(asked: Asked) -> Iterator[str]:
    if asked.algorithm in ("STANDALONE", "NGRAM", "UNO"):
        yield f"{asked.algorithm} cannot be together with data-parallel attention; drop either"
    elif asked.algorithm == "DFLASH" and asked.release < (0, 5, 23):
        yield "DFLASH cannot be together with data-parallel attention before SGLang 0.5.23; drop either"
    elif asked.algorithm in _BLOCKS and not asked.is_on("enable_dp_lm_head"):
        yield f"{asked.algorithm} with data-parallel attention needs enable_dp_lm_head: true"


def _ngram_problems(asked: Asked) -> Iterator[str]:
    device = asked.text("device") or "cuda"
    devices = ("cuda",) if asked.release < (0, 5, 16) else ("cuda", "cpu") if asked.release < (0, 5, 21) else None
    if device not in (devices or ("cuda", "cpu", "xpu")):
        yield f"NGRAM cannot run on device {device} in this SGLang"
    given = asked.whole("speculative_ngram_max_bfs_breadth")
    breadth, page = _NGRAM_BREADTH if given is None else given, asked.whole("page_size")
    if asked.backend and page and page > 1 and breadth > 1 and asked.text(asked.backend) != "flashinfer":
        yield (
            f"NGRAM with {asked.said('page_size')} and a breadth of {breadth} needs attention backend flashinfer, not "
            f"{asked.said(asked.backend)}: use page_size 1, flashinfer or speculative_ngram_max_bfs_breadth 1"
        )
    tokens, budget = asked.whole("num_draft_tokens"), asked.whole("speculative_ngram_external_sam_budget")
    most = (12 if tokens is None else tokens) - 1
    if asked.text("speculative_ngram_external_corpus_path") and budget is not None and not 0 < budget <= most:
        yield f"speculative_ngram_external_sam_budget {budget} is outside 1 to {most}, the draft tokens but the root"
    if tokens is not None and tokens < 2:
        yield f"num_draft_tokens {tokens} leaves NGRAM nothing to draft: the root is one of them; use 2 or more"


def _block_problems(asked: Asked) -> Iterator[str]:
    flag, more = _BLOCK_SIZE[asked.algorithm]
    size, tokens = asked.whole(flag), asked.whole("num_draft_tokens")
    if size is not None and size <= 0:
        yield f"{flag} {size} must be at least 1"
    elif size is not None and tokens is not None and tokens != size + more:
        yield f"num_draft_tokens {tokens} and {flag} {size} contradict each other: give one of them, or {size + more}"
    if tokens is not None and tokens < 2:
        yield f"num_draft_tokens {tokens} leaves {asked.algorithm} nothing to draft: use 2 or more"
    if (asked.text("device") or "cuda").startswith("cpu"):
        yield f"{asked.algorithm} cannot run on device cpu"


def _dflash_problems(asked: Asked) -> Iterator[str]:
    yield from _block_problems(asked)
    window, tokens = asked.whole("speculative_draft_window_size"), asked.whole("num_draft_tokens")
    if window is not None and tokens is not None and window < tokens:
        yield f"speculative_draft_window_size {window} is below the block of {tokens} tokens: use {tokens} or more"


def _dspark_problems(asked: Asked) -> Iterator[str]:
    yield from _block_problems(asked)


def _uno_problems(asked: Asked) -> Iterator[str]:
    if not (asked.text("device") or "cuda").startswith("cuda"):
        yield f"UNO cannot run on device {asked.text('device')}"
    if (asked.tp_size or 1) > 1:
        yield f"UNO runs on one GPU only, engine.tp_size is {asked.tp_size}"
    if asked.text("uno_lora_path") is None:
        yield "UNO needs uno_lora_path, the adapter by which the target drafts"
    if asked.is_on("enable_deterministic_inference"):
        yield "UNO cannot be together with enable_deterministic_inference"
    for phase in ("prefill", "decode"):
        name = asked.phase_backend(phase)
        if name and asked.text(name) != "fa3":
            yield f"UNO needs attention backend fa3 for {phase}, not {asked.said(name)}"
    yield from _uno_tree_problems(asked)


def _uno_tree_problems(asked: Asked) -> Iterator[str]:
    """Its tree has a limit of its own: top-k at every node, and a list of parents like EAGLE's."""
    tokens, top_k, steps = asked.whole("num_draft_tokens"), asked.whole("eagle_topk") or 1, asked.whole("num_steps")
    if tokens is None or tokens < 1 or top_k < 1:
        yield "UNO needs num_draft_tokens and an eagle_topk of at least 1"
    elif top_k == 1:
        if steps not in (None, 1):
            yield f"UNO with eagle_topk 1 takes num_steps 1, {steps} would be replaced"
    elif steps is None or steps < 1:
        yield f"UNO with eagle_topk {top_k} needs num_steps of at least 1"
    else:
        most = min(_UNO_MOST_TOKENS, _UNO_MOST_SLOTS // top_k, top_k * (steps - 1) + 2, _full_tree(steps, top_k))
        if not steps + 1 <= tokens <= most:
            allowed = f"{steps + 1} to {most}" if most > steps else "none"
            yield f"num_draft_tokens {tokens} does not fit: UNO with {steps} steps, top-k {top_k} takes {allowed}"


def _full_tree(steps: int, top_k: int) -> int:
    """Nodes of a tree with top-k at every node, counted no further than UNO can use."""
    nodes = width = 1
    for _ in range(min(steps, _UNO_MOST_TOKENS)):
        width *= top_k
        nodes += width
        if nodes >= _UNO_MOST_TOKENS:
            break
    return nodes
