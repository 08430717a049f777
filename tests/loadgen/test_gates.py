"""When the numbers of a load point are not believed."""

from collections.abc import Mapping

import pytest

from specsearch.config import Limits
from specsearch.errors import InvalidTrial
from specsearch.loadgen import check_load_point, draft_context_warning, near_ceiling_warning
from specsearch.metrics import METRICS, Summary

GOOD: Mapping[str, float | None] = {
    "requests_total": 100,
    "requests_ok": 100,
    "requests_failed": 0,
    "prompt_tokens": 50_000,
    "cached_token_share": 0.0,
    "degenerate_share": 0.0,
    "verify_steps": 20000,
    "accept_length": 2.5,
}


def summary(**changes: float | None) -> Summary:
    assert set(changes) <= set(METRICS)
    return Summary({**dict.fromkeys(METRICS), **GOOD, **changes}, accept_source="requests")


def refusal(*summaries: Summary) -> InvalidTrial | None:
    try:
        check_load_point(summaries, Limits(), load_point="chat@8")
    except InvalidTrial as error:
        return error
    return None


def reason(*summaries: Summary) -> str | None:
    error = refusal(*summaries)
    return error.reason if error else None


def test_good_numbers_pass() -> None:
    assert refusal(summary(), summary(), summary()) is None


def test_dropping_requests_does_not_win() -> None:
    """ME-06: A answers 100 of 100 in 50 s, B only 61 of 100 in 28 s with more tokens/s and a better p99."""
    a = summary(output_tokens_per_s=51200 / 50, e2e_p99_ms=900)
    b = summary(output_tokens_per_s=31232 / 28, e2e_p99_ms=500, requests_ok=61, requests_failed=39)
    assert (b.values["output_tokens_per_s"] or 0) > (a.values["output_tokens_per_s"] or 0)
    assert reason(a) is None
    assert reason(b) == "request_failures"
    assert "39 of 100 requests at chat@8 failed, 1.0% may" in str(refusal(b))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requests_failed": 1}, None),
        ({"requests_failed": 2}, "request_failures"),
        ({"requests_total": 0, "requests_ok": 0}, "request_failures"),
        ({"cached_token_share": 0.05}, None),
        ({"cached_token_share": 0.051}, "warm_cache"),
        ({"cached_token_share": None}, None),
        ({"degenerate_share": 0.1}, None),
        ({"degenerate_share": 0.11}, "degenerate_output"),
        ({"degenerate_share": 0.11, "accept_length": 7.76}, "degenerate_output"),
        ({"accept_length": 1.0, "verify_steps": 200}, "draft_never_accepted"),
        ({"accept_length": 1.02, "verify_steps": 200}, "draft_never_accepted"),
        ({"accept_length": 1.03, "verify_steps": 200}, None),
        ({"accept_length": 1.0, "verify_steps": 199}, None),
        ({"accept_length": None, "verify_steps": 0}, None),
        ({"requests_failed": 50, "accept_length": 1.0}, "request_failures"),
    ],
)
def test_each_gate_closes_just_above_its_limit(changes: dict[str, float | None], expected: str | None) -> None:
    """ME-04, ME-06, ME-07, SM-01."""
    assert reason(summary(**changes)) == expected


def test_what_counts_is_all_repeats_together() -> None:
    assert reason(summary(requests_failed=2), summary()) is None
    assert reason(summary(requests_failed=3), summary()) == "request_failures"
    few = summary(accept_length=1.0, verify_steps=120)
    assert reason(few) is None
    assert reason(few, few) == "draft_never_accepted"


def test_a_repeat_counts_by_what_it_measured() -> None:
    """A short warm repeat beside a long cold one: 900 of 100,900 prompt tokens were cached (ME-07)."""
    cold = summary(prompt_tokens=100_000)
    warm = summary(prompt_tokens=900, cached_token_share=1.0)
    assert reason(cold, warm) is None


def test_the_first_tokens_that_all_prompts_share_do_not_make_a_cache_warm() -> None:
    """Begin-of-text and "(25) Write" of a prompt of 40 tokens are a tenth of it; a template of 20 tokens is half."""
    assert reason(summary(prompt_tokens=4000, cached_token_share=0.1)) is None
    assert reason(summary(prompt_tokens=4000, cached_token_share=0.5)) == "warm_cache"


@pytest.mark.parametrize(
    "changes",
    [{"requests_failed": 9}, {"cached_token_share": 1.0}, {"degenerate_share": 1.0}, {"accept_length": 1.0}],
)
def test_every_refusal_says_what_was_seen_and_what_to_do(changes: dict[str, float | None]) -> None:
    error = refusal(summary(**changes))
    assert error is not None
    assert "chat@8" in str(error)
    assert error.advice


def test_the_usual_causes_of_a_draft_that_is_never_accepted_are_named() -> None:
    """SM-01."""
    error = refusal(summary(accept_length=1.0))
    assert error is not None
    assert "EAGLE given for an EAGLE-3 drafter" in str(error.advice)


@pytest.mark.parametrize(("accept_length", "warned"), [(7.76, True), (7.75, False), (2.68, False), (None, False)])
def test_an_accept_length_at_its_ceiling_asks_for_a_look_at_the_text(accept_length: float | None, warned: bool) -> None:
    """ME-04.2: 0.97 of 8 draft tokens is 7.76."""
    warning = near_ceiling_warning([summary(accept_length=accept_length)], load_point="chat@8", num_draft_tokens=8)
    assert (warning is not None) == warned


def test_requests_beyond_the_drafters_context_are_told_apart_from_those_within() -> None:
    """LF-14: short prompts look great, long ones do not."""
    within, beyond = "accept_length_within_draft_context", "accept_length_beyond_draft_context"
    both = [summary(**{within: 2.8, beyond: 1.0}), summary(**{within: 3.0, beyond: 1.1})]
    sentence = draft_context_warning(both, load_point="chat@8", context=2048)
    assert sentence
    assert "beyond the 2048 tokens" in sentence
    assert "accept 1.05 tokens per verify step, others 2.90" in sentence
    assert "no request is shorter" in str(
        draft_context_warning([summary(**{beyond: 1.0})], load_point="chat@8", context=2048)
    )
    assert draft_context_warning([summary(**{within: 2.8})], load_point="chat@8", context=2048) is None
