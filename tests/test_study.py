"""The rules of a study: the next action is a function of rows and pending trials."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from specsearch.objective import Bound, Objective
from specsearch.search_space import ChoiceParameter, IntParameter, NoRules, Point, SearchSpace, Value
from specsearch.study import (
    Budget,
    Done,
    Launch,
    Reject,
    Study,
    Wait,
    count_searched,
    known_effective,
    latest_attempts,
    may_retry,
    ranked,
    settle,
    typical_seconds,
)
from specsearch.trial import Measurement, TrialKind, TrialRequest, TrialResult, TrialStatus

PLAIN: Point = {"cuda_graph": True, "speculative_algorithm": "none"}
SPACE = SearchSpace(
    (
        ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")),
        IntParameter("num_steps", 1, 4),
        ChoiceParameter("cuda_graph", (True, False)),
    )
)


def eagle(steps: int, graphs: bool = True) -> dict[str, str | int | bool]:
    return {"cuda_graph": graphs, "num_steps": steps, "speculative_algorithm": "EAGLE3"}


class Listed:
    """Proposes the given points in their order, those that are known left out."""

    def __init__(self, *points: Point) -> None:
        self.points = points

    def propose(
        self, space: SearchSpace, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], objective: Objective
    ) -> Point | None:
        known = [row.point for row in rows] + [request.point for request in pending]
        return next((point for point in self.points if point not in known), None)


def measured(speed: float | None, *, concurrency: int = 1, repeat: int = 0, **values: float | None) -> Measurement:
    return Measurement(
        workload="chat",
        workload_digest="0" * 12,
        workload_kind="text",
        concurrency=concurrency,
        repeat=repeat,
        values={"output_tokens_per_s": speed, "e2e_p50_ms": 100.0, **values},
    )


def row(
    number: int,
    point: Point,
    status: str = "ok",
    *,
    speed: float = 50.0,
    attempt: int = 1,
    kind: TrialKind = TrialKind.SEARCH,
    reason: str | None = None,
    key: str | None = None,
    seconds: float = 10.0,
    **values: float | None,
) -> TrialResult:
    return TrialResult(
        number=number,
        attempt=attempt,
        kind=kind,
        point=point,
        status=TrialStatus(status),
        reason=reason,
        message="made up",
        ended_at=seconds,
        gpu_count=8,
        effective_key=key,
        measurements=(measured(speed, **values),) if status == "ok" else (),
    )


def request(number: int, point: Point, kind: TrialKind = TrialKind.SEARCH, attempt: int = 1) -> TrialRequest:
    return TrialRequest(number=number, attempt=attempt, kind=kind, point=point)


def study(*points: Point, trials: int | None = 40, seeds: Sequence[Point] = (), **budget: float) -> Study:
    return Study(
        SPACE, Objective(), Budget(trials=trials, **budget), Listed(*points), tuple(seeds), {"cuda_graph": True}
    )


BASELINE = row(0, PLAIN, kind=TrialKind.BASELINE, key="plain")


def launched(action: object) -> TrialRequest:
    assert isinstance(action, Launch)
    return action.request


def test_the_start_baseline_comes_first_and_alone() -> None:
    first = launched(study(eagle(1)).next_action([], []))
    assert (first.number, first.attempt, first.kind, first.point) == (0, 1, TrialKind.BASELINE, PLAIN)
    assert study(eagle(1)).next_action([], [first]) == Wait()


def test_seed_points_come_before_the_sampler_in_their_order_and_no_point_twice() -> None:
    seeds = [eagle(3), {"cuda_graph": True, "speculative_algorithm": "none"}, eagle(2)]
    what = study(eagle(1), seeds=seeds)
    first = launched(what.next_action([BASELINE], []))
    assert (first.kind, first.point) == (TrialKind.SEED, eagle(3))
    second = launched(what.next_action([BASELINE], [first]))
    assert (second.number, second.kind, second.point) == (2, TrialKind.SEED, eagle(2))  # plain is the baseline
    third = launched(what.next_action([BASELINE, row(1, eagle(3)), row(2, eagle(2))], []))
    assert (third.number, third.kind, third.point) == (3, TrialKind.SEARCH, eagle(1))


def test_a_seed_point_that_cannot_run_is_rejected_once() -> None:
    what = study(eagle(1), seeds=[eagle(9)])
    action = what.next_action([BASELINE], [])
    assert isinstance(action, Reject)
    assert action.problems == ("num_steps 9 is not an integer from 1 to 4",)
    rejected = row(1, action.request.point, "rejected", kind=TrialKind.SEED)
    assert launched(what.next_action([BASELINE, rejected], [])).kind == TrialKind.SEARCH


def test_a_launch_knows_what_was_measured_by_effective_configuration() -> None:
    rows = [BASELINE, row(1, eagle(1), key="a"), row(2, eagle(2), "infeasible", key="b")]
    assert launched(study(eagle(3)).next_action(rows, [])).known_effective == {"plain": 0, "a": 1}
    assert known_effective(rows) == {"plain": 0, "a": 1}


@pytest.mark.parametrize(
    ("status", "reason", "attempt", "again"),
    [
        ("failed", "hang", 1, True),
        ("failed", "hang", 2, True),
        ("failed", "hang", 3, False),
        ("infeasible", "oom_alloc", 1, False),
        ("invalid", "draft_never_accepted", 1, False),
        ("invalid", "drift", 1, True),
        ("invalid", "drift", 2, False),
        ("aborted", "user", 5, True),
        ("skipped_duplicate", "same_effective_configuration", 1, False),
        ("rejected", "infeasible_params", 1, False),
        ("stopped_early", "hopeless", 1, False),
        ("ok", None, 1, False),
    ],
)
def test_what_is_retried_and_how_often(status: str, reason: str | None, attempt: int, again: bool) -> None:
    failed = row(1, eagle(1), status, reason=reason, attempt=attempt)
    assert may_retry(failed) is again
    next_one = launched(study(eagle(2)).next_action([BASELINE, failed], []))
    assert (next_one.number, next_one.attempt) == ((1, attempt + 1) if again else (2, 1))
    assert next_one.point == (eagle(1) if again else eagle(2))


def test_a_retry_that_runs_already_is_not_started_again() -> None:
    failed = row(1, eagle(1), "failed", reason="hang")
    running = request(1, eagle(1), attempt=2)
    assert launched(study(eagle(2)).next_action([BASELINE, failed], [running])).number == 2


def test_a_retry_that_runs_takes_one_trial_of_the_budget_and_not_two() -> None:
    failed = row(1, eagle(1), "failed", reason="hang")
    running = request(1, eagle(1), attempt=2)
    assert launched(study(eagle(2), trials=2).next_action([BASELINE, failed], [running])).number == 2
    assert study(eagle(2), trials=1).next_action([BASELINE, failed], [running]) == Wait()


def test_a_baseline_that_cannot_be_measured_ends_the_study_and_one_that_the_host_failed_is_retried() -> None:
    bad = row(0, PLAIN, "infeasible", kind=TrialKind.BASELINE, reason="arg_rejected")
    action = study(eagle(1)).next_action([bad], [])
    assert action == Done("the start baseline cannot be measured: arg_rejected: made up")
    failed = row(0, PLAIN, "failed", kind=TrialKind.BASELINE, reason="hang")
    assert launched(study(eagle(1)).next_action([failed], [])).attempt == 2


@pytest.mark.parametrize(("reason", "goes_on"), [("interrupted", True), ("gpu_not_free", True), ("hang", False)])
def test_a_folder_is_of_use_again_once_what_kept_its_baseline_from_running_is_gone(reason: str, goes_on: bool) -> None:
    """Three kills, or three runs beside a busy GPU, say nothing of the baseline; three hangs do."""
    failed = [row(0, PLAIN, "failed", kind=TrialKind.BASELINE, reason=reason, attempt=attempt) for attempt in (1, 2, 3)]
    action = study(eagle(1)).next_action(failed, [])
    assert (launched(action).attempt == 4) if goes_on else isinstance(action, Done)


def test_a_flag_that_the_engine_lacks_ends_the_study_with_the_first_trial_that_has_it() -> None:
    """LF-06: a night of trials that end after two seconds each is no search."""
    refused = replace(
        row(1, eagle(1), "infeasible", reason="arg_rejected"),
        failure_facts={"flag": "--cuda-graph-max-bs"},
        detail="error: ambiguous option: --cuda-graph-max-bs could match …",
    )
    done = study(eagle(2)).next_action([BASELINE, refused], [])
    assert isinstance(done, Done)
    assert "--cuda-graph-max-bs" in done.why
    assert done.exit_code == 2
    other = replace(refused, failure_facts={})
    assert launched(study(eagle(2)).next_action([BASELINE, other], [])).point == eagle(2)
    later = [BASELINE, row(1, eagle(1)), replace(refused, number=2, point=eagle(3))]
    assert launched(study(eagle(2)).next_action(later, [])).point == eagle(2)


@pytest.mark.parametrize("first", ["infeasible", "failed"])
def test_a_space_without_a_flag_goes_on(first: str) -> None:
    rows = [BASELINE, row(1, eagle(1), first, reason="graph_capture_oom", attempt=3)]
    assert launched(study(eagle(2)).next_action(rows, [])).point == eagle(2)


def test_a_space_of_plain_decoding_alone_does_not_launch_its_baseline_twice() -> None:
    space = SearchSpace((ChoiceParameter("cuda_graph", (True, False)),))
    what = Study(space=space, objective=Objective(), budget=Budget(), proposer=Listed())
    assert what.baseline_point == space.canonical({}) == space.canonical({"speculative_algorithm": "none"})


@pytest.mark.parametrize("limit", ["1e999", "inf", "nan", "--5", "1_0", "5ms", "", "9" * 400])
def test_a_bound_has_a_number_that_its_rows_can_be_read_by_again(limit: str) -> None:
    with pytest.raises(ValueError, match="is not of the form METRIC <= NUMBER"):
        Bound.parse(f"ttft_p99_ms <= {limit}")
    kept = Objective(subject_to=tuple(Bound.parse(f"ttft_p99_ms <= {n}") for n in ("1e18", ".5", "-3e-7", "1.25")))
    assert Objective.from_spec(kept.spec()) == kept


def test_the_budget_of_trials_counts_each_searched_trial_once_whatever_its_attempts() -> None:
    rows = [
        BASELINE,
        row(1, eagle(1), "failed", attempt=1),
        row(1, eagle(1), attempt=2),
        row(2, eagle(2), "skipped_duplicate"),
        row(3, eagle(3), "rejected", kind=TrialKind.SEED),
        row(4, eagle(4), "aborted"),
        row(5, eagle(4, graphs=False), "infeasible"),
        row(6, {"cuda_graph": False, "speculative_algorithm": "none"}, kind=TrialKind.MATCHED_PLAIN),
    ]
    assert count_searched(rows) == 2
    assert [made.attempt for made in latest_attempts(rows)] == [1, 2, 1, 1, 1, 1, 1]


def test_the_best_gets_its_matched_plain_run_after_the_last_trial_and_only_where_nobody_measured_it() -> None:
    fast = row(1, eagle(2, graphs=False), speed=90.0)
    what = study(trials=1)
    action = launched(what.next_action([BASELINE, fast], []))
    assert (action.kind, action.point) == (
        TrialKind.MATCHED_PLAIN,
        {"cuda_graph": False, "speculative_algorithm": "none"},
    )
    matched = row(2, action.point, kind=TrialKind.MATCHED_PLAIN)
    assert what.next_action([BASELINE, fast, matched], []) == Done("all 1 trials of the budget are used")
    same_knobs = row(1, eagle(2), speed=90.0)
    assert isinstance(what.next_action([BASELINE, same_knobs], []), Done)


def test_an_exhausted_space_ends_the_study_and_says_how_much_there_was() -> None:
    rows = [BASELINE, row(1, eagle(1), key="a"), row(2, eagle(2), "skipped_duplicate", key="a")]
    done = study().next_action(rows, [])
    assert done == Done("the search space is exhausted (2 effective configurations, the baseline included)")
    assert study().next_action(rows, [request(3, eagle(3))]) == Wait()


def test_ten_duplicates_in_a_row_end_the_search_and_nine_do_not() -> None:
    """SR-03: a sampler may know only after a launch that two requests are one configuration."""

    def rows(count: int) -> Iterator[TrialResult]:
        yield BASELINE
        for number in range(1, count + 1):
            yield row(number, {"n": number}, "skipped_duplicate", key="plain")

    assert isinstance(study(eagle(1)).next_action(list(rows(10)), []), Done)
    assert launched(study(eagle(1)).next_action(list(rows(9)), [])).point == eagle(1)


def test_no_trial_is_begun_that_the_time_budget_has_no_room_for() -> None:
    what = study(eagle(1), wall_time_s=100.0)
    assert typical_seconds([BASELINE]) == 10.0
    assert isinstance(what.next_action([BASELINE], [], elapsed_s=90.0), Launch)
    done = what.next_action([BASELINE], [], elapsed_s=91.0)
    assert isinstance(done, Done)
    assert done.why == "the time budget of 2 min leaves no room for another trial"
    assert what.next_action([BASELINE], [request(1, eagle(1))], elapsed_s=91.0) == Wait()


def test_gpu_hours_count_every_attempt() -> None:
    rows = [BASELINE, row(1, eagle(1), "failed", seconds=1790.0)]  # 8 GPUs for half an hour in all
    assert isinstance(study(eagle(2), gpu_hours=4.1).next_action(rows, []), Launch)
    assert isinstance(study(eagle(2), gpu_hours=4.0).next_action(rows, []), Done)


def test_a_server_that_crashes_twice_at_work_is_the_configurations_fault() -> None:
    first = row(1, eagle(1), "failed", reason="runtime_crash")
    second = row(1, eagle(1), "failed", reason="runtime_crash", attempt=2)
    assert settle(first, [BASELINE]) == first
    assert settle(second, [BASELINE, first]).status == TrialStatus.INFEASIBLE
    other = row(2, eagle(2), "failed", reason="runtime_crash")
    assert settle(other, [BASELINE, first]) == other
    hang = row(1, eagle(1), "failed", reason="hang")
    assert settle(second, [BASELINE, hang]) == second


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_never_ok(number: float) -> None:
    """SR-02: it says where it was measured; the row is kept and not ranked."""
    settled = settle(row(1, eagle(1), itl_p99_ms=number), [])
    assert (settled.status, settled.reason) == (TrialStatus.INVALID, "not_finite")
    assert f"itl_p99_ms = {number} at chat@1" in str(settled.message)
    assert ranked([settled], Objective()) == []


def test_only_ok_trials_within_every_bound_are_ranked_and_ties_go_to_the_lower_latency() -> None:
    objective = Objective(subject_to=(Bound.parse("ttft_p99_ms <= 500"),))
    rows = [
        row(1, eagle(1), speed=60.0, ttft_p99_ms=400.0, e2e_p50_ms=90.0),
        row(2, eagle(2), speed=99.0, ttft_p99_ms=501.0),
        row(3, eagle(3), "invalid"),
        row(4, eagle(4), speed=60.0, ttft_p99_ms=500.0, e2e_p50_ms=80.0),
        row(5, PLAIN, speed=70.0, ttft_p99_ms=None),
    ]
    assert [made.number for made in ranked(rows, objective)] == [4, 1]


def test_the_objective_averages_repeats_and_aggregates_load_points() -> None:
    points = [
        measured(10.0, repeat=0),
        measured(30.0, repeat=1),
        measured(80.0, concurrency=8),
    ]
    assert Objective().score(points) == pytest.approx(40.0)  # the geometric mean of 20 and 80
    assert Objective(aggregate="mean").score(points) == pytest.approx(50.0)
    assert Objective(aggregate="min").score(points) == pytest.approx(20.0)
    assert Objective(at=("chat@8",)).score(points) == pytest.approx(80.0)
    assert Objective(metric="e2e_p50_ms").score(points) == pytest.approx(1 / 100.0)  # less is better


@pytest.mark.parametrize("speed", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_trial_without_a_positive_number_at_every_load_point_has_no_score(speed: float | None) -> None:
    assert Objective().score([measured(10.0), measured(speed, concurrency=8)]) is None
    assert Objective().score([]) is None


def test_a_bound_is_judged_by_its_worst_load_point_and_unknown_is_infinitely_bad() -> None:
    objective = Objective(subject_to=(Bound.parse("ttft_p99_ms<=500"), Bound.parse("accept_length >= 2")))
    points = [measured(1.0, ttft_p99_ms=250.0), measured(1.0, concurrency=8, ttft_p99_ms=600.0)]
    assert objective.violations(points) == [pytest.approx(0.2), math.inf]


@pytest.mark.parametrize("text", ["ttft_p99_ms < 500", "ttft_p99_ms <= fast", "speed <= 5", "", "ttft_p99_ms <= 1 ms"])
def test_a_bound_that_cannot_be_read_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"form METRIC <= NUMBER|is no metric|could not convert"):
        Bound.parse(text)


def test_an_objective_survives_being_written_down() -> None:
    objective = Objective("ttft_p99_ms", ("chat@1",), "min", (Bound.parse("accept_length >= 1.5"),))
    assert Objective.from_spec(objective.spec()) == objective
    with pytest.raises(ValueError, match="is no objective"):
        Objective.from_spec("{}")


def test_a_seed_point_takes_what_is_left_of_a_knob_that_it_leaves_out() -> None:
    """On GPUs where a default was seen to change nothing and closed, points given without that knob still run."""
    space = SearchSpace(
        (*SPACE.parameters[:2], ChoiceParameter("custom_all_reduce", (True, False))), rules=OnByDefault()
    )
    plain = {"custom_all_reduce": True, "speculative_algorithm": "none"}
    seen = replace(row(0, plain, kind=TrialKind.BASELINE), lesson="not custom_all_reduce")
    given: Point = {"num_steps": 2, "speculative_algorithm": "EAGLE3"}
    seeded = Study(space, Objective(), Budget(), Listed(), (given,))
    assert launched(seeded.next_action([seen], [])).point == {**given, "custom_all_reduce": False}
    by_hand = Study(space, Objective(), Budget(), Listed(), ({**given, "custom_all_reduce": True},))
    assert isinstance(by_hand.next_action([seen], []), Reject)


class OnByDefault(NoRules):
    """An engine that uses its own kernel unless told otherwise."""

    def default(self, name: str) -> Value | None:
        return True if name == "custom_all_reduce" else None


def test_a_baseline_that_a_default_kept_from_running_is_measured_without_it() -> None:
    """LF-07: on GPUs where SGLang's own kernel dies, plain decoding is measured with it off, and so is all the rest."""
    space = SearchSpace(
        (*SPACE.parameters[:2], ChoiceParameter("custom_all_reduce", (True, False))), rules=OnByDefault()
    )
    plain: Point = {"custom_all_reduce": True, "speculative_algorithm": "none"}
    died = replace(row(0, plain, "infeasible", kind=TrialKind.BASELINE), lesson="not custom_all_reduce")
    seeded = Study(space, Objective(), Budget(), Listed())
    again = launched(seeded.next_action([died], []))
    assert (again.number, again.kind, again.point) == (1, TrialKind.BASELINE, {**plain, "custom_all_reduce": False})
    both = [died, replace(row(1, again.point, "infeasible", kind=TrialKind.BASELINE), lesson=None)]
    assert isinstance(seeded.next_action(both, []), Done)
    pinned = Study(space, Objective(), Budget(), Listed(), (), {"custom_all_reduce": True})
    assert isinstance(pinned.next_action([died], []), Done), "what the file asks of the baseline is not replaced"
