"""The arithmetic of speculative decoding.

speed-up = accept length / relative step cost, at the same load point; the relative step cost is
therefore the accept length at which speculation breaks even. Plain decoding has accept length 1.
"""

from collections.abc import Sequence


def speed_up(output_tokens_per_s: float, plain_output_tokens_per_s: float) -> float:
    """Throughput over that of plain decoding at the same load point."""
    return output_tokens_per_s / plain_output_tokens_per_s


def relative_step_cost(accept_length: float, output_tokens_per_s: float, plain_output_tokens_per_s: float) -> float:
    """Time of one speculative step in plain decoding steps; equals the break-even accept length.

    The origin story: 2.1 accepted, 56.7 against 90 tokens/s → 3.33.
    """
    return accept_length * plain_output_tokens_per_s / output_tokens_per_s


def tree_capacity(num_steps: int, eagle_topk: int) -> int:
    """Most draft tokens, the root counted, that a draft tree can offer for verification.

    One candidate set of top-k at the first step, top-k² at each later one (SGLang eagle_utils.py).
    """
    return 1 + eagle_topk + (num_steps - 1) * eagle_topk**2


def triple_problem(num_steps: int, eagle_topk: int, num_draft_tokens: int) -> str | None:
    """Why SGLang could not run this (steps, top-k, draft tokens), or None."""
    if num_steps < 1 or eagle_topk < 1:
        return f"num_steps {num_steps} and eagle_topk {eagle_topk} must be at least 1"
    if eagle_topk == 1:
        if num_draft_tokens != num_steps + 1:
            return (
                f"eagle_topk 1 verifies num_steps + 1 = {num_steps + 1} draft tokens, "
                f"{num_draft_tokens} would be replaced without an error"
            )
        return None
    capacity = tree_capacity(num_steps, eagle_topk)
    if not 2 <= num_draft_tokens <= capacity:
        return (
            f"num_draft_tokens {num_draft_tokens} does not fit: a tree of {num_steps} steps with "
            f"top-k {eagle_topk} holds 2 to {capacity}"
        )
    return None


def accept_length(correct_drafts: int, verify_steps: int) -> float | None:
    """Mean tokens produced per verify step, the bonus token counted; None without a verify step."""
    return 1 + correct_drafts / verify_steps if verify_steps else None


def accept_length_of_shorter_chain(accepted_histogram: Sequence[int], num_steps: int) -> float | None:
    """Exact accept length a chain of `num_steps` would have had, from a longer chain's histogram.

    `accepted_histogram[i]` counts the verify steps that accepted i drafts; only for top-k 1.
    None when nothing was counted or the recorded chain is shorter than asked.
    """
    steps = sum(accepted_histogram)
    if not steps or num_steps > len(accepted_histogram) - 1:
        return None
    accepted = sum(min(depth, num_steps) * count for depth, count in enumerate(accepted_histogram))
    return 1 + accepted / steps
