"""When the numbers of a load point must not be believed: pure, on the summaries of its repeats."""

from collections.abc import Sequence
from dataclasses import dataclass

from specsearch.config import Limits
from specsearch.errors import InvalidTrial
from specsearch.metrics import Summary


def check_load_point(summaries: Sequence[Summary], limits: Limits, *, load_point: str) -> None:
    """Raise InvalidTrial with what was seen over all repeats, what is allowed and what to do."""
    _check_requests(summaries, limits, load_point)
    _check_cache(summaries, limits, load_point)
    _check_text(summaries, limits, load_point)
    _check_drafts(summaries, load_point)


def check_drafts(summaries: Sequence[Summary], *, where: str) -> None:
    """Raise InvalidTrial when no draft is ever accepted, over however many load points."""
    _check_drafts(summaries, where)


def near_ceiling_warning(summaries: Sequence[Summary], *, load_point: str, num_draft_tokens: int) -> str | None:
    """A sentence where nearly every draft was accepted, which text worth measuring hardly ever allows; else None."""
    accept_length = _weighted(summaries, "accept_length", "verify_steps").mean
    if accept_length is None or accept_length < _NEAR_CEILING * num_draft_tokens:
        return None
    return (
        f"{load_point}: {accept_length:.2f} of at most {num_draft_tokens} tokens per verify step; "
        "read some of the replies before you believe it, a draft is that good only where the text repeats itself"
    )


def draft_context_warning(summaries: Sequence[Summary], *, load_point: str, context: int) -> str | None:
    """A sentence where requests were longer than the context their drafter was made for; None where none was."""
    beyond = _plain_mean(summaries, "accept_length_beyond_draft_context")
    if beyond is None:
        return None
    within = _plain_mean(summaries, "accept_length_within_draft_context")
    others = f", others {within:.2f}" if within is not None else ", and no request is shorter"
    return (
        f"{load_point}: requests beyond the {context} tokens that the drafter was made for accept {beyond:.2f} tokens "
        f"per verify step{others}; judge this drafter for each length apart, or take one made for longer text"
    )


def _plain_mean(summaries: Sequence[Summary], name: str) -> float | None:
    known = [value for summary in summaries if (value := summary.values.get(name)) is not None]
    return sum(known) / len(known) if known else None


_NEAR_CEILING = 0.97
# Begin-of-text, a bracket and a first word are common to cold prompts, too; of a short one they are above 5 %.
_COMMON_TOKENS = 8
# A drafter that is fed the wrong hidden states stays at 1.00; 200 steps put chance far below 1.02.
_NEVER_ACCEPTED = 1.02
_STEPS_TO_TELL = 200


@dataclass(frozen=True, slots=True)
class _Mean:
    mean: float | None
    weight: float


def _weighted(summaries: Sequence[Summary], value: str, weight: str) -> _Mean:
    """The mean over the repeats that know the value, each counting by its weight."""
    pairs = [(summary.values.get(value), summary.values.get(weight) or 0.0) for summary in summaries]
    known = [(number, share) for number, share in pairs if number is not None and share > 0]
    total = sum(share for _, share in known)
    return _Mean(sum(number * share for number, share in known) / total if total else None, total)


def _total(summaries: Sequence[Summary], name: str) -> float:
    return sum(summary.values.get(name) or 0.0 for summary in summaries)


def _check_requests(summaries: Sequence[Summary], limits: Limits, load_point: str) -> None:
    total, failed = _total(summaries, "requests_total"), _total(summaries, "requests_failed")
    if total and failed <= limits.failed_request_share * total:
        return
    raise InvalidTrial(
        "request_failures",
        f"{failed:.0f} of {total:.0f} requests at {load_point} failed, {limits.failed_request_share:.1%} may; "
        "leaving out work is no speed",
        advice="see the engine's log for the first failure; lower the concurrency or the lengths if it is overload",
    )


def _check_cache(summaries: Sequence[Summary], limits: Limits, load_point: str) -> None:
    cached = _weighted(summaries, "cached_token_share", "prompt_tokens")
    if cached.mean is None or cached.mean <= limits.cached_token_share:
        return
    if cached.mean * cached.weight <= _COMMON_TOKENS * _total(summaries, "requests_ok"):
        return
    raise InvalidTrial(
        "warm_cache",
        f"{cached.mean:.1%} of the prompt tokens at {load_point} came from the prefix cache, "
        f"{limits.cached_token_share:.1%} may",
        advice="see whether the server refused to flush its cache; the prompts of a workload have to begin differently",
    )


def _check_text(summaries: Sequence[Summary], limits: Limits, load_point: str) -> None:
    share = _weighted(summaries, "degenerate_share", "requests_ok")
    if share.mean is None or share.mean <= limits.degenerate_share:
        return
    raise InvalidTrial(
        "degenerate_output",
        f"{share.mean:.1%} of the replies at {load_point} repeat themselves in a tight loop, "
        f"{limits.degenerate_share:.1%} may; a drafter predicts such text for nothing",
        advice="compare the text with plain decoding: if that is sound, this configuration corrupts the output; "
        "if not, give prompts in the model's own chat format, fewer output tokens, or raise limits.degenerate_share",
    )


def _check_drafts(summaries: Sequence[Summary], load_point: str) -> None:
    accept = _weighted(summaries, "accept_length", "verify_steps")
    if accept.mean is None or accept.weight < _STEPS_TO_TELL or accept.mean > _NEVER_ACCEPTED:
        return
    raise InvalidTrial(
        "draft_never_accepted",
        f"accept length {accept.mean:.2f} over {accept.weight:.0f} verify steps at {load_point}: no draft is ever "
        "accepted, which is a broken set-up and not a slow one",
        advice="usual causes: EAGLE given for an EAGLE-3 drafter or the reverse, a drafter made for another model "
        "or another version of it, weights that did not load, a draft vocabulary that does not map to the model's",
    )
