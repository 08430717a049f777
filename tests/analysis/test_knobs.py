"""A knob is said to do nothing only where that was measured."""

from dataclasses import replace

import pytest

from specsearch.analysis.knobs import KnobGap, knob_gaps, noise_floor
from specsearch.objective import Objective
from specsearch.search_space import Value
from specsearch.trial import TrialResult
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, repeats, trial

QUIET = (90.0, 90.4, 89.6)


def plain(number: int, speeds: tuple[float, ...], **knobs: Value) -> TrialResult:
    return trial(number, {**PLAIN_POINT, **knobs}, repeats(speeds))


def gap(*rows: TrialResult, knob: str) -> KnobGap | None:
    return next((found for found in knob_gaps(rows, Objective()) if found.knob == knob), None)


def test_a_gap_inside_the_noise_of_repeats_is_no_measurable_effect() -> None:
    """SM-03: the best value of a knob that does nothing is noise."""
    rows = [plain(n, tuple(speed + n / 10 for speed in QUIET), page_size=size) for n, size in enumerate((1, 16, 64))]
    found = gap(*rows, knob="page_size")
    assert found is not None
    assert (found.best, found.worst, found.comparisons, found.measurable) == (64, 1, 1, False)


def test_a_gap_beyond_the_noise_is_measurable() -> None:
    found = gap(plain(0, QUIET, page_size=1), plain(1, (99.0, 99.4, 98.6), page_size=64), knob="page_size")
    assert found is not None
    assert found.measurable
    assert found.best_trial == 1


def test_one_comparison_with_an_effect_is_enough_though_another_shows_none() -> None:
    """A knob may matter only together with another one."""
    rows = [
        *(plain(n, QUIET, page_size=size, mode="a") for n, size in ((0, 1), (1, 64))),
        *(plain(n, tuple(s + 9 * n for s in QUIET), page_size=size, mode="b") for n, size in ((2, 1), (3, 64))),
    ]
    found = gap(*rows, knob="page_size")
    assert found is not None
    assert (found.comparisons, found.measurable, found.worst_trial) == (2, True, 2)


def test_trials_that_differ_in_something_else_as_well_are_not_compared() -> None:
    rows = [plain(0, QUIET, page_size=1, mode="a"), plain(1, QUIET, page_size=64, mode="b")]
    assert knob_gaps(rows, Objective()) == ()


def test_without_repeats_nothing_is_said_of_a_knob() -> None:
    assert knob_gaps([plain(0, (90.0,), page_size=1), plain(1, (90.1,), page_size=64)], Objective()) == ()


def test_speculative_knobs_are_judged_elsewhere() -> None:
    rows = [trial(n, {**TREE_POINT, "num_steps": n}, repeats(QUIET, accept=2.0)) for n in (2, 3)]
    assert knob_gaps(rows, Objective()) == ()


def test_a_trial_that_fell_out_of_its_graphs_does_not_judge_the_graph_knob() -> None:
    """SM-06: 90 % of the passes in a graph is not `graphs on`."""
    fallen = trial(0, PLAIN_POINT, repeats(QUIET, cuda_graph_share=0.9))
    eager = trial(1, {**PLAIN_POINT, "cuda_graph": False}, repeats(QUIET, cuda_graph_share=0.0))
    assert gap(fallen, eager, knob="cuda_graph") is None
    covered = trial(0, PLAIN_POINT, repeats(QUIET, cuda_graph_share=1.0))
    assert gap(covered, eager, knob="cuda_graph") is not None


def test_waiting_requests_judge_no_knob() -> None:
    """SM-04: beyond the limit a number tells of admission."""
    rows = [trial(n, {**PLAIN_POINT, "page_size": s}, repeats(QUIET, concurrency=64)) for n, s in ((0, 1), (1, 64))]
    assert len(knob_gaps(rows, Objective())) == 1
    assert knob_gaps([rows[0], replace(rows[1], queue_limited=True)], Objective()) == ()


def test_the_noise_floor_is_the_range_of_the_baseline_s_repeats_where_it_is_widest() -> None:
    """SM-03: what a best-vs-worst gap has to be held against."""
    row = trial(0, PLAIN_POINT, repeats((90.0, 91.8)) + repeats((500.0, 501.0), concurrency=8))
    assert noise_floor(row, Objective()) == pytest.approx(1.8 / 90.9)
    assert noise_floor(trial(0, PLAIN_POINT, repeats((90.0,))), Objective()) is None
    assert noise_floor(None, Objective()) is None
