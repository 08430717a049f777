"""Speed-up, step cost and break-even are held against the right plain run."""

from dataclasses import replace

import pytest

from specsearch.analysis.speedup import geometric_mean, matched_plain, most_tokens_per_step, step_costs
from specsearch.search_space import ALGORITHM, PLAIN
from specsearch.trial import TrialResult, TrialStatus
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, baseline, origin_tree, repeats, trial


def test_the_origin_story_breaks_even_at_3_33_and_lies_1_23_below() -> None:
    """ME-13: 2.1 accepted at 56.7 of 90 tokens/s."""
    (cost,) = step_costs(origin_tree(), baseline())
    assert cost.break_even == pytest.approx(3.333, abs=0.002)
    assert cost.margin == pytest.approx(-1.233, abs=0.002)
    assert cost.speed_up.value == pytest.approx(0.63)
    assert cost.speed_up.finding == "slower"


@pytest.mark.parametrize(
    ("concurrency", "plain", "speculative", "accept", "break_even"),
    [(1, 90.0, 56.7, 2.1, 3.333), (1, 21.0, 30.0, 2.6, 1.820), (32, 1800.0, 1500.0, 2.6, 3.120)],
)
def test_break_even_per_load_point(
    concurrency: int, plain: float, speculative: float, accept: float, break_even: float
) -> None:
    """ME-13: the three published situations."""
    row = trial(1, TREE_POINT, repeats((speculative,), accept=accept, concurrency=concurrency))
    (cost,) = step_costs(row, baseline_at(plain, concurrency))
    assert cost.break_even == pytest.approx(break_even, abs=0.001)
    assert (cost.margin > 0) == (speculative > plain)


def baseline_at(speed: float, concurrency: int) -> TrialResult:
    return trial(0, PLAIN_POINT, repeats((speed,), concurrency=concurrency))


def test_speed_up_is_accept_length_over_break_even_over_several_load_points() -> None:
    row = trial(1, TREE_POINT, repeats((117.0,), accept=2.6) + repeats((470.0,), accept=2.2, workload="code"))
    plain = trial(0, PLAIN_POINT, repeats((90.0,)) + repeats((510.0,), workload="code"))
    costs = step_costs(row, plain)
    accept, break_even, speed_up = (
        geometric_mean([getter(cost) for cost in costs])
        for getter in (lambda c: c.accept_length, lambda c: c.break_even, lambda c: c.speed_up.value)
    )
    assert speed_up == pytest.approx(accept / break_even)


def test_a_load_point_without_an_accept_length_has_no_step_cost() -> None:
    row = trial(1, TREE_POINT, repeats((56.7,), accept=2.1) + repeats((300.0,), workload="code"))
    plain = trial(0, PLAIN_POINT, repeats((90.0,)) + repeats((500.0,), workload="code"))
    assert [cost.load_point for cost in step_costs(row, plain)] == ["chat@1"]


def plain_run(number: int, status: TrialStatus = TrialStatus.OK, **knobs: object) -> TrialResult:
    names = {name.replace("nccl", "env.NCCL_ALGO"): value for name, value in knobs.items()}
    return trial(number, {ALGORITHM: PLAIN, **names}, repeats((90.0,)), status=status)  # type: ignore[dict-item]


def test_the_plain_run_with_the_same_other_knobs_is_the_match() -> None:
    rows = [plain_run(0, cuda_graph=True), plain_run(3, cuda_graph=True, nccl="Ring"), trial(1, TREE_POINT)]
    match = matched_plain(rows[2], rows)
    assert match is not None
    assert (match.row.number, match.predicted, str(match)) == (3, False, "measured as t0003")


def test_without_a_match_the_nearest_plain_run_predicts_and_the_difference_is_named() -> None:
    rows = [plain_run(0, cuda_graph=False, nccl="Tree"), plain_run(2, cuda_graph=False, nccl="Ring")]
    match = matched_plain(trial(1, TREE_POINT), rows)
    assert match is not None
    assert str(match) == "predicted from t0002, which differs in cuda_graph"


def test_a_knob_left_out_matches_one_that_is_unset() -> None:
    point = {name: value for name, value in TREE_POINT.items() if not name.startswith("env.")}
    match = matched_plain(trial(1, point), [plain_run(0, cuda_graph=True, nccl="unset")])
    assert match is not None
    assert not match.predicted


def test_a_plain_run_that_is_not_ok_is_no_match() -> None:
    assert (
        matched_plain(trial(1, TREE_POINT), [plain_run(0, TrialStatus.INVALID, cuda_graph=True, nccl="Ring")]) is None
    )


@pytest.mark.parametrize(("plain_ms", "disagrees"), [(10.0, False), (5.0, True)])
def test_step_times_of_the_client_that_tell_another_cost_are_noticed(plain_ms: float, disagrees: bool) -> None:
    """Throughput says 3.33 plain steps; the client 33/10 = 3.3 or 33/5 = 6.6."""
    row = trial(1, TREE_POINT, repeats((56.7,), accept=2.1, step_time_ms=33.0))
    (cost,) = step_costs(row, trial(0, PLAIN_POINT, repeats((90.0,), step_time_ms=plain_ms)))
    assert cost.step_times_disagree is disagrees


def test_the_longest_step_is_bounded_by_depth_and_by_what_is_verified() -> None:
    assert most_tokens_per_step({"num_steps": 3, "num_draft_tokens": 16}) == 4
    assert most_tokens_per_step({"num_steps": 8, "num_draft_tokens": 4}) == 4
    assert most_tokens_per_step({}) is None


def twin(number: int, key: str | None, **knobs: object) -> TrialResult:
    return replace(plain_run(number, TrialStatus.SKIPPED_DUPLICATE, **knobs), measurements=(), effective_key=key)


def test_a_plain_run_that_was_skipped_since_it_is_the_baseline_in_other_words_counts_as_measured() -> None:
    """The custom kernel is off on these GPUs: asking for NCCL's instead runs what the baseline ran."""
    measured = replace(plain_run(0, cuda_graph=True, custom_all_reduce=True), effective_key="a")
    row = trial(1, {**TREE_POINT, "env.NCCL_ALGO": "unset", "custom_all_reduce": False})
    skipped = twin(2, "a", cuda_graph=True, custom_all_reduce=False)
    match = matched_plain(row, [measured, row, skipped])
    assert match is not None
    assert (match.row.number, str(match)) == (0, "measured as t0000")
    assert str(matched_plain(row, [measured, row])) == "predicted from t0000, which differs in custom_all_reduce"


@pytest.mark.parametrize("key", ["b", None])
def test_a_duplicate_of_something_else_or_of_nothing_known_speaks_for_no_run(key: str | None) -> None:
    """Two keys that are not known are not equal."""
    measured = replace(plain_run(0, cuda_graph=True), effective_key=None if key is None else "a")
    match = matched_plain(trial(1, TREE_POINT), [measured, twin(2, key, cuda_graph=True, nccl="Ring")])
    assert match is not None
    assert match.differs_in == ("env.NCCL_ALGO",)
