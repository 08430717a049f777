"""Proof of CUDA graphs: captured by what the server told at its start, used by the share of decode passes."""

from collections.abc import Iterator, Sequence

from specsearch.errors import InvalidTrial
from specsearch.search_space import ALGORITHM, Point, is_plain
from specsearch.trial import Capture, Measurement

GRAPH_COVERAGE = 0.95
# As versions since 0.5.14 and those before call them.
_TARGET = ("target verify", "target decode", "decode")
_DRAFTER = ("draft decode", "draft")
_WITHOUT_A_DRAFTER = ("NGRAM",)


def graph_memory_gb(captures: Sequence[Capture]) -> float | None:
    """What all captured graphs took; None where no capture says."""
    told = [capture.memory_gb for capture in captures if capture.memory_gb is not None]
    return round(sum(told), 3) if told else None


def used_share(measurements: Sequence[Measurement], decode_in_graph_share: float | None) -> list[float]:
    """The share of decode passes inside a graph in every repeat that knows it; what the log says where none does."""
    shares = [measurement.values.get("cuda_graph_share") for measurement in measurements]
    known = [share for share in shares if share is not None]
    return known or ([decode_in_graph_share] if decode_in_graph_share is not None else [])


def require_graphs(used: Sequence[float]) -> list[str]:
    """Refuse a trial that asked for graphs and never ran in one; warn where decoding fell out of them."""
    if used and max(used) == 0:
        raise InvalidTrial(
            "graphs_not_active",
            "CUDA graphs were asked for and no decode pass ran inside one",
            advice="see the log for why capture was skipped; set the graph batch to at least the concurrency",
        )
    if used and min(used) < GRAPH_COVERAGE:
        return [
            f"only {min(used):.0%} of decode passes ran inside a captured graph; "
            "raise the graph batch to the concurrency, and do not judge the graph knob by this trial"
        ]
    return []


def capture_warnings(
    captures: Sequence[Capture], point: Point, num_steps: int | None, *, concurrency: int, is_used: bool | None
) -> Iterator[str]:
    """What of a trial that asked for graphs was not captured; `is_used`: whether passes ran in one, None if unknown."""
    if not captures:
        if is_used is None:
            yield (
                "CUDA graphs were asked for and neither the log nor the counters tell of one; do not judge the graph "
                "knob by this trial"
            )
        return
    # With one step the drafter proposes in the pass that also takes in what was accepted.
    drafts = not is_plain(point) and str(point[ALGORITHM]).upper() not in _WITHOUT_A_DRAFTER and (num_steps or 0) > 1
    if drafts and not any(capture.name in _DRAFTER for capture in captures):
        yield (
            "the drafter's own passes run without a graph, as far as the log tells: no graph of them was captured; "
            "see whether its attention backend supports one"
        )
    largest = max((max(c.sizes) for c in captures if c.name in _TARGET and c.sizes), default=None)
    if largest is not None and largest < concurrency:
        yield (
            f"graphs were captured for up to {largest} requests and {concurrency} are sent at once: larger batches run "
            "without one; raise cuda_graph_max_bs to the concurrency"
        )
