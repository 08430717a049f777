"""Each metric once: name, unit, better direction, formatter; and the summary of request records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specsearch import speculation


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a load point or a whole trial has; `better` is +1 if more is better, -1 if less, 0 if neither."""

    name: str
    unit: str
    better: int
    digits: int
    meaning: str

    def format(self, value: float | None) -> str:
        """The value with its unit, `–` when it is not known."""
        if value is None or not math.isfinite(value):
            return "–"
        return f"{value:,.{self.digits}f}{' ' + self.unit if self.unit else ''}"


_ALL = (
    Metric("output_tokens_per_s", "tokens/s", 1, 1, "tokens of good requests over the wall time of the repeat"),
    Metric("stream_tokens_per_s", "tokens/s", 1, 1, "decoding speed of one stream, median over requests"),
    Metric("ttft_p50_ms", "ms", -1, 1, "time to first token, median"),
    Metric("ttft_p99_ms", "ms", -1, 1, "time to first token, 99th percentile"),
    Metric("itl_p50_ms", "ms", -1, 2, "gap between two chunks as a reader sees it, median"),
    Metric("itl_p99_ms", "ms", -1, 2, "gap between two chunks as a reader sees it, 99th percentile"),
    Metric("e2e_p50_ms", "ms", -1, 1, "request latency, median"),
    Metric("e2e_p99_ms", "ms", -1, 1, "request latency, 99th percentile"),
    Metric("accept_length", "", 1, 2, "tokens per verify step, the bonus token counted; null in plain decoding"),
    Metric("accept_rate", "", 1, 3, "accepted drafts over proposed drafts"),
    Metric("accept_length_within_draft_context", "", 1, 2, "of requests within a stretched drafter's own context"),
    Metric("accept_length_beyond_draft_context", "", 1, 2, "of requests beyond a stretched drafter's context"),
    Metric("step_time_ms", "ms", -1, 2, "decode time of a stream over its steps, seen by the client"),
    Metric("server_step_time_ms", "ms", -1, 2, "decode step by the server's own clock, median over the repeat"),
    Metric("verify_steps", "", 0, 0, "verify steps of all requests; 0 in plain decoding"),
    Metric("correct_drafts", "", 0, 0, "accepted draft tokens of all requests"),
    Metric("output_tokens", "tokens", 0, 0, "generated tokens of good requests"),
    Metric("prompt_tokens", "tokens", 0, 0, "prompt tokens of good requests"),
    Metric("cached_token_share", "", 0, 3, "prompt tokens answered from the prefix cache over all prompt tokens"),
    Metric("requests_total", "", 0, 0, "requests sent"),
    Metric("requests_ok", "", 0, 0, "requests that brought every token asked for"),
    Metric("requests_failed", "", -1, 0, "requests that failed, timed out, were aborted or came up short"),
    Metric("degenerate_share", "", -1, 3, "share of replies that repeat themselves"),
    Metric("cuda_graph_share", "", 0, 3, "share of decode passes that ran inside a captured graph"),
    Metric("duration_s", "s", 0, 2, "wall time of the repeat"),
)  # fmt: skip
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}

_FACTS = (
    Metric("gpu_memory_used_bytes", "bytes", -1, 0, "memory used on the fullest GPU while the server was ready"),
    Metric("startup_s", "s", -1, 1, "launch to ready"),
    Metric("gpu_release_s", "s", -1, 2, "end of teardown to all GPU memory back"),
    Metric("server_accept_length", "", 1, 2, "lifetime accept length the server reports; a cross-check only"),
    Metric("graph_capture_s", "s", 0, 1, "time the server spent capturing graphs"),
    Metric("graph_memory_gb", "GB", -1, 2, "memory that the captured graphs took on one GPU"),
    Metric("memory_free_at_start_gb", "GB", 0, 1, "memory free on the fullest GPU before the server loaded anything"),
)
TRIAL_FACTS: Mapping[str, Metric] = {metric.name: metric for metric in _FACTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it; times are monotonic seconds. A count that the server does not tell is None."""

    started_s: float
    finished_s: float
    chunks: Sequence[tuple[float, int]] = ()  # (arrival, tokens so far)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int = 0
    verify_steps: int | None = None
    correct_drafts: int | None = None
    proposed_drafts: int | None = None
    accepted_histogram: tuple[int, ...] | None = None
    text: str = ""
    error: str | None = None  # a sentence; None for a good request
    timed_out: bool = False
    degenerate: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def length(self) -> int | None:
        """Tokens of prompt and reply together."""
        return None if self.prompt_tokens is None else self.prompt_tokens + self.completion_tokens

    @property
    def first_token_s(self) -> float | None:
        return self.chunks[0][0] if self.chunks else None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the records of one repeat say."""

    values: Mapping[str, float | None]
    accepted_histogram: tuple[int, ...] | None = None
    accept_source: str = "none"


@dataclass(slots=True)
class _Accept:
    verify_steps: int = 0
    correct_drafts: int = 0
    proposed_drafts: int = 0
    length: float | None = None
    source: str = "none"
    histogram: list[int] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which that share lies, interpolated; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(records: Sequence[RequestRecord], duration_s: float, *, draft_context: int | None = None) -> Summary:
    """The metrics of one repeat; failed requests count as failed and never as speed.

    Throughput divides the tokens of good requests by the wall time of the whole repeat. `draft_context` is the tokens a
    drafter was made for where it is stretched beyond. `cuda_graph_share` and `server_step_time_ms` are not a request's
    business and stay None.
    """
    good = [record for record in records if record.ok]
    tokens = sum(record.completion_tokens for record in good)
    ttft = [1e3 * (record.first_token_s - record.started_s) for record in good if record.first_token_s is not None]
    gaps = [
        1e3 * (later - earlier)
        for record in good
        for (earlier, _), (later, _) in zip(record.chunks, record.chunks[1:], strict=False)
    ]
    e2e = [1e3 * (record.finished_s - record.started_s) for record in good]
    accept = _accept(good)
    values: dict[str, float | None] = dict.fromkeys(METRICS)
    values |= {
        "output_tokens_per_s": tokens / duration_s if duration_s > 0 else None,
        "stream_tokens_per_s": percentile([speed for speed in map(_stream_speed, good) if speed is not None], 0.5),
        "ttft_p50_ms": percentile(ttft, 0.5),
        "ttft_p99_ms": percentile(ttft, 0.99),
        "itl_p50_ms": percentile(gaps, 0.5),
        "itl_p99_ms": percentile(gaps, 0.99),
        "e2e_p50_ms": percentile(e2e, 0.5),
        "e2e_p99_ms": percentile(e2e, 0.99),
        "accept_length": accept.length,
        **_by_draft_context(good, draft_context),
        "accept_rate": accept.correct_drafts / accept.proposed_drafts if accept.proposed_drafts else None,
        "step_time_ms": _step_time_ms(good),
        "verify_steps": accept.verify_steps,
        "correct_drafts": accept.correct_drafts if accept.source == "requests" else None,
        "output_tokens": tokens,
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in good),
        "cached_token_share": _cached_token_share(good),
        "requests_total": len(records),
        "requests_ok": len(good),
        "requests_failed": len(records) - len(good),
        "degenerate_share": sum(record.degenerate for record in good) / len(good) if good else None,
        "duration_s": duration_s,
    }
    histogram = tuple(accept.histogram) if accept.histogram else None
    return Summary(values, histogram, accept.source)


def _stream_speed(record: RequestRecord) -> float | None:
    if len(record.chunks) < 2 or record.chunks[-1][0] <= record.chunks[0][0]:
        return None
    (first_s, first_tokens), (last_s, last_tokens) = record.chunks[0], record.chunks[-1]
    return (last_tokens - first_tokens) / (last_s - first_s)


def _cached_token_share(good: Sequence[RequestRecord]) -> float | None:
    """Cached prompt tokens over prompt tokens of the requests that tell both."""
    told = [(r.cached_tokens, r.prompt_tokens) for r in good if r.cached_tokens is not None and r.prompt_tokens]
    prompt_tokens = sum(prompt for _, prompt in told)
    return sum(cached for cached, _ in told) / prompt_tokens if prompt_tokens else None


def _step_time_ms(good: Sequence[RequestRecord]) -> float | None:
    """Decode seconds over decode steps; prefill makes the first token, so it is outside both.

    Where the first chunk brought more than that token, its share of the steps is outside, too.
    """
    seconds = steps = 0.0
    for record in good:
        if len(record.chunks) < 2 or record.completion_tokens < 2:
            continue
        (first_s, first_tokens), (last_s, last_tokens) = record.chunks[0], record.chunks[-1]
        decoded = record.completion_tokens - 1
        seconds += last_s - first_s
        steps += (record.verify_steps or decoded) * (last_tokens - first_tokens) / decoded
    return 1e3 * seconds / steps if steps else None


def _by_draft_context(good: Sequence[RequestRecord], context: int | None) -> dict[str, float | None]:
    """The accept length apart for requests that the drafter was made for and for those beyond its context."""
    if context is None:
        return {}
    told = [(record, record.length) for record in good if record.length is not None]
    within = [record for record, length in told if length <= context]
    beyond = [record for record, length in told if length > context]
    return {
        "accept_length_within_draft_context": _accept(within).length,
        "accept_length_beyond_draft_context": _accept(beyond).length,
    }


def _accept(good: Sequence[RequestRecord]) -> _Accept:
    accept = _Accept()
    verified = [record for record in good if record.verify_steps]
    accept.verify_steps = sum(record.verify_steps or 0 for record in verified)
    if not verified:
        return accept
    if all(record.correct_drafts is not None for record in verified):
        accept.correct_drafts = sum(record.correct_drafts or 0 for record in verified)
        accept.proposed_drafts = sum(record.proposed_drafts or 0 for record in verified)
        accept.length = speculation.accept_length(accept.correct_drafts, accept.verify_steps)
        accept.source = "requests"
    else:
        tokens = sum(record.completion_tokens - 1 for record in verified)  # prefill made one token of each
        accept.length, accept.source = tokens / accept.verify_steps, "tokens"
    for record in verified:
        counts = record.accepted_histogram or ()
        accept.histogram += [0] * (len(counts) - len(accept.histogram))
        for depth, count in enumerate(counts):
            accept.histogram[depth] += count
    return accept


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
