"""The verdict says what the rows say, and no more."""

import json
import math
from dataclasses import replace

import pytest

from specsearch.analysis.headline import Finding
from specsearch.analysis.limits import ACCEPTANCE, STEP_COST
from specsearch.analysis.verdict import StudyFacts, Verdict, verdict
from specsearch.errors import NoRankableTrial, StorageError
from specsearch.objective import Bound, Objective
from specsearch.search_space import Point
from specsearch.study import settle
from specsearch.trial import Phase, TrialKind, TrialResult, TrialStatus
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, baseline, origin_tree, repeats, trial

FACTS = StudyFacts(name="kimi")
CHAIN: Point = {**TREE_POINT, "eagle_topk": 1, "num_draft_tokens": 4}
FAST = trial(2, CHAIN, repeats((131.0, 130.0, 132.0), accept=2.6))


def judged(*rows: TrialResult, objective: Objective | None = None) -> Verdict:
    return verdict(rows, objective or Objective(), FACTS)


def test_the_origin_story_is_told_in_one_sentence() -> None:
    """ME-13, origin story: 0.63 of plain decoding, break-even 3.33, below by 1.23."""
    said = judged(baseline(), origin_tree())
    assert said.finding == Finding.SLOWER
    assert said.headline.startswith(
        "No speculation beats the baseline: the best, t0001 EAGLE3 3/4/16 graphs, reaches 0.63"
    )
    assert said.headline.endswith("It accepts 2.10 tokens per step and needs 3.33 to break even: below by 1.23.")
    assert said.recommended.trial == 0
    assert said.limits is not None
    assert said.limits.side == STEP_COST
    assert said.limits.to_break_even == (
        "to break even: accept 3.33 instead of 2.10 tokens per step, or make the step 37% cheaper"
    )


def test_speculation_that_pays_is_recommended_with_its_interval() -> None:
    said = judged(baseline(), origin_tree(), FAST)
    assert said.finding == Finding.FASTER
    assert said.recommended.trial == 2
    assert said.recommended.over_best_plain is not None
    assert said.recommended.over_best_plain.value == pytest.approx(131 / 90)
    assert said.headline.startswith("Speculation pays: t0002 EAGLE3 3/1/4 graphs Ring is 1.46× (")


def test_a_difference_inside_the_noise_is_none_and_plain_decoding_is_recommended() -> None:
    """ME-12: nothing is shipped for a difference that is not there."""
    said = judged(baseline((90.0, 84.1, 93.5)), trial(1, CHAIN, repeats((92.0,), accept=2.1)))
    assert said.finding == Finding.NO_DIFFERENCE
    assert said.finding.value == "no_significant_difference"
    assert said.headline.startswith("Not decided: t0001 EAGLE3 3/1/4 graphs Ring measured 1.03× (")
    assert "of the best plain decoding, t0000 plain graphs; the interval includes 1." in said.headline
    assert said.headline.endswith("Raise the repeats of chat@1, whose repeats differ most (11%), or run both again.")
    assert said.recommended.trial == 0


def test_what_was_measured_once_decides_nothing() -> None:
    said = judged(baseline((90.0,)), trial(1, CHAIN, repeats((131.0,), accept=2.6)))
    assert said.finding == Finding.NO_DIFFERENCE
    assert "1.46× (measured once)" in said.headline
    assert "nothing was repeated, so there is no interval" in said.headline
    assert said.headline.endswith("Give chat@1 more repeats, or run both again.")
    assert said.recommended.trial == 0


AT_ONE = Objective(at=("chat@1",))


def two_loads(alone: float, many: float) -> tuple[TrialResult, TrialResult]:
    """The baseline and a speculative trial with these speeds beside its 90 and 500 tokens/s."""
    plain, row = (
        repeats((speed, 1.001 * speed), accept=accept) + repeats((eight, 1.001 * eight), accept=accept, concurrency=8)
        for speed, eight, accept in ((90.0, 500.0, None), (alone, many, 2.6))
    )
    return trial(0, PLAIN_POINT, plain, kind=TrialKind.BASELINE), trial(2, CHAIN, row)


def test_the_headline_names_the_load_points_of_the_objective_and_where_the_others_lose() -> None:
    headline = judged(*two_loads(131.0, 470.0), objective=AT_ONE).headline
    assert headline.startswith("Speculation pays at chat@1: t0002")
    assert headline.endswith("At chat@8, which the objective does not count, it measured 0.94×.")


def test_a_load_point_outside_the_objective_where_speculation_wins_is_not_in_the_headline() -> None:
    headline = judged(*two_loads(131.0, 600.0), objective=AT_ONE).headline
    assert headline.startswith("Speculation pays at chat@1: t0002")
    assert "does not count" not in headline


def test_an_objective_over_everything_measured_names_no_load_point() -> None:
    assert judged(*two_loads(131.0, 600.0)).headline.startswith("Speculation pays: t0002")
    assert judged(baseline(), FAST, objective=AT_ONE).headline.startswith("Speculation pays: t0002")


def test_a_bound_that_no_speculation_keeps_is_named_with_the_nearest_trial() -> None:
    objective = Objective(subject_to=(Bound("ttft_p99_ms", "<=", 60.0),))
    plain = trial(0, PLAIN_POINT, repeats((90.0, 91.0), ttft_p99_ms=50.0), kind=TrialKind.BASELINE)
    rows = [trial(n, CHAIN, repeats((131.0, 130.0), accept=2.6, ttft_p99_ms=ms)) for n, ms in ((1, 72.8), (2, 90.0))]
    assert judged(plain, *rows, objective=objective).headline == (
        "No speculative configuration keeps ttft_p99_ms <= 60; the nearest, t0001, has 72.8 ms. "
        "Of those that do, the best plain decoding is t0000 plain graphs."
    )


def test_failed_speculation_is_counted_by_reason() -> None:
    rows = [trial(n, {**CHAIN, "num_steps": n}, status=TrialStatus.FAILED, reason="hang") for n in (1, 2)]
    rows.append(trial(3, CHAIN, status=TrialStatus.INFEASIBLE, reason="oom_alloc"))
    assert judged(baseline(), *rows).headline.startswith(
        "All 3 speculative configurations failed (2 failed hang, 1 infeasible oom_alloc): whether"
    )


@pytest.mark.parametrize(
    ("searched", "rows", "words"),
    [
        (False, [], "The search space has no speculation"),
        (True, [], "No speculative configuration has been measured yet"),
        (True, [trial(1, CHAIN, status=TrialStatus.ABORTED, reason="budget")], "has been measured yet"),
    ],
)
def test_no_speculation_in_the_space_is_told_from_none_measured_yet(
    searched: bool, rows: list[TrialResult], words: str
) -> None:
    facts = StudyFacts(name="kimi", speculation_searched=searched)
    assert words in verdict([baseline(), *rows], Objective(), facts).headline


def test_the_winner_of_a_load_point_keeps_the_bounds_wherever_they_hold() -> None:
    """t0001 breaks the bound at the objective's load point, so it wins nowhere; t0002 breaks it at the other."""
    objective = Objective(at=("chat@1",), subject_to=(Bound("ttft_p99_ms", "<=", 60.0),))

    def row(number: int, point: Point, speeds: tuple[float, float], first_ms: tuple[float, float]) -> TrialResult:
        both = [
            repeats((speed, speed + 0.1), concurrency=concurrency, ttft_p99_ms=ms)
            for speed, ms, concurrency in zip(speeds, first_ms, (1, 8), strict=True)
        ]
        return trial(number, point, both[0] + both[1])

    said = judged(
        row(0, PLAIN_POINT, (90.0, 500.0), (50.0, 50.0)),
        row(1, CHAIN, (200.0, 900.0), (70.0, 50.0)),
        row(2, TREE_POINT, (131.0, 800.0), (50.0, 70.0)),
        objective=objective,
    )
    assert [(w.load_point, w.contender.trial, w.best_breaks_bound) for w in said.winners] == [
        ("chat@1", 2, False),
        ("chat@8", 0, True),
    ]


@pytest.mark.parametrize(("accept", "said"), [(1.0, "none"), (1.02, "hardly any")])
def test_a_drafter_that_is_hardly_accepted_is_to_be_looked_at_first(accept: float, said: str) -> None:
    row = trial(1, CHAIN, repeats((40.0, 40.1), accept=accept, verify_steps=60.0))
    found = judged(baseline(), row).limits
    assert found is not None
    assert found.next_steps[0] == (
        f"t0001 accepted {said} of its drafts in 120 steps: is the drafter connected? (EAGLE for an EAGLE-3 drafter?)"
    )
    assert not any("more training" in hint for hint in found.next_steps)


@pytest.mark.parametrize(("tokens", "offered"), [(4, False), (6, True)])
def test_a_chain_is_offered_only_where_it_verifies_fewer_tokens(tokens: int, offered: bool) -> None:
    row = trial(1, {**TREE_POINT, "eagle_topk": 2, "num_steps": 4, "num_draft_tokens": tokens}, FAST.measurements)
    found = judged(baseline(), row).limits
    assert found is not None
    hints = [hint for hint in found.next_steps if "try a chain" in hint]
    assert hints == (["try a chain (eagle_topk 1): it verifies 5 tokens at 4 steps instead of 6"] if offered else [])


def test_what_a_later_attempt_took_up_is_not_promised_to_the_next_run() -> None:
    rows = [
        baseline(),
        trial(1, CHAIN, status=TrialStatus.ABORTED, reason="budget"),
        trial(2, CHAIN, status=TrialStatus.ABORTED, reason="budget"),
        replace(FAST, attempt=2),
        trial(3, CHAIN, status=TrialStatus.FAILED, reason="interrupted"),
        trial(3, CHAIN, status=TrialStatus.INFEASIBLE, reason="oom_alloc", attempt=2),
    ]
    advice = {(f.reason, f.trials): f.advice for f in judged(*rows).outcomes.failures}
    assert advice["budget", (1,)] == "nothing: the next run takes it up again"
    assert advice["budget", (2,)] == advice["interrupted", (3,)] == "nothing: a later attempt took it up"


@pytest.mark.parametrize(("gpus", "unit", "total"), [(8, "gpu_seconds", 960.0), (0, "seconds", 120.0)])
def test_the_unit_of_the_time_is_the_key_of_its_numbers(gpus: int, unit: str, total: float) -> None:
    rows = [replace(row, gpu_count=gpus) for row in (baseline(), FAST)]
    outcomes = judged(*rows).to_json()["outcomes"]
    assert isinstance(outcomes, dict)
    assert list(outcomes["time_spent"]) == [unit]
    spent = outcomes["time_spent"][unit]
    assert spent["total"] == pytest.approx(total)
    assert math.fsum(spent["by_phase"].values()) == pytest.approx(total)


def test_a_note_of_several_lines_is_one_warning() -> None:
    facts = StudyFacts(name="kimi", notes=("these differ in", "  space.a: 1 → 2", "  space.b: 3 → 4", "another"))
    said = verdict([baseline(), FAST], Objective(), facts).warnings
    assert said == ("these differ in space.a: 1 → 2; space.b: 3 → 4", "another")


def test_the_counts_of_failures_are_said_once() -> None:
    with pytest.raises(NoRankableTrial) as ended:
        judged(trial(0, PLAIN_POINT, status=TrialStatus.INFEASIBLE, reason="oom_alloc", kind=TrialKind.BASELINE))
    assert str(ended.value) == "no trial can be ranked: 1 infeasible oom_alloc: lower mem_fraction_static"


def test_the_intervals_say_what_is_not_in_them() -> None:
    assert "between launches" in judged(baseline(), FAST).intervals


def test_speculation_is_held_against_the_best_plain_run_and_not_only_against_the_start() -> None:
    """Otherwise a gain of NCCL settings or graphs would pass for speculation."""
    better_plain = trial(3, {**PLAIN_POINT, "env.NCCL_ALGO": "Ring"}, repeats((140.0, 140.5, 139.5)))
    said = judged(baseline(), FAST, better_plain)
    assert said.finding == Finding.SLOWER
    assert said.best_plain is not None
    assert said.best_plain.trial == 3
    assert said.best_speculative is not None
    assert said.best_speculative.over_start is not None
    assert said.best_speculative.over_start.is_above
    assert said.matched_plain == "measured as t0003"


def test_invalid_and_not_finite_rows_never_win() -> None:
    """RS-10: baseline 90, NaN, an invalid 400, a failure and 95: the best is 95."""
    rows: list[TrialResult] = [baseline()]
    rows.append(settle(trial(1, CHAIN, repeats((math.nan,))), rows))
    rows.append(trial(2, CHAIN, repeats((400.0,), accept=3.0), status=TrialStatus.INVALID, reason="degenerate_output"))
    rows.append(trial(3, CHAIN, status=TrialStatus.FAILED, reason="hang"))
    rows.append(trial(4, CHAIN, repeats((95.0, 95.1, 94.9), accept=2.0)))
    said = judged(*rows)
    assert [contender.trial for contender in said.ranking] == [4, 0]
    assert said.recommended.trial == 4


def test_without_a_speculative_row_the_best_is_plain_decoding() -> None:
    """RS-10."""
    said = judged(baseline(), trial(1, CHAIN, status=TrialStatus.INFEASIBLE, reason="oom_alloc"))
    assert said.finding == Finding.NO_SPECULATION
    assert said.recommended.trial == 0
    assert said.headline == (
        "The one speculative configuration failed (1 infeasible oom_alloc): whether speculation pays is not known; "
        "the best plain decoding is t0000 plain graphs."
    )


def test_nothing_to_rank_is_an_error_that_says_why() -> None:
    with pytest.raises(NoRankableTrial, match="1 failed gpu_not_free: end what holds the GPU") as ended:
        judged(trial(0, PLAIN_POINT, status=TrialStatus.FAILED, reason="gpu_not_free", kind=TrialKind.BASELINE))
    assert ended.value.exit_code == 1


def test_a_bound_that_nothing_keeps_is_named() -> None:
    objective = Objective(subject_to=(Bound("ttft_p99_ms", "<=", 500.0),))
    with pytest.raises(NoRankableTrial, match="no trial keeps ttft_p99_ms <= 500"):
        judged(trial(0, PLAIN_POINT, repeats((90.0,), ttft_p99_ms=900.0)), objective=objective)


def test_a_trial_that_would_have_won_without_the_bound_is_warned_of() -> None:
    objective = Objective(subject_to=(Bound("ttft_p99_ms", "<=", 500.0),))
    fast = trial(1, CHAIN, repeats((131.0, 130.0), accept=2.6, ttft_p99_ms=612.0))
    plain = trial(0, PLAIN_POINT, repeats((90.0, 91.0), ttft_p99_ms=300.0), kind=TrialKind.BASELINE)
    said = judged(plain, fast, objective=objective)
    assert [contender.trial for contender in said.ranking] == [0]
    assert any("breaks ttft_p99_ms <= 500 (612.0 ms)" in warning for warning in said.warnings)


def test_real_and_simulated_rows_are_never_compared() -> None:
    with pytest.raises(StorageError, match="several engines, sglang and simulated"):
        judged(baseline(), replace(FAST, engine="simulated"))


def test_rows_of_two_engine_versions_or_of_two_prompt_lists_are_never_compared() -> None:
    """RS-10: only rows of the same workload and engine version are ranked."""
    with pytest.raises(StorageError, match=r"engine versions, 0\.5\.17 and 0\.5\.23"):
        judged(replace(baseline(), engine_version="0.5.17"), replace(FAST, engine_version="0.5.23"))
    other = tuple(replace(measurement, workload_digest="ffff") for measurement in FAST.measurements)
    with pytest.raises(StorageError, match="different prompts"):
        judged(baseline(), replace(FAST, measurements=other))


def test_each_load_point_has_its_winner_where_they_differ() -> None:
    """ME-13: wins at 1, loses at 32, and is shown as such."""
    plain = trial(
        0, PLAIN_POINT, repeats((21.0, 21.1)) + repeats((1800.0, 1801.0), concurrency=32), kind=TrialKind.BASELINE
    )
    row = trial(1, CHAIN, repeats((30.0, 30.1), accept=2.6) + repeats((1500.0, 1501.0), accept=2.6, concurrency=32))
    said = judged(plain, row)
    assert [(winner.load_point, winner.contender.trial) for winner in said.winners] == [("chat@1", 1), ("chat@32", 0)]
    assert [(cost.load_point, cost.speed_up.finding) for cost in said.step_costs] == [
        ("chat@1", "faster"),
        ("chat@32", "slower"),
    ]
    assert [cost.break_even for cost in said.step_costs] == [
        pytest.approx(1.82, abs=0.01),
        pytest.approx(3.12, abs=0.01),
    ]


def test_one_winner_everywhere_is_not_told_twice() -> None:
    assert judged(baseline(), FAST).winners == ()


def test_the_counts_by_status_add_up_to_the_proposals() -> None:
    """RS-09: six proposals, one of them tried twice."""
    rows = [
        baseline(),
        trial(1, CHAIN, status=TrialStatus.REJECTED, reason="infeasible_params"),
        trial(2, CHAIN, status=TrialStatus.FAILED, reason="gpu_not_free"),
        trial(2, CHAIN, repeats((95.0,), accept=2.0), attempt=2),
        trial(3, CHAIN, status=TrialStatus.FAILED, reason="node_lost"),
        trial(4, CHAIN, status=TrialStatus.SKIPPED_DUPLICATE, reason="same_effective_configuration"),
        trial(5, CHAIN, status=TrialStatus.FAILED, reason="hang", advice="look at rank 3"),
    ]
    outcomes = judged(*rows).outcomes
    assert outcomes.counts == {"ok": 2, "failed": 2, "rejected": 1, "skipped_duplicate": 1}
    assert (outcomes.proposals, outcomes.attempts) == (6, 7)
    advice = {failure.reason: (failure.attempts, failure.advice) for failure in outcomes.failures}
    assert advice["hang"] == (1, "look at rank 3")
    assert advice["gpu_not_free"] == (1, "end what holds the GPU, or give other GPUs")
    assert "same_effective_configuration" not in advice


def test_the_time_of_every_attempt_is_accounted_for_and_what_failures_lost_is_said() -> None:
    failed = trial(1, CHAIN, status=TrialStatus.FAILED, reason="hang", phase_s={"ready": 60.0})
    spent = judged(baseline(), failed).outcomes.time_spent
    assert spent.total_s == pytest.approx(2 * 60 * 8)
    assert math.fsum(spent.by_phase_s.values()) == pytest.approx(spent.total_s)
    assert spent.by_phase_s["ready"] == pytest.approx(8 * (30 + 60))
    assert spent.lost_share == pytest.approx(0.5)


def test_what_limits_is_the_side_with_more_room() -> None:
    """At 1.3 accepted of 4 and a step of 1.2 it is acceptance; the origin story's was the step cost."""
    said = judged(baseline(), trial(1, CHAIN, repeats((97.5, 97.6), accept=1.3)))
    assert said.limits is not None
    assert said.limits.side == ACCEPTANCE
    assert said.limits.acceptance_room == pytest.approx(4 / 1.3)
    assert said.limits.step_cost_room == pytest.approx(1.2, abs=0.01)


def test_a_chain_whose_last_steps_are_never_accepted_is_advised_to_be_shorter() -> None:
    point: Point = {**CHAIN, "num_steps": 5, "num_draft_tokens": 6}
    row = trial(1, point, repeats((80.0, 81.0), accept=1.5, histogram=(50, 50, 0, 0, 0, 0)))
    said = judged(baseline(), row)
    assert said.limits is not None
    assert any("a chain of 1 would have kept 1.50" in hint for hint in said.limits.next_steps)


def test_graphs_that_are_off_and_wide_trees_are_the_first_things_to_try() -> None:
    eager = trial(1, {**TREE_POINT, "cuda_graph": False}, repeats((53.2, 53.3), accept=2.1))
    said = judged(baseline(), eager)
    assert said.limits is not None
    assert said.limits.next_steps[0].startswith("turn CUDA graphs on")
    assert said.limits.next_steps[1].startswith("verify fewer tokens: 16")
    assert said.matched_plain == "predicted from t0000, which differs in cuda_graph, env.NCCL_ALGO"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([trial(1, CHAIN, repeats((200.0, 200.1), accept=1.5))], "break-even accept length 0.67 is below 1"),
        ([trial(1, CHAIN, repeats((300.0, 300.1), accept=3.95))], "accepts 3.95 of at most 4 tokens at chat@1"),
        ([trial(1, CHAIN, repeats((90.0, 110.0), accept=2.1))], "repeats differ by more than 10% in 1 of 2 trials"),
        ([trial(1, PLAIN_POINT, repeats((80.0, 80.1)))], "ran one configuration and differ by 12%"),
        ([replace(FAST, warnings=("num_continuous_decode_steps does nothing",))], "does nothing (t0002)"),
        ([replace(FAST, overridden=("num_draft_tokens: asked 16, runs 4",))], "the server changed num_draft_tokens"),
        ([replace(FAST, node="n1", node_unfit="GPU 3 holds 2 GiB")], "node n1 takes no more trials since t0002"),
    ],
)
def test_what_should_not_be_believed_is_warned_of(rows: list[TrialResult], words: str) -> None:
    assert any(words in warning for warning in judged(baseline(), *rows).warnings)


def test_an_unremarkable_study_has_no_warning() -> None:
    assert judged(baseline(), FAST).warnings == ()


def test_random_prompts_are_warned_of() -> None:
    """ME-05."""
    rows = [
        replace(row, measurements=tuple(replace(m, workload_kind="random") for m in row.measurements))
        for row in (baseline(), FAST)
    ]
    assert any(warning.startswith("chat: random prompts say nothing") for warning in judged(*rows).warnings)


def test_the_last_attempt_of_a_trial_speaks_for_it() -> None:
    first = trial(2, CHAIN, status=TrialStatus.FAILED, reason="hang", phase=Phase.MEASURE)
    assert judged(baseline(), first, replace(FAST, attempt=2)).recommended.attempt == 2


def test_a_verdict_is_json_with_finite_numbers() -> None:
    said = judged(baseline(), origin_tree(), trial(3, CHAIN, status=TrialStatus.FAILED, reason="hang"))
    text = json.dumps(said.to_json(), allow_nan=False)
    back = json.loads(text)
    assert back["finding"] == "slower"
    assert back["step_costs"][0]["margin"] == pytest.approx(-1.233, abs=0.002)
    assert back["best_speculative"]["break_even"] == pytest.approx(3.333, abs=0.002)
