"""The command line of SGLang 0.5.23 as far as a study can need it, and what SGLang makes of it before loading.

Flags that change nothing here (`--quantization`) are accepted all the same; a flag that SGLang does not have is refused
by argparse, as there. What 0.5.23 refuses with a bare exception is refused with the same bare exception.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specsearch.engines.simulated.adaptive import all_steps, candidates_of
from specsearch.engines.simulated.draft_tree import TreeShape
from specsearch.engines.simulated.profiles import Gpu, Target

VERSION = "0.5.23"
SPECULATIVE_RUNNING_REQUESTS = 48  # what SGLang sets as soon as it speculates and nothing was asked (SM-04)
PLAIN_RUNNING_REQUESTS = 256

_BACKENDS = (
    "triton", "torch_native", "flex_attention", "cutlass_mla", "fa3", "fa4", "flashinfer", "flashmla", "trtllm_mla",
    "trtllm_mha", "cutedsl_mla", "dual_chunk_flash_attn", "intel_amx",
)  # fmt: skip
_TEXTS = (
    "model-path", "tokenizer-path", "tokenizer-mode", "load-format", "revision", "dtype", "quantization",
    "kv-cache-dtype", "device", "host", "served-model-name", "weight-version", "log-level", "log-level-http",
    "schedule-policy", "sampling-backend", "grammar-backend", "moe-runner-backend", "moe-a2a-backend", "chat-template",
    "json-model-override-args", "download-dir", "api-key", "reasoning-parser", "tool-call-parser", "cuda-graph-config",
    "dist-init-addr", "boundary-reduction", "fp8-gemm-runner-backend", "flashinfer-allreduce-fusion-backend",
    "speculative-algorithm", "speculative-draft-model-revision", "speculative-draft-load-format",
    "speculative-token-map", "speculative-draft-kv-cache-dtype", "speculative-moe-runner-backend",
    "speculative-moe-a2a-backend", "speculative-draft-model-quantization", "speculative-adaptive-config",
)  # fmt: skip
_INTS = (
    "port", "nccl-port", "dist-timeout", "nnodes", "node-rank", "pp-size", "ep-size", "context-length",
    "max-running-requests", "max-queued-requests", "max-total-tokens", "max-prefill-tokens", "page-size", "random-seed",
    "num-continuous-decode-steps", "stream-interval", "decode-log-interval", "tokenizer-worker-num", "base-gpu-id",
    "gpu-id-step", "torch-compile-max-bs", "cuda-graph-max-bs-decode", "cuda-graph-max-bs-prefill",
    "triton-attention-num-kv-splits", "scheduler-recv-interval", "speculative-num-steps", "speculative-eagle-topk",
    "speculative-num-draft-tokens", "speculative-draft-window-size", "speculative-draft-sink-size",
    "speculative-ngram-capacity", "speculative-ngram-min-bfs-breadth", "speculative-ngram-max-bfs-breadth",
    "speculative-ngram-max-trie-depth",
)  # fmt: skip
_FLOATS = (
    "mem-fraction-static", "watchdog-timeout", "schedule-conservativeness", "cpu-offload-gb",
    "speculative-accept-threshold-single", "speculative-accept-threshold-acc",
)  # fmt: skip
_SWITCHES = (
    "trust-remote-code", "skip-tokenizer-init", "skip-server-warmup", "enable-metrics", "log-requests",
    "disable-radix-cache", "disable-overlap-schedule", "disable-cuda-graph", "disable-decode-cuda-graph",
    "disable-prefill-cuda-graph", "disable-cuda-graph-padding", "enable-profile-cuda-graph", "enable-cudagraph-gc",
    "disable-custom-all-reduce", "enable-nccl-nvls", "enable-symm-mem", "enable-torch-symm-mem", "enable-mscclpp",
    "pre-warm-nccl", "enable-quant-communications", "enforce-disable-flashinfer-allreduce-fusion", "enable-p2p-check",
    "enable-mixed-chunk", "enable-torch-compile", "enable-deterministic-inference", "enable-dp-attention",
    "enable-hierarchical-cache", "enable-eplb", "disable-shared-experts-fusion", "sleep-on-idle",
    "incremental-streaming-output", "enable-multi-layer-eagle", "speculative-use-rejection-sampling",
    "speculative-use-block-verification", "speculative-adaptive",
)  # fmt: skip
_DEFAULTS: Mapping[str, object] = {
    "host": "127.0.0.1", "port": 30000, "weight_version": "default", "log_level": "info", "device": "cuda",
    "load_format": "auto", "dtype": "auto", "kv_cache_dtype": "auto", "nnodes": 1, "node_rank": 0, "pp_size": 1,
    "ep_size": 1, "page_size": 1, "num_continuous_decode_steps": 1, "stream_interval": 1, "decode_log_interval": 40,
    "max_prefill_tokens": 16384, "chunked_prefill_size": 8192, "watchdog_timeout": 300.0, "schedule_policy": "fcfs",
    "speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0, "random_seed": 42,
    "speculative_ngram_max_bfs_breadth": 10,
}  # fmt: skip

MODELLED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
_KNOWN = (*MODELLED, "DFLASH", "DSPARK", "UNO")
_NGRAM_TOKENS = 12
_TREES_WITH_PAGES = ("flashinfer", "fa3", "triton")


def build_parser() -> argparse.ArgumentParser:
    """SGLang's parser; beginnings of flags are accepted, so that two possible endings make one ambiguous (LF-06)."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    kinds: tuple[tuple[Sequence[str], Callable[[str], object]], ...] = ((_TEXTS, str), (_INTS, int), (_FLOATS, float))
    for names, kind in kinds:
        for name in names:
            parser.add_argument(f"--{name}", type=kind)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("cuda-graph-bs-decode", "cuda-graph-bs-prefill"):
        parser.add_argument(f"--{name}", type=int, nargs="+")
    for name in ("attention", "prefill-attention", "decode-attention", "speculative-draft-attention"):
        parser.add_argument(f"--{name}-backend", choices=_BACKENDS)
    for phase in ("decode", "prefill"):
        parser.add_argument(f"--cuda-graph-backend-{phase}", choices=("full", "breakable", "disabled"))
    parser.add_argument("--speculative-attention-mode", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--chunked-prefill-size", type=int)
    parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model", type=str)
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--dp-size", "--data-parallel-size", "--dp", type=int, default=1)
    parser.set_defaults(**_DEFAULTS)
    return parser


def known_flags() -> frozenset[str]:
    """Every flag that the simulated server takes."""
    return frozenset(option for action in build_parser()._actions for option in action.option_strings)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What SGLang runs after it has settled everything that was left open."""

    args: argparse.Namespace
    tree: TreeShape | None
    graph_batches: tuple[int, ...]  # empty: decode graphs are off
    warnings: tuple[str, ...]


def resolve(args: argparse.Namespace, gpu: Gpu, target: Target) -> Resolved:
    """Fill in and check as SGLang does before it starts a GPU process; raises what SGLang raises."""
    if not args.model_path:
        raise ValueError("--model-path is required")
    warnings = []
    if args.disable_cuda_graph:
        warnings.append(
            "--disable-cuda-graph is deprecated, use --cuda-graph-backend-{decode,prefill}=disabled instead."
        )
    asked_running = args.max_running_requests
    if args.speculative_algorithm:
        warnings += _resolve_speculation(args, target)
    args.served_model_name = args.served_model_name or args.model_path
    args.tokenizer_path = args.tokenizer_path or args.model_path
    args.context_length = args.context_length or target.context_length
    args.attention_backend = args.attention_backend or _default_backend(args, gpu, target)
    if args.max_running_requests is None:
        args.max_running_requests = PLAIN_RUNNING_REQUESTS
    if args.chunked_prefill_size % args.page_size:
        raise ValueError("chunked_prefill_size must be divisible by page_size")
    batches = _graph_batches(args, gpu, asked_running)
    args.cuda_graph_config = _graph_config(args, batches)
    tree = None
    if args.speculative_algorithm:
        tree = TreeShape(args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens)
    return Resolved(args, tree, batches, tuple(warnings))


def _resolve_speculation(args: argparse.Namespace, target: Target) -> list[str]:
    args.speculative_algorithm = args.speculative_algorithm.upper()
    if args.speculative_algorithm not in _KNOWN:
        raise ValueError(f"Unknown speculative algorithm name: {args.speculative_algorithm}")
    if args.speculative_algorithm == "NEXTN":
        args.speculative_algorithm = "EAGLE"
    if args.speculative_algorithm not in MODELLED:
        raise ValueError(f"{args.speculative_algorithm} is not simulated; simulated are {', '.join(MODELLED)}")
    warnings = _resolve_adaptive(args) if args.speculative_adaptive else []
    if args.max_running_requests is None:
        args.max_running_requests = SPECULATIVE_RUNNING_REQUESTS
    resolve_shape = _resolve_ngram if args.speculative_algorithm == "NGRAM" else _resolve_triple
    return [*warnings, *resolve_shape(args, target)]


def _resolve_adaptive(args: argparse.Namespace) -> list[str]:
    """Chains of EAGLE and EAGLE3 only, whose steps must be among the candidates; else it is off, with a warning."""
    reason = None
    if args.speculative_algorithm not in ("EAGLE", "EAGLE3"):
        reason = f"speculative_algorithm={args.speculative_algorithm} (only EAGLE/EAGLE3 are supported)"
    elif args.speculative_eagle_topk not in (None, 1):
        reason = f"speculative_eagle_topk={args.speculative_eagle_topk} (only topk=1 is supported)"
    if reason:
        args.speculative_adaptive = False
        return [f"speculative_adaptive disabled: {reason}. Falling back to static speculative params."]
    steps = all_steps(candidates_of(args.speculative_adaptive_config))
    args.speculative_eagle_topk = 1
    if args.speculative_num_steps is None:
        args.speculative_num_steps = steps[len(steps) // 2]
    if args.speculative_num_steps not in steps:
        raise ValueError(
            f"--speculative-num-steps={args.speculative_num_steps} is not in the adaptive config candidate_steps "
            f"{steps}. Pass one of those values."
        )
    args.speculative_num_draft_tokens = args.speculative_num_steps + 1
    return []


def _resolve_ngram(args: argparse.Namespace, target: Target) -> list[str]:
    """Top-k is the breadth of the search whatever was asked."""
    args.speculative_eagle_topk = args.speculative_ngram_max_bfs_breadth
    args.speculative_num_draft_tokens = args.speculative_num_draft_tokens or _NGRAM_TOKENS
    if args.speculative_num_steps is None:
        args.speculative_num_steps = args.speculative_num_draft_tokens // args.speculative_eagle_topk
    if args.speculative_eagle_topk > 1 and args.page_size > 1 and args.attention_backend != "flashinfer":
        raise ValueError(
            f"speculative_eagle_topk({args.speculative_eagle_topk}) > 1 with page_size({args.page_size}) > 1 is "
            "unstable and produces incorrect results for paged attention backends."
        )
    return []


def _resolve_triple(args: argparse.Namespace, target: Target) -> list[str]:
    if args.speculative_num_steps is None:
        assert args.speculative_eagle_topk is None  # bare, as in SGLang (LF-21)
        assert args.speculative_num_draft_tokens is None
        args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens = (
            (5, 4, 8) if target.architecture == "LlamaForCausalLM" else (3, 1, 4)
        )
    if args.speculative_eagle_topk > 1:  # a TypeError where it was left out, as in SGLang
        _check_tree_backends(args)
    elif args.speculative_num_draft_tokens != args.speculative_num_steps + 1:
        args.speculative_num_draft_tokens = args.speculative_num_steps + 1
        return [
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        ]
    return []


def _check_tree_backends(args: argparse.Namespace) -> None:
    backends = (args.attention_backend, args.prefill_attention_backend, args.decode_attention_backend)
    if "trtllm_mha" in backends:
        raise ValueError("trtllm_mha backend only supports topk = 1 for speculative decoding.")
    if args.page_size > 1 and args.attention_backend not in (None, *_TREES_WITH_PAGES):
        raise ValueError(
            "speculative_eagle_topk > 1 with page_size > 1 is only supported by "
            f"{_TREES_WITH_PAGES}, not by {args.attention_backend}"
        )


def _default_backend(args: argparse.Namespace, gpu: Gpu, target: Target) -> str:
    """Without NVLink it is the Blackwell workstation card, where everything runs on triton."""
    if not gpu.nvlink:
        return "triton"
    chain = not args.speculative_algorithm or (args.speculative_eagle_topk == 1 and args.page_size <= 1)
    return "fa3" if chain or target.kv_replicated else "flashinfer"


def _graph_batches(args: argparse.Namespace, gpu: Gpu, asked_running: int | None) -> tuple[int, ...]:
    """The captured batch sizes, cut to the largest batch that can run."""
    if args.disable_cuda_graph or args.disable_decode_cuda_graph or args.cuda_graph_backend_decode == "disabled":
        return ()
    largest = args.cuda_graph_max_bs_decode or _default_largest_batch(args, gpu, asked_running)
    sizes = args.cuda_graph_bs_decode or default_batches(largest, bool(args.speculative_algorithm))
    return tuple(size for size in sorted(set(sizes)) if size <= args.max_running_requests) or (1,)


def _default_largest_batch(args: argparse.Namespace, gpu: Gpu, asked_running: int | None) -> int:
    by_memory = (256 if args.tp_size < 4 else 512) if gpu.memory_gb < 160 else 512
    return min(by_memory, asked_running or by_memory)


def default_batches(largest: int, speculative: bool) -> list[int]:
    """The sizes SGLang captures up to a largest batch; denser where each request brings several tokens."""
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16)]
    else:
        sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(544, largest + 1, 32)]
        sizes.append(12)
    return sorted({size for size in sizes if size <= largest} | {largest})


def _graph_config(args: argparse.Namespace, batches: tuple[int, ...]) -> dict[str, object]:
    decode = {
        "backend": args.cuda_graph_backend_decode or "full",
        "max_bs": max(batches, default=None),
        "bs": list(batches),
    }
    prefill_off = args.disable_cuda_graph or args.disable_prefill_cuda_graph
    return {
        "decode": decode if batches else {"backend": "disabled", "max_bs": None, "bs": None},
        "prefill": {"backend": "disabled" if prefill_off else args.cuda_graph_backend_prefill or "breakable"},
    }


def knobs_of(resolved: Resolved, env: Mapping[str, str]) -> dict[str, str]:
    """What runs, under the names that search spaces use and in lower case; what is not set is absent."""
    args = resolved.args
    knobs: dict[str, object] = {name: value for name, value in vars(args).items() if value is not None}
    knobs |= {
        "speculative_algorithm": args.speculative_algorithm or "none",
        "cuda_graph": bool(resolved.graph_batches),
        "custom_all_reduce": not args.disable_custom_all_reduce,
        "draft_model": args.speculative_draft_model_path,
        "cuda_graph_max_bs": args.cuda_graph_max_bs_decode,
        "num_steps": args.speculative_num_steps,
        "eagle_topk": args.speculative_eagle_topk,
        "num_draft_tokens": args.speculative_num_draft_tokens,
    }
    knobs |= {f"env.{name}": value for name, value in env.items()}
    return {name: str(value).lower() for name, value in knobs.items() if value is not None}
