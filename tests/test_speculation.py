"""The arithmetic of speculative decoding, on figures that are known."""

import pytest

from specsearch.speculation import (
    accept_length,
    accept_length_of_shorter_chain,
    relative_step_cost,
    speed_up,
    tree_capacity,
    triple_problem,
)


@pytest.mark.parametrize(
    ("plain", "speculative", "accepted", "cost"),
    [(90.0, 56.7, 2.1, 3.333), (21.0, 30.0, 2.6, 1.820), (1800.0, 1500.0, 2.6, 3.120)],
)
def test_break_even_accept_lengths(plain: float, speculative: float, accepted: float, cost: float) -> None:
    """ME-13: the origin story, and one configuration that wins at concurrency 1 and loses at 32."""
    found = relative_step_cost(accepted, speculative, plain)
    assert found == pytest.approx(cost, abs=5e-4)
    assert speed_up(speculative, plain) == pytest.approx(accepted / found)
    assert (speed_up(speculative, plain) > 1) == (accepted > found)


def test_the_origin_story_is_below_break_even_by_1_23() -> None:
    """ME-13.2."""
    assert round(2.1 - relative_step_cost(2.1, 56.7, 90.0), 2) == -1.23


@pytest.mark.parametrize(("correct", "steps", "expected"), [(180, 78, 1 + 180 / 78), (0, 200, 1.0), (0, 0, None)])
def test_accept_length_counts_the_bonus_token(correct: int, steps: int, expected: float | None) -> None:
    assert accept_length(correct, steps) == expected


def chain(accepted: list[int], num_steps: int) -> float:
    """Accept length of a chain that stops at `num_steps`, step by step."""
    return 1 + sum(min(drafts, num_steps) for drafts in accepted) / len(accepted)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_a_histogram_tells_the_accept_length_of_every_shorter_chain(num_steps: int) -> None:
    accepted = [0, 0, 1, 4, 2, 4, 3, 0, 1, 4]
    histogram = [accepted.count(drafts) for drafts in range(5)]
    assert accept_length_of_shorter_chain(histogram, num_steps) == pytest.approx(chain(accepted, num_steps))


def test_a_histogram_at_its_own_length_is_the_measured_accept_length() -> None:
    """A recorded reply: 78 verify steps that accepted 0, 1, 2 and 3 drafts 12, 6, 6 and 54 times."""
    assert accept_length_of_shorter_chain([12, 6, 6, 54], 3) == pytest.approx(accept_length(180, 78))


def test_a_histogram_says_nothing_about_longer_chains_or_when_empty() -> None:
    assert accept_length_of_shorter_chain([12, 6, 6, 54], 4) is None
    assert accept_length_of_shorter_chain([0, 0, 0], 1) is None
    assert accept_length_of_shorter_chain([], 1) is None


@pytest.mark.parametrize(
    ("steps", "topk", "capacity"), [(1, 1, 2), (3, 1, 4), (1, 4, 5), (3, 4, 37), (5, 8, 265), (7, 1, 8)]
)
def test_tree_capacity(steps: int, topk: int, capacity: int) -> None:
    assert tree_capacity(steps, topk) == capacity


@pytest.mark.parametrize(
    ("steps", "topk", "drafts", "problem"),
    [
        (3, 1, 4, None),
        (3, 1, 16, "would be replaced without an error"),
        (3, 4, 16, None),
        (3, 4, 37, None),
        (3, 4, 38, "holds 2 to 37"),
        (1, 4, 16, "holds 2 to 5"),
        (3, 4, 1, "holds 2 to 37"),
        (0, 4, 4, "at least 1"),
        (3, 0, 4, "at least 1"),
    ],
)
def test_triples_that_sglang_would_change_or_die_on(steps: int, topk: int, drafts: int, problem: str | None) -> None:
    """SM-02 and LF-02: 1/4/16 was seen to start, capture and die on the first request."""
    found = triple_problem(steps, topk, drafts)
    assert found is None if problem is None else found is not None and problem in found
