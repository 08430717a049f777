"""What the server counts, in Prometheus' text format."""

from collections.abc import Iterator

from specsearch.engines.simulated.scheduler import Scheduler
from specsearch.engines.simulated.startup import Launch

Sample = tuple[str, str, float]  # suffix of the name, further labels, value


def exposition(scheduler: Scheduler, launch: Launch) -> str:
    """All metrics; counters of tokens and verify calls move when requests finish, those of passes with each pass."""
    labels = f'engine_type="unified",model_name="{launch.resolved.args.served_model_name}",tp_rank="0"'
    lines: list[str] = []
    for name, kind, samples in _families(scheduler, launch):
        lines.append(f"# TYPE sglang:{name} {kind}")
        lines += [f"sglang:{name}{suffix}{{{labels}{more}}} {value}" for suffix, more, value in samples]
    return "\n".join([*lines, ""])


def _families(scheduler: Scheduler, launch: Launch) -> Iterator[tuple[str, str, list[Sample]]]:
    counters, shape = scheduler.counters, scheduler.machine.tree
    streaming = ',is_streaming="true"'
    yield "prompt_tokens_total", "counter", [("", streaming, counters.prompt_tokens)]
    yield "cached_tokens_total", "counter", [("", "", counters.cached_tokens)]
    yield "generation_tokens_total", "counter", [("", streaming, counters.generation_tokens)]
    yield "spec_verify_calls_total", "counter", [("", "", counters.verify_calls)]
    yield "num_requests_total", "counter", [("", streaming, counters.requests)]
    yield "num_aborted_requests_total", "counter", [("", "", counters.aborted)]
    yield "realtime_tokens_total", "counter", [("", ',mode="decode"', counters.decode_tokens)]
    passes: list[Sample] = [
        ("", ',mode="decode_cuda_graph"', counters.passes_in_graph),
        ("", ',mode="decode_none"', counters.passes_eager),
        ("", ',mode="prefill_none"', counters.prefills),
    ]
    yield "cuda_graph_passes_total", "counter", passes
    gauges = {
        "gen_throughput": scheduler.last_throughput,
        "spec_accept_length": scheduler.last_accept[0],
        "spec_accept_rate": scheduler.last_accept[1],
        "spec_num_steps": shape.num_steps if shape else 0,
        "spec_num_draft_tokens": shape.num_draft_tokens if shape else 0,
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": len(scheduler.waiting),
        "token_usage": scheduler.usage,
        "num_used_tokens": scheduler.held_tokens,
        "max_total_num_tokens": scheduler.limits.kv_tokens,
        "weight_memory_usage_gb": launch.memory.target_gb + launch.memory.draft_gb,
        "kv_cache_memory_usage_gb": launch.memory.kv_gb,
    }
    for name, value in gauges.items():
        yield name, "gauge", [("", "", value)]
