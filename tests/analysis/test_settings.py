"""Pins, overrides, waiting requests and graphs of trials, from their rows."""

from dataclasses import replace

import pytest

from specsearch.analysis.admission import admitted, waited_at
from specsearch.analysis.graphs import graph_use, judges_graphs, sizes_text
from specsearch.analysis.settings import Override, Pin, overrides, pins
from specsearch.trial import Capture, TrialResult
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, repeats, trial

SIZES = (1, 2, 4, 8, 12, 16)


def test_a_pin_is_listed_once_for_each_value_with_its_trials() -> None:
    rows = [trial(0, PLAIN_POINT)]
    rows += [trial(n, TREE_POINT, pins={"page_size": 1, "mem_fraction_static": m}) for n, m in ((1, "0.8"), (2, 0.8))]
    rows += [trial(3, TREE_POINT, pins={"mem_fraction_static": 0.7})]
    assert pins(rows) == (
        Pin("mem_fraction_static", "0.7", (3,)),
        Pin("mem_fraction_static", "0.8", (1, 2)),
        Pin("page_size", "1", (1, 2)),
    )


def test_changes_by_the_server_are_grouped_over_trials() -> None:
    rows = [trial(n, TREE_POINT, overridden=("num_draft_tokens: asked 16, runs 4",)) for n in (1, 2)]
    rows.append(trial(3, TREE_POINT, overridden=("cuda_graph_bs: asked 1, 2, runs 1 2 4", "it does as it likes")))
    assert overrides(rows) == (
        Override("cuda_graph_bs", "1, 2", "1 2 4", (3,)),
        Override("it does as it likes", None, None, (3,)),
        Override("num_draft_tokens", "16", "4", (1, 2)),
    )


def waiting(limit: str | None = None, **more: object) -> TrialResult:
    measured = repeats((90.0,)) + repeats((500.0,), concurrency=32) + repeats((700.0,), concurrency=64)
    effective = {"max_running_requests": limit} if limit else {}
    return trial(1, TREE_POINT, measured, effective=effective, queue_limited=True, **more)


def test_requests_waited_at_the_load_points_beyond_the_limit() -> None:
    """SM-04: 48 are run at once, so 32 in flight never wait for admission."""
    assert waited_at(waiting("48")) == ("chat@64",)
    assert waited_at(replace(waiting("48"), queue_limited=False)) == ()
    assert waited_at(replace(waiting("48"), queue_limited=None)) == ()


def test_a_limit_below_the_one_asked_for_is_the_one_that_counts() -> None:
    row = waiting("48", overridden=("max_running_requests: asked 48, runs 16",))
    assert admitted(row) == 16
    assert waited_at(row) == ("chat@32", "chat@64")


@pytest.mark.parametrize("limit", [None, "64", "auto"])
def test_a_queue_that_no_limit_explains_may_be_anywhere_but_where_one_request_runs(limit: str | None) -> None:
    assert waited_at(waiting(limit)) == ("chat@32", "chat@64")


@pytest.mark.parametrize(
    ("captures", "drafted"),
    [
        ((Capture("target verify", 1.4, 0.04, 111.0, SIZES), Capture("draft decode", 9.7, 0.04)), True),
        ((Capture("target verify", 1.4), Capture("draft extend", 0.9)), True),
        ((Capture("target verify", 1.4),), False),
        ((), None),
    ],
)
def test_a_drafter_without_a_graph_is_told_from_a_log_that_tells_of_none(
    captures: tuple[Capture, ...], drafted: bool | None
) -> None:
    assert graph_use(trial(1, TREE_POINT, captures=captures)).draft_captured is drafted


def test_neither_plain_decoding_nor_ngram_has_a_draft_graph_to_miss() -> None:
    captures = (Capture("target verify", 1.4),)
    for point in (PLAIN_POINT, {"speculative_algorithm": "NGRAM"}):
        assert graph_use(trial(1, point, captures=captures)).draft_captured is None


def test_the_used_share_is_that_of_the_repeat_with_the_least() -> None:
    measured = repeats((90.0,), cuda_graph_share=1.0) + repeats((500.0,), concurrency=32, cuda_graph_share=0.6)
    assert graph_use(trial(1, TREE_POINT, measured)).used_share == 0.6
    assert graph_use(trial(1, TREE_POINT, repeats((90.0,)))).used_share is None


@pytest.mark.parametrize(
    ("knobs", "share", "judges"),
    [
        ({}, 0.94, False),
        ({}, 0.95, True),
        ({}, None, True),
        ({"cuda_graph": False}, 0.0, True),
        ({"decode_cuda_graph": False}, 0.0, True),
    ],
)
def test_a_trial_that_fell_out_of_its_graphs_does_not_judge_them(
    knobs: dict[str, bool], share: float | None, judges: bool
) -> None:
    """SM-06."""
    row = trial(1, {**TREE_POINT, **knobs}, repeats((90.0,), cuda_graph_share=share))
    assert judges_graphs(row) is judges


@pytest.mark.parametrize(("sizes", "text"), [((), "–"), ((1, 2, 4), "1 2 4"), (SIZES, "1–16 (6 sizes)")])
def test_a_long_list_of_sizes_is_shown_as_its_range(sizes: tuple[int, ...], text: str) -> None:
    assert sizes_text(sizes) == text
