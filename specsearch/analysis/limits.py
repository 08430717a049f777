"""Which side of `speed-up = accept length / relative step cost` holds a configuration back, and what to try next."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specsearch import speculation
from specsearch.analysis.graphs import without_graphs
from specsearch.analysis.speedup import most_tokens_per_step
from specsearch.trial import TrialResult

STEP_COST = "step cost"
ACCEPTANCE = "acceptance"

_MORE_ACCEPTED = 0.5  # tokens per step; about what a drafter trained on its own traffic gains over a foreign one
_CHEAPER_STEP = 0.10
_MOSTLY_ACCEPTED = 0.75  # of the longest possible; beyond it a longer draft is worth a trial
_RARELY_USED = 0.95  # of the accept length that a shorter chain keeps when its last steps hardly matter
_HARDLY_ACCEPTED = 1.02  # a drafter that is fed the wrong hidden states stays at 1.00
_WIDE = 3  # verified tokens for each accepted one


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds a speculative configuration back.

    Each side is held against its own physical limit. A speculative step contains a pass of the target, so it cannot
    cost less than one plain step: the step cost could at best improve by the factor break-even / 1. A step yields at
    most num_steps + 1 tokens: acceptance could at best improve by the factor (num_steps + 1) / accept length. The side
    with more room limits. Neither bound is reached in practice, so the two everyday gains stand beside them.
    """

    side: str | None  # STEP_COST or ACCEPTANCE; None when the longest possible accept length is not known
    step_cost_room: float  # factor that a free draft and a verification as cheap as a plain step would bring
    acceptance_room: float | None  # factor that accepting every draft would bring
    gain_from_more_accepted: float  # factor that half a token more per step would bring
    gain_from_cheaper_step: float  # factor that a step cheaper by a tenth would bring
    to_break_even: str | None  # what is missing, either way; None where speculation pays
    next_steps: tuple[str, ...]


def limits(row: TrialResult, accept_length: float, break_even: float) -> Limits:
    """What limits a measured speculative trial at these two numbers."""
    longest = most_tokens_per_step(row.point)
    step_room, accept_room = break_even, longest / accept_length if longest else None
    side = None if accept_room is None else STEP_COST if step_room >= accept_room else ACCEPTANCE
    hints = [*_cheaper_steps(row, accept_length), *_longer_accepts(row, accept_length, longest)]
    if side == ACCEPTANCE:
        hints = [*_longer_accepts(row, accept_length, longest), *_cheaper_steps(row, accept_length)]
    if accept_length <= _HARDLY_ACCEPTED:
        hints.insert(0, _not_connected(row, accept_length))
    return Limits(
        side=side,
        step_cost_room=step_room,
        acceptance_room=accept_room,
        gain_from_more_accepted=(accept_length + _MORE_ACCEPTED) / accept_length,
        gain_from_cheaper_step=1 / (1 - _CHEAPER_STEP),
        to_break_even=_missing(accept_length, break_even) if accept_length < break_even else None,
        next_steps=tuple(hints),
    )


def _not_connected(row: TrialResult, accept_length: float) -> str:
    """What to look at before any setting, also where the steps were too few to call the trial invalid."""
    steps = math.fsum(m.values.get("verify_steps") or 0 for m in row.measurements)
    share = "hardly any" if accept_length > 1 else "none"
    over = f" in {steps:,.0f} steps" if steps else ""
    return (
        f"t{row.number:04d} accepted {share} of its drafts{over}: "
        "is the drafter connected? (EAGLE for an EAGLE-3 drafter?)"
    )


def _missing(accept_length: float, break_even: float) -> str:
    return (
        f"to break even: accept {break_even:.2f} instead of {accept_length:.2f} tokens per step, "
        f"or make the step {1 - accept_length / break_even:.0%} cheaper"
    )


def _cheaper_steps(row: TrialResult, accept_length: float) -> Iterator[str]:
    point = row.point
    if without_graphs(point):
        yield "turn CUDA graphs on: without them every draft step pays for its kernel launches"
    fixed = {} if most_tokens_per_step(point) is None else point  # with adaptive speculation the triple moves
    tokens, topk, steps = (fixed.get(name) for name in ("num_draft_tokens", "eagle_topk", "num_steps"))
    if isinstance(tokens, int) and tokens > _WIDE * accept_length:
        yield f"verify fewer tokens: {tokens} are verified for {accept_length:.2f} that are kept"
    chain = steps + 1 if isinstance(steps, int) else None  # tokens that a chain of the same depth verifies
    if isinstance(topk, int) and topk > 1 and isinstance(tokens, int) and chain is not None and chain < tokens:
        yield f"try a chain (eagle_topk 1): it verifies {chain} tokens at {steps} steps instead of {tokens}"
    if row.gpu_count > 1 and not any(name.startswith("env.NCCL_") for name in point):
        size = f"{tokens} times larger than in plain decoding" if isinstance(tokens, int) else "larger"
        yield f"search NCCL settings or the custom all-reduce: verification makes every all-reduce {size}"
    if isinstance(steps, int) and steps > 1:
        yield f"a cheaper draft: a smaller drafter, or fewer than {steps} draft steps, each a pass of the drafter"


def _longer_accepts(row: TrialResult, accept_length: float, longest: int | None) -> Iterator[str]:
    if accept_length <= _HARDLY_ACCEPTED:
        return  # more of what a drafter that is not connected does is no help
    enough = _shortest_chain(row)
    if enough is not None:
        steps, kept = enough
        yield f"fewer draft steps: a chain of {steps} would have kept {kept:.2f} of these {accept_length:.2f} tokens"
    elif longest is not None and accept_length >= _MOSTLY_ACCEPTED * longest:
        yield f"more draft steps: {accept_length:.2f} of at most {longest} tokens per step are accepted"
    yield "another drafter, or more training of this one on the traffic it is to serve"


def _shortest_chain(row: TrialResult) -> tuple[int, float] | None:
    """The shortest chain that keeps nearly the whole accept length, exact from the histogram; None if no shorter."""
    steps = row.point.get("num_steps") if most_tokens_per_step(row.point) else None  # unless its steps move
    histogram = _histogram(row)
    if row.point.get("eagle_topk") != 1 or not isinstance(steps, int) or len(histogram) <= steps:
        return None
    whole = speculation.accept_length_of_shorter_chain(histogram, steps)
    for shorter in range(1, steps):
        kept = speculation.accept_length_of_shorter_chain(histogram, shorter)
        if whole and kept and kept >= _RARELY_USED * whole:
            return shorter, kept
    return None


def _histogram(row: TrialResult) -> Sequence[int]:
    counts = [m.accepted_histogram for m in row.measurements if m.accepted_histogram]
    longest = max(map(len, counts), default=0)
    return [sum(count[depth] for count in counts if depth < len(count)) for depth in range(longest)]
