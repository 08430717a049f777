"""What several failures advise together (LF-03)."""

import pytest

from specsearch.analysis.outcomes import failures
from specsearch.search_space import Point
from specsearch.trial import TrialResult, TrialStatus
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, repeats, trial

OWN: Point = {**TREE_POINT, "draft_model": "/drafters/own"}
OTHER: Point = {**TREE_POINT, "draft_model": "/drafters/other"}
BUDGET, ALLOC, CAPTURE = "oom_kv_budget", "oom_alloc", "graph_capture_oom"
RAISE, LOWER = "raise mem_fraction_static", "lower mem_fraction_static"


def died(number: int, fraction: float, reason: str, point: Point = OWN, **more: object) -> TrialResult:
    point = {**point, "mem_fraction_static": fraction}
    return trial(number, point, status=TrialStatus.INFEASIBLE, reason=reason, **more)  # type: ignore[arg-type]


def ran(number: int, fraction: float, point: Point = OWN) -> TrialResult:
    return trial(number, {**point, "mem_fraction_static": fraction}, repeats((90.0,)))


def advice(*rows: TrialResult) -> dict[str, str]:
    return {failure.reason: failure.advice for failure in failures(rows)}


def test_each_memory_error_alone_has_the_remedy_of_its_own() -> None:
    assert advice(died(1, 0.84, BUDGET), died(2, 0.80, BUDGET)) == {BUDGET: RAISE}
    assert advice(died(1, 0.85, ALLOC), died(2, 0.90, ALLOC)) == {ALLOC: LOWER}


@pytest.mark.parametrize("reason", [ALLOC, CAPTURE])
def test_both_at_neighbouring_fractions_mean_that_no_fraction_works(reason: str) -> None:
    """LF-03: the fractions of the case."""
    told = advice(died(7, 0.84, BUDGET), died(8, 0.85, reason))
    assert told == dict.fromkeys((BUDGET, reason), told[BUDGET])
    assert told[BUDGET] == (
        "no mem_fraction_static works for the drafter /drafters/own: 0.84 left no room for the KV cache (t0007), "
        "0.85 ran out of memory (t0008); make room with a smaller cuda_graph_max_bs, max_running_requests or "
        "context_length, or leave it out"
    )


def test_with_room_between_them_the_interval_that_is_left_is_said() -> None:
    told = advice(died(1, 0.70, BUDGET), died(2, 0.75, BUDGET), died(3, 0.85, ALLOC), died(4, 0.90, CAPTURE))
    assert told[BUDGET] == told[ALLOC] == told[CAPTURE]
    assert told[BUDGET].startswith(
        "for the drafter /drafters/own only mem_fraction_static above 0.75 and below 0.85 is left: 0.75 left no room"
    )


def test_the_fraction_that_the_server_asks_for_narrows_the_interval() -> None:
    needed = {"needed_mem_fraction_static": "0.871"}
    rows = (died(1, 0.70, BUDGET, failure_facts=needed), died(2, 0.90, ALLOC))
    assert "above 0.871 and below 0.9 is left" in advice(*rows)[ALLOC]
    assert advice(rows[0], died(2, 0.85, ALLOC))[ALLOC].startswith("no mem_fraction_static works")


def test_fractions_that_cross_leave_nothing() -> None:
    """The lower one already ran out of memory where the higher one leaves no room for the KV cache."""
    assert advice(died(1, 0.84, BUDGET), died(2, 0.80, CAPTURE))[BUDGET].startswith("no mem_fraction_static works")


def test_a_drafter_that_ran_in_between_has_a_fraction_that_works() -> None:
    assert advice(died(1, 0.84, BUDGET), ran(2, 0.845), died(3, 0.85, ALLOC)) == {BUDGET: RAISE, ALLOC: LOWER}


def test_one_drafters_failures_say_nothing_of_another() -> None:
    rows = (died(1, 0.84, BUDGET), died(2, 0.85, ALLOC, OTHER), ran(3, 0.845, PLAIN_POINT))
    assert advice(*rows) == {BUDGET: RAISE, ALLOC: LOWER}
    both = advice(*rows, died(4, 0.85, ALLOC))
    assert both[BUDGET].startswith("no mem_fraction_static works for the drafter /drafters/own")
    assert both[ALLOC] == f"{both[BUDGET]}; {LOWER}"  # the other drafter's own remedy stands beside it


def test_without_a_known_fraction_nothing_is_concluded() -> None:
    rows = [trial(n, OWN, status=TrialStatus.INFEASIBLE, reason=r) for n, r in ((1, BUDGET), (2, ALLOC))]
    assert advice(*rows) == {BUDGET: RAISE, ALLOC: LOWER}
