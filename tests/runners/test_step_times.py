"""The decode step by the server's own clock, between two readings of what it has told since its start."""

import math

import pytest

from specsearch.metrics import METRICS
from specsearch.runners._step_times import server_step_time_ms, step_time_warnings
from specsearch.trial import Measurement

MS = 1e-3


def repeat(
    client_ms: float | None, server_ms: float | None, *, concurrency: int = 1, number: int = 0, steps: float = 400
) -> Measurement:
    """Four requests of so many verify steps together, as two clocks saw them."""
    values: dict[str, float | None] = {**dict.fromkeys(METRICS), "requests_ok": 4, "verify_steps": steps}
    values |= {"step_time_ms": client_ms, "server_step_time_ms": server_ms}
    return Measurement(
        workload="chat",
        workload_digest="0",
        workload_kind="text",
        concurrency=concurrency,
        repeat=number,
        values=values,
    )


def test_only_what_is_new_counts_and_the_first_interval_with_its_idle_time_does_not() -> None:
    before = {1: [40 * MS, 40 * MS]}
    after = {1: [40 * MS, 40 * MS, 900 * MS, 10 * MS, 12 * MS, 11 * MS]}
    assert server_step_time_ms(before, after, concurrency=1) == pytest.approx(11)


def test_the_idle_interval_may_have_ended_under_a_batch_that_was_not_yet_full() -> None:
    after = {2: [800 * MS], 4: [20 * MS, 21 * MS, 22 * MS], 3: [18 * MS]}
    assert server_step_time_ms({}, after, concurrency=4) == pytest.approx(21)


def test_the_full_batch_is_looked_at_where_it_made_half_of_the_intervals() -> None:
    after = {1: [500 * MS, 5 * MS, 5 * MS], 8: [20 * MS, 20 * MS]}
    assert server_step_time_ms({}, after, concurrency=8) == pytest.approx(20)


def test_where_the_batch_was_seldom_full_every_size_counts_by_its_requests() -> None:
    """One step of 30 requests is met by more streams than two of 2."""
    after = {2: [5 * MS] * 3 + [500 * MS], 30: [40 * MS], 64: [90 * MS]}
    assert server_step_time_ms({2: [5 * MS]}, after, concurrency=64) != pytest.approx(5)
    mixed = {1: [9.0, *[4 * MS] * 20], 60: [40 * MS] * 5, 61: [42 * MS] * 5}
    assert server_step_time_ms({}, mixed, concurrency=64) == pytest.approx(41, abs=1.01)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {1: [0.1]}),
        ({1: [0.1]}, None),
        ({}, {}),
        ({1: [0.1]}, {1: [0.1]}),
        ({1: [0.1, 0.1]}, {1: [0.1]}),  # it started anew
        ({}, {1: [3.0]}),  # nothing but the idle interval
        ({}, {1: [math.nan, math.inf, -1.0, 0.0]}),
    ],
    ids=["untold before", "untold after", "empty", "nothing new", "fewer", "idle alone", "no times"],
)
def test_a_server_that_tells_nothing_new_has_no_step_time(
    before: dict[int, list[float]] | None, after: dict[int, list[float]] | None
) -> None:
    assert server_step_time_ms(before, after, concurrency=1) is None


def test_clocks_that_agree_within_their_error_are_not_spoken_of() -> None:
    assert not list(step_time_warnings([repeat(10.5, 10.0), repeat(10.0, 10.0), repeat(None, 10.0)], 10))
    noisy = [repeat(ms, 10.0) for ms in (9.5, 11.4, 12.9)]
    assert not list(step_time_warnings(noisy, 10)), "the repeats differ by more among themselves"


def test_a_client_that_sees_longer_steps_is_said_once_for_each_load_point_with_what_may_be_the_cause() -> None:
    said = list(step_time_warnings([repeat(14.0, 10.0, number=n, concurrency=c) for c in (1, 8) for n in range(3)], 10))
    assert [sentence.partition(":")[0] for sentence in said] == ["chat@1", "chat@8"]
    assert all("prefill" in sentence and "busy" in sentence for sentence in said)


def test_a_server_that_sees_longer_steps_is_said_where_its_intervals_are_long_enough() -> None:
    (sentence,) = step_time_warnings([repeat(7.0, 10.0), repeat(7.1, 10.0)], 10)
    assert "idle between requests" in sentence


@pytest.mark.parametrize(
    ("steps", "concurrency", "interval"), [(79, 1, 10), (400, 8, 10), (400, 1, 50), (400, 1, None)]
)
def test_prefill_in_most_of_the_log_intervals_is_no_disagreement(
    steps: float, concurrency: int, interval: int | None
) -> None:
    """Short requests, many at once or a long interval: the server's median holds prefill, the client's does not."""
    assert not list(step_time_warnings([repeat(7.0, 10.0, steps=steps, concurrency=concurrency)], interval))
