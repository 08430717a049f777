"""What the records of a repeat say, and how numbers are shown."""

import math
from dataclasses import replace

import pytest

from specsearch.metrics import METRICS, TRIAL_FACTS, RequestRecord, percentile, summarise


def record(
    *,
    tokens: int = 5,
    started_s: float = 100.0,
    first_s: float = 0.5,
    step_s: float = 0.1,
    per_chunk: int = 1,
    **fields: object,
) -> RequestRecord:
    """A good request: a token after `first_s`, then `per_chunk` every `step_s`."""
    counts = [1, *range(1 + per_chunk, tokens, per_chunk), tokens] if tokens > 1 else [1]
    chunks = tuple((started_s + first_s + index * step_s, count) for index, count in enumerate(counts))
    base = RequestRecord(
        started_s=started_s,
        finished_s=chunks[-1][0],
        chunks=chunks,
        prompt_tokens=20,
        cached_tokens=0,
        completion_tokens=tokens,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def values(*records: RequestRecord, duration_s: float = 10.0) -> dict[str, float | None]:
    return dict(summarise(records, duration_s).values)


def test_every_summary_has_every_metric_and_no_other() -> None:
    assert set(values(record())) == set(METRICS)
    assert set(values()) == set(METRICS)


def test_names_are_keys() -> None:
    assert all(name == metric.name for table in (METRICS, TRIAL_FACTS) for name, metric in table.items())
    assert not set(METRICS) & set(TRIAL_FACTS)


def test_accept_length_is_computed_from_the_requests_themselves() -> None:
    """ME-02: 106 and 512 tokens in 43 and 256 verify steps are (618 − 2)/299 = 2.0602."""
    summary = summarise(
        [record(tokens=106, verify_steps=43), record(tokens=512, verify_steps=256)],
        60.0,
    )
    assert summary.values["accept_length"] == pytest.approx(2.0602, abs=5e-5)
    assert summary.values["verify_steps"] == 299
    assert summary.accept_source == "tokens"
    assert summary.values["accept_rate"] is None
    assert summary.values["correct_drafts"] is None


def test_counted_drafts_come_before_counted_tokens() -> None:
    """ME-02: the last step may overshoot and be cut, so 256 tokens in 78 steps are not 3.27 but 1 + 180/78."""
    counted = record(tokens=256, verify_steps=78, correct_drafts=180, proposed_drafts=1170)
    summary = summarise([counted, counted], 60.0)
    assert summary.values["accept_length"] == pytest.approx(1 + 180 / 78)
    assert summary.values["accept_rate"] == pytest.approx(180 / 1170)
    assert summary.values["correct_drafts"] == 360
    assert summary.accept_source == "requests"


def test_requests_weigh_by_their_verify_steps() -> None:
    short = record(verify_steps=10, correct_drafts=0)
    long = record(verify_steps=90, correct_drafts=180)
    assert values(short, long)["accept_length"] == pytest.approx(1 + 180 / 100)


def test_one_request_without_counted_drafts_makes_all_be_judged_by_tokens() -> None:
    counted = record(tokens=11, verify_steps=5, correct_drafts=5)
    uncounted = record(tokens=21, verify_steps=5)
    summary = summarise([counted, uncounted], 10.0)
    assert summary.values["accept_length"] == pytest.approx((10 + 20) / 10)
    assert summary.accept_source == "tokens"


@pytest.mark.parametrize("steps", [None, 0])
def test_without_verify_steps_the_accept_length_is_unknown_and_not_one(steps: int | None) -> None:
    """ME-02: missing is null with source none, never 0, never 1."""
    summary = summarise([record(verify_steps=steps)], 10.0)
    assert summary.values["accept_length"] is None
    assert summary.values["accept_rate"] is None
    assert summary.accept_source == "none"
    assert summary.accepted_histogram is None


def test_histograms_add_up_and_the_longer_one_sets_the_length() -> None:
    first = record(verify_steps=3, correct_drafts=3, accepted_histogram=(1, 1, 1))
    second = record(verify_steps=2, correct_drafts=4, accepted_histogram=(0, 1, 0, 1))
    assert summarise([first, second], 10.0).accepted_histogram == (1, 2, 1, 1)


def test_throughput_is_tokens_of_good_requests_over_the_whole_window() -> None:
    """ME-06: A has 51,200 tokens in 50 s; B drops 39 of 100 and looks faster, but its failures are counted."""
    a = values(*[record(tokens=512)] * 100, duration_s=50.0)
    b = values(*[record(tokens=512)] * 61, *[record(tokens=300, error="aborted")] * 39, duration_s=28.0)
    assert a["output_tokens_per_s"] == pytest.approx(1024.0)
    assert (a["requests_total"], a["requests_ok"], a["requests_failed"]) == (100, 100, 0)
    assert b["output_tokens_per_s"] == pytest.approx(31232 / 28.0)
    assert (b["requests_total"], b["requests_ok"], b["requests_failed"]) == (100, 61, 39)
    assert b["output_tokens"] == 31232


def test_failed_requests_touch_no_other_metric() -> None:
    bad = record(
        tokens=900, first_s=0.001, step_s=0.0001, error="reset", verify_steps=5, correct_drafts=500, degenerate=True
    )
    good = record(verify_steps=4, correct_drafts=4)
    counts = {"requests_total", "requests_failed"}
    with_bad, without = values(good, bad), values(good)
    assert {k: v for k, v in with_bad.items() if k not in counts} == {
        k: v for k, v in without.items() if k not in counts
    }


def test_nothing_but_failures_has_no_speed() -> None:
    all_failed = values(record(error="reset"))
    assert all_failed["output_tokens_per_s"] == 0
    assert all_failed["ttft_p50_ms"] is None
    assert all_failed["degenerate_share"] is None
    assert all_failed["cached_token_share"] is None


def test_a_repeat_of_no_length_has_no_throughput() -> None:
    assert values(record(), duration_s=0.0)["output_tokens_per_s"] is None


def test_times_of_one_request() -> None:
    found = values(record(tokens=5, first_s=0.5, step_s=0.1))
    assert found["ttft_p50_ms"] == pytest.approx(500)
    assert found["itl_p50_ms"] == pytest.approx(100)
    assert found["e2e_p50_ms"] == pytest.approx(900)
    assert found["stream_tokens_per_s"] == pytest.approx(10)


def test_the_gap_a_reader_sees_is_between_chunks_and_not_spread_over_their_tokens() -> None:
    assert values(record(tokens=9, per_chunk=4, step_s=0.4))["itl_p50_ms"] == pytest.approx(400)


def test_a_plain_step_makes_one_token_however_they_are_sent() -> None:
    single = values(record(tokens=9, step_s=0.1))["step_time_ms"]
    fours = values(record(tokens=9, per_chunk=4, step_s=0.4))["step_time_ms"]
    assert single == pytest.approx(100)
    assert fours == pytest.approx(100)


def test_a_speculative_step_is_a_verify_step() -> None:
    """Nine tokens, eight of them in two verify steps of 0.4 s each."""
    assert values(record(tokens=9, per_chunk=4, step_s=0.4, verify_steps=2))["step_time_ms"] == pytest.approx(400)


def test_a_first_chunk_of_several_tokens_takes_its_steps_out_of_the_step_time() -> None:
    """The first of two verify steps came together with prefill's token; one step of 0.4 s is left to see."""
    merged = record(tokens=9, verify_steps=2, chunks=((100.5, 5), (100.9, 9)))
    assert values(merged)["step_time_ms"] == pytest.approx(400)


def test_a_request_in_one_chunk_tells_no_step_time() -> None:
    found = values(record(tokens=9, chunks=((100.5, 9),)))
    assert found["step_time_ms"] is None
    assert found["stream_tokens_per_s"] is None
    assert found["itl_p50_ms"] is None


def test_the_cached_share_is_of_prompt_tokens_and_unknown_where_no_one_tells() -> None:
    """ME-07."""
    assert values(record(prompt_tokens=90, cached_tokens=0), record(prompt_tokens=10, cached_tokens=5))[
        "cached_token_share"
    ] == pytest.approx(0.05)
    assert values(record(cached_tokens=None))["cached_token_share"] is None
    assert values(record(prompt_tokens=None))["cached_token_share"] is None


def test_the_degenerate_share_is_of_good_replies() -> None:
    """ME-04."""
    assert values(record(degenerate=True), record(), record(), record(error="reset"))["degenerate_share"] == (
        pytest.approx(1 / 3)
    )


WITHIN, BEYOND = "accept_length_within_draft_context", "accept_length_beyond_draft_context"


def test_requests_beyond_the_drafters_own_context_are_summarised_apart() -> None:
    """LF-14: 900 and 6000 prompt tokens before a drafter made for 2048."""
    short = record(tokens=512, prompt_tokens=900, verify_steps=180)
    long = record(tokens=512, prompt_tokens=6000, verify_steps=495)
    found = summarise([short, long], 10.0, draft_context=2048).values
    assert found[WITHIN] == pytest.approx(511 / 180)
    assert found[BEYOND] == pytest.approx(511 / 495)
    assert found["accept_length"] == pytest.approx(1022 / 675)


def test_prompt_and_reply_count_together_against_the_drafters_context() -> None:
    """LF-14"""
    fits, exceeds = (record(tokens=100, prompt_tokens=prompt, verify_steps=50) for prompt in (156, 157))
    assert summarise([fits], 10.0, draft_context=256).values[BEYOND] is None
    assert summarise([exceeds], 10.0, draft_context=256).values[WITHIN] is None


def test_without_a_stretched_drafter_nothing_is_told_apart() -> None:
    """LF-14: null where it does not apply, and where nobody counts the prompt."""
    request = record(tokens=100, verify_steps=50)
    assert {summarise([request], 10.0).values[name] for name in (WITHIN, BEYOND)} == {None}
    unknown = record(tokens=100, verify_steps=50, prompt_tokens=None)
    assert {summarise([unknown], 10.0, draft_context=64).values[name] for name in (WITHIN, BEYOND)} == {None}


@pytest.mark.parametrize(
    ("numbers", "share", "expected"),
    [([], 0.5, None), ([7], 0.99, 7), ([1, 2, 3, 4], 0.5, 2.5), ([4, 1, 3, 2], 1.0, 4), ([1, 2], 0.25, 1.25)],
)
def test_percentiles_are_interpolated(numbers: list[float], share: float, expected: float | None) -> None:
    assert percentile(numbers, share) == expected


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("output_tokens_per_s", 1234.56, "1,234.6 tokens/s"),
        ("accept_length", 2.104, "2.10"),
        ("ttft_p50_ms", None, "–"),
        ("ttft_p50_ms", math.nan, "–"),
        ("ttft_p50_ms", math.inf, "–"),
    ],
)
def test_values_are_shown_with_their_unit(name: str, value: float | None, shown: str) -> None:
    assert METRICS[name].format(value) == shown
