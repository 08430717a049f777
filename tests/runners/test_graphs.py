"""Proof of graphs: what was captured, and what was used."""

import pytest

from specsearch.errors import InvalidTrial
from specsearch.runners._graphs import capture_warnings, graph_memory_gb, require_graphs
from specsearch.search_space import ALGORITHM, Point
from specsearch.trial import Capture

CHAIN: Point = {ALGORITHM: "EAGLE3", "num_steps": 3, "eagle_topk": 1}
PLAIN: Point = {ALGORITHM: "none"}
# SGLang 0.5.17 on an H200, EAGLE3 3/4/16.
VERIFY = Capture("target verify", 1.73, 0.08, 111.01, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16))
DRAFT = Capture("draft decode", 5.28, 0.04, 110.92, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16))
EXTEND = Capture("draft extend", 1.13, 0.08, 110.88, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16))


def said(
    *captures: Capture, point: Point = CHAIN, steps: int | None = 3, concurrency: int = 8, used: bool | None = True
) -> str:
    return "\n".join(capture_warnings(captures, point, steps, concurrency=concurrency, is_used=used))


def test_a_whole_set_of_graphs_leaves_nothing_to_say() -> None:
    assert said(VERIFY, DRAFT, EXTEND) == ""
    assert said(Capture("target decode"), point=PLAIN, steps=None) == ""


def test_a_drafter_without_a_graph_of_its_own_is_named() -> None:
    assert "the drafter's own passes run without a graph" in said(VERIFY, EXTEND)


def test_before_0_5_14_the_drafters_graph_has_another_name() -> None:
    assert said(Capture("decode"), Capture("draft"), Capture("draft extend")) == ""
    assert "drafter's own passes" in said(Capture("decode"), Capture("draft extend"))


@pytest.mark.parametrize(
    ("point", "steps"),
    [
        ({**CHAIN, "num_steps": 1}, 1),  # one step is drafted in the extend pass
        ({ALGORITHM: "NGRAM", "num_steps": 3}, 3),
        ({ALGORITHM: "EAGLE3"}, None),
        (PLAIN, 3),
    ],
    ids=["one step", "no drafter", "steps not known", "plain"],
)
def test_no_graph_of_the_drafter_is_missed_where_there_is_none_to_capture(point: Point, steps: int | None) -> None:
    assert said(VERIFY, point=point, steps=steps) == ""


def test_graphs_too_small_for_the_concurrency_are_named_with_both_numbers() -> None:
    """SM-06: a batch beyond the largest captured one runs without a graph."""
    sentence = said(VERIFY, DRAFT, concurrency=64)
    assert "captured for up to 16 requests and 64 are sent at once" in sentence
    assert said(VERIFY, DRAFT, concurrency=16) == ""
    assert said(Capture("target verify"), DRAFT, concurrency=64) == "", "an older log does not tell the sizes"


def test_graphs_that_nobody_tells_of_are_not_taken_for_granted() -> None:
    """SM-06: the server says nothing of a capture, and nothing counts the passes."""
    assert "neither the log nor the counters" in said(used=None)
    assert said(used=True) == "", "the counters prove it"
    assert said(used=False) == "", "the trial is refused for that"


def test_the_memory_of_all_graphs_is_added_up_where_the_server_tells_it() -> None:
    assert graph_memory_gb([VERIFY, DRAFT, EXTEND]) == pytest.approx(0.2)
    assert graph_memory_gb([VERIFY, Capture("draft decode")]) == pytest.approx(0.08)
    assert graph_memory_gb([Capture("target decode")]) is None
    assert graph_memory_gb([]) is None


def test_graphs_asked_for_and_never_used_make_the_trial_invalid() -> None:
    """SM-06"""
    with pytest.raises(InvalidTrial) as refused:
        require_graphs([0.0, 0.0])
    assert refused.value.reason == "graphs_not_active"


def test_decoding_that_falls_out_of_its_graphs_is_said() -> None:
    """SM-06"""
    assert "only 50% of decode passes" in require_graphs([0.99, 0.5])[0]
    assert require_graphs([0.99, 0.96]) == []
    assert require_graphs([]) == []
