"""What a trial closed is named, with the trial that taught it and what was not launched because of it."""

from specsearch.analysis.closed import closed_regions
from specsearch.search_space import ALGORITHM, ChoiceParameter, Constraint, IntParameter, Point, SearchSpace
from specsearch.trial import TrialKind, TrialResult, TrialStatus
from tests.storage.made_rows import trial

WHEN = {ALGORITHM: ("EAGLE3",)}
SPACE = SearchSpace(
    (
        ChoiceParameter(ALGORITHM, ("none", "EAGLE3")),
        IntParameter("num_steps", 1, 3, when=WHEN),
        ChoiceParameter("eagle_topk", (1, 2, 4), when=WHEN),
    )
)  # plain decoding and 9 speculative points, 6 of them trees
CHAINS = "eagle_topk <= 1"


def point(steps: int, top_k: int) -> Point:
    return {ALGORITHM: "EAGLE3", "num_steps": steps, "eagle_topk": top_k}


def refused(number: int, at: Point, lesson: str = CHAINS) -> TrialResult:
    detail = "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding."
    status = TrialStatus.INFEASIBLE
    return trial(number, at, status=status, reason="arg_rejected", message="refused", detail=detail, lesson=lesson)


BASELINE = trial(0, {ALGORITHM: "none"}, kind=TrialKind.BASELINE)


def test_a_region_names_its_teacher_and_counts_what_was_not_launched() -> None:
    """LF-05: of 6 trees one was launched and taught that none can run."""
    (region,) = closed_regions([BASELINE, refused(1, point(1, 4)), trial(2, point(1, 1))], SPACE)
    assert (region.keeps, region.trial, region.reason) == (CHAINS, 1, "arg_rejected")
    assert region.because.startswith("ValueError: trtllm_mha backend only supports topk = 1")
    assert (region.not_launched, region.configurations, region.rejected_by_hand) == (5, 10, 0)


def test_what_was_launched_before_the_lesson_is_not_counted_as_spared() -> None:
    rows = [BASELINE, trial(1, point(2, 2)), refused(2, point(1, 4))]
    assert closed_regions(rows, SPACE)[0].not_launched == 4


def test_a_point_given_by_hand_is_counted_as_rejected_and_as_not_launched() -> None:
    by_hand = trial(2, point(3, 2), status=TrialStatus.REJECTED, kind=TrialKind.SEED, reason="infeasible_params")
    (region,) = closed_regions([BASELINE, refused(1, point(1, 4)), by_hand], SPACE)
    assert (region.not_launched, region.rejected_by_hand) == (5, 1)


def test_without_the_space_a_region_is_named_and_not_counted() -> None:
    (region,) = closed_regions([BASELINE, refused(1, point(1, 4))])
    assert (region.not_launched, region.configurations) == (None, None)


def test_a_space_too_large_to_list_is_not_counted() -> None:
    wide = SearchSpace((*SPACE.parameters, IntParameter("seed", 1, 30_000)))
    (region,) = closed_regions([BASELINE, refused(1, point(1, 4))], wide)
    assert region.not_launched is None


def test_one_lesson_is_one_region_however_many_trials_met_it_and_the_first_is_its_teacher() -> None:
    rows = [BASELINE, refused(1, point(1, 4)), refused(2, point(1, 2)), refused(3, point(3, 1), "num_steps != 3")]
    assert [(region.keeps, region.trial) for region in closed_regions(rows, SPACE)] == [
        (CHAINS, 1),
        ("num_steps != 3", 3),
    ]


def test_constraints_of_the_file_close_nothing_that_a_trial_had_to_teach() -> None:
    narrow = SearchSpace(SPACE.parameters, (Constraint("num_steps <= 1"),))
    (region,) = closed_regions([BASELINE, refused(1, point(1, 4))], narrow)
    assert (region.not_launched, region.configurations) == (1, 4)


def test_a_measured_trial_teaches_that_a_value_changes_nothing() -> None:
    """LF-07's silent relative: the kernel that is off whatever is asked."""
    row = trial(1, {ALGORITHM: "none", "custom_all_reduce": True}, lesson="not custom_all_reduce")
    (region,) = closed_regions([BASELINE, row])
    assert (region.reason, region.because) == (
        None,
        "another value changes nothing here: take the knob out of the search, or pin it",
    )


def test_a_trial_that_failed_by_the_host_s_fault_closes_nothing() -> None:
    row = trial(1, point(1, 4), status=TrialStatus.FAILED, reason="hang", lesson=CHAINS)
    assert closed_regions([BASELINE, row], SPACE) == ()
