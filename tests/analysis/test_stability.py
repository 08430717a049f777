"""A difference is believed only outside the noise that was measured."""

import math

import pytest

from specsearch.analysis.stability import half_width, objective_ratio, ratio, t95
from specsearch.objective import Objective
from specsearch.trial import Measurement
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, repeats, trial

BASELINE = (90.0, 84.1, 93.5)


def test_one_run_inside_the_spread_of_the_baseline_is_no_difference() -> None:
    """ME-12: 92 against 90.0, 84.1 and 93.5."""
    found = ratio((92.0,), BASELINE)
    assert found.finding == "no significant difference"
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < found.high


def test_runs_far_outside_the_spread_of_the_baseline_are_faster() -> None:
    """ME-12: about 1.47 times."""
    found = ratio((131.0, 128.5, 133.0), BASELINE)
    assert found.value == pytest.approx(1.467, abs=0.001)
    assert found.finding == "faster"


def test_the_interval_is_the_same_whichever_way_the_ratio_is_taken() -> None:
    one, other = ratio((131.0, 128.5, 133.0), BASELINE), ratio(BASELINE, (131.0, 128.5, 133.0))
    assert (one.low, one.high) == (pytest.approx(1 / other.high), pytest.approx(1 / other.low))
    assert other.finding == "slower"


def test_without_repeats_there_is_no_interval_and_the_finding_says_measured_once() -> None:
    found = ratio((92.0,), (90.0,))
    assert not found.known
    assert found.finding == "faster, measured once"


@pytest.mark.parametrize(("degrees", "point"), [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (60, 2.000)])
def test_the_points_of_t_are_those_of_the_tables(degrees: int, point: float) -> None:
    assert t95(degrees) == pytest.approx(point, abs=0.002)


def test_the_points_of_t_fall_with_the_degrees_of_freedom() -> None:
    points = [t95(tenth / 10) for tenth in range(10, 400)]
    assert points == sorted(points, reverse=True)


def test_half_of_a_t_interval() -> None:
    assert half_width((1.0, 2.0, 3.0)) == pytest.approx(4.303 / math.sqrt(3))
    assert half_width((1.0,)) is None


def noisy(speed: float, noise: float, concurrency: int = 1) -> tuple[Measurement, ...]:
    return repeats([speed * (1 + noise * step) for step in (-1, 0, 1)], concurrency=concurrency)


@pytest.mark.parametrize("aggregate", ["geomean", "mean", "min"])
def test_the_interval_of_a_score_covers_its_ratio_and_shrinks_with_the_noise(aggregate: str) -> None:
    objective = Objective(aggregate=aggregate)
    widths = []
    for noise in (0.02, 0.002):
        plain = trial(0, PLAIN_POINT, noisy(90.0, noise) + noisy(500.0, noise, concurrency=8))
        row = trial(1, TREE_POINT, noisy(120.0, noise) + noisy(600.0, noise, concurrency=8))
        found = objective_ratio(row, plain, objective)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high
        widths.append(found.high / found.low)
    assert widths[1] < widths[0]


def test_less_is_better_is_a_ratio_above_one_where_less_was_measured() -> None:
    objective = Objective("ttft_p50_ms")
    slow, quick = (trial(n, PLAIN_POINT, repeats((90.0,), ttft_p50_ms=ms)) for n, ms in ((0, 200.0), (1, 100.0)))
    found = objective_ratio(quick, slow, objective)
    assert found is not None
    assert found.value == pytest.approx(2.0)


def test_trials_that_measured_different_load_points_are_not_compared() -> None:
    chat, code = trial(0, PLAIN_POINT, repeats((90.0,))), trial(1, PLAIN_POINT, repeats((90.0,), workload="code"))
    assert objective_ratio(chat, code, Objective()) is None
