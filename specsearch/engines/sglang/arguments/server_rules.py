"""What SGLang refuses or switches off by itself, for the sampling of drafts and for any server."""

from collections.abc import Iterator

from specsearch.engines.sglang.arguments.asked import Asked, is_true
from specsearch.engines.sglang.arguments.tree_rules import page_size
from specsearch.engines.sglang.models.drafter import number, smallest_draft_vocabulary

REJECTION, BLOCK = "speculative_use_rejection_sampling", "speculative_use_block_verification"
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
DETERMINISTIC = "enable_deterministic_inference"
_BACKENDS_WITHOUT_GRAPHS = ("torch_native", "flex_attention")
# Attention backends that compute the same whatever the batch, by the version that began with them.
_DETERMINISTIC_BACKENDS: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = (
    ((0, 5, 9), ("flashinfer", "fa3", "triton")),
    ((0, 5, 17), ("ascend", "fa3", "fa4", "flashinfer", "triton")),
    ((0, 5, 20), ("ascend", "fa3", "fa4", "flashinfer", "intel_xpu", "triton")),
)
_PP_VARIABLE = "SGLANG_ENABLE_PP_SPEC"


def sampling_problems(asked: Asked) -> Iterator[str]:
    """What the ways to accept drafts that are not SGLang's own demand."""
    window, sink = asked.whole("speculative_draft_window_size"), asked.whole("speculative_draft_sink_size")
    if window is not None and window <= 0:
        yield f"speculative_draft_window_size {window} must be at least 1"
    if sink is not None and (sink < 0 or window is None):
        yield f"speculative_draft_sink_size {sink} needs a speculative_draft_window_size and must be at least 0"
    if asked.is_on(BLOCK):
        yield from _block_verification_problems(asked)
    implied = asked.is_on(BLOCK) and asked.algorithm in ("EAGLE", "EAGLE3", "NEXTN")
    if asked.is_on(REJECTION) or implied:
        yield from _rejection_problems(asked, REJECTION if asked.is_on(REJECTION) else BLOCK)


def _block_verification_problems(asked: Asked) -> Iterator[str]:
    algorithms = ("EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK")
    if asked.algorithm not in algorithms:
        yield f"{BLOCK} has {', '.join(algorithms)} only, not {asked.algorithm}"
    if (asked.text("device") or "cuda") != "cuda":
        yield f"{BLOCK} cannot run on device {asked.text('device')}"


def _rejection_problems(asked: Asked, switch: str) -> Iterator[str]:
    if asked.algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        yield f"{switch} has EAGLE, EAGLE3 and NEXTN only, not {asked.algorithm}"
    top_k = asked.whole("eagle_topk")
    if top_k is not None and top_k != 1:
        yield f"{switch} samples along a chain, not a tree of eagle_topk {top_k}: use eagle_topk 1"
    lowered = [asked.said(name) for name in THRESHOLDS if asked.settings.get(name, 1) != 1]
    if lowered:
        yield f"{switch} knows no thresholds: leave out {', '.join(lowered)}"
    if asked.is_on(DETERMINISTIC) and asked.release < (0, 5, 23):
        yield f"{switch} cannot be together with {DETERMINISTIC} before SGLang 0.5.23; drop either"
    if asked.is_on("enable_multi_layer_eagle") and asked.release < (0, 5, 17):
        yield f"{switch} cannot be together with enable_multi_layer_eagle before SGLang 0.5.17; drop either"
    yield from _vocabulary_problems(asked, switch)


def _vocabulary_problems(asked: Asked, switch: str) -> Iterator[str]:
    if asked.text("speculative_token_map"):
        yield f"{switch} needs a drafter that chooses among all tokens of the target: leave out speculative_token_map"
    if asked.drafter is None or asked.target is None or asked.algorithm != "EAGLE3":
        return
    theirs = number(asked.target, "vocab_size")
    ours = smallest_draft_vocabulary(asked.drafter, asked.tensors)
    if ours and theirs and ours != theirs:
        yield (
            f"{switch} needs a drafter that chooses among all {theirs} tokens of the target; "
            f"draft_model {asked.draft_model} chooses among {ours}"
        )


def server_problems(asked: Asked) -> Iterator[str]:
    """What keeps any server from starting, plain decoding included, or from running as asked."""
    page, chunk = page_size(asked), asked.whole("chunked_prefill_size")
    if page and chunk and chunk > 0 and chunk % page:
        near = max(page, chunk // page * page)
        yield f"{asked.said('chunked_prefill_size')} is no multiple of the page size {page}: use one, such as {near}"
    if (
        asked.is_on("disable_cuda_graph_padding")
        and asked.is_on("enable_torch_compile")
        and asked.release >= (0, 5, 12)
    ):
        yield "disable_cuda_graph_padding cannot be together with enable_torch_compile; drop either"
    replicas = asked.whole("dp_size") or 1
    if replicas > 1 and not asked.is_on("enable_dp_attention"):
        yield (
            f"{asked.said('dp_size')} without enable_dp_attention needs {replicas} times the GPUs, and a trial claims "
            "engine.tp_size of them: use dp_size 1"
        )
    yield from _graph_problems(asked)
    yield from _deterministic_problems(asked)
    if (asked.whole("pp_size") or asked.whole("pipeline_parallel_size") or 1) > 1 and not asked.is_plain:
        yield from _pipeline_problems(asked)


def _graph_problems(asked: Asked) -> Iterator[str]:
    backend = asked.backend
    if backend is None or asked.text(backend) not in _BACKENDS_WITHOUT_GRAPHS:
        return
    if asked.is_on("cuda_graph") and backend not in asked.settled:
        yield f"cuda_graph true has no effect with {asked.said(backend)}, which turns graphs off: use cuda_graph false"
    if asked.text(backend) == "flex_attention" and not asked.is_plain:
        yield f"no algorithm speculates with {asked.said(backend)}: use another attention backend"


def _deterministic_problems(asked: Asked) -> Iterator[str]:
    if not asked.is_on(DETERMINISTIC):
        return
    allowed = next(
        names for since, names in reversed(_DETERMINISTIC_BACKENDS) if since <= asked.release or len(since) < 3
    )
    backend = asked.backend
    if backend and asked.text(backend) not in allowed:
        yield f"{DETERMINISTIC} runs with {', '.join(allowed)} only, not {asked.said(backend)}: use one of them"
    if asked.is_on("custom_all_reduce") and (asked.tp_size or 1) > 1:
        yield f"custom_all_reduce true has no effect: {DETERMINISTIC} turns it off; use custom_all_reduce false"


def _pipeline_problems(asked: Asked) -> Iterator[str]:
    if asked.release < (0, 5, 21):
        yield "this SGLang does not speculate across pipeline stages: use pp_size 1"
    elif asked.algorithm not in ("EAGLE", "NEXTN") or asked.is_on("enable_multi_layer_eagle"):
        yield f"pipeline stages have EAGLE only, without enable_multi_layer_eagle, not {asked.algorithm}: use pp_size 1"
    elif not is_true(asked.environment.get(_PP_VARIABLE)):
        yield f"speculation across pipeline stages needs {_PP_VARIABLE}=1, or use pp_size 1"
    elif asked.is_on("speculative_adaptive") or asked.attention_dp:
        yield "speculation across pipeline stages has neither speculative_adaptive nor data-parallel attention"


def given_by_the_server(name: str, asked: Asked) -> bool | None:
    """The value of a switch that other settings decide; None where it is free."""
    if name == "cuda_graph" and asked.backend and asked.text(asked.backend) in _BACKENDS_WITHOUT_GRAPHS:
        return False
    if name == "custom_all_reduce" and asked.is_on(DETERMINISTIC) and (asked.tp_size or 1) > 1:
        return False
    return None
