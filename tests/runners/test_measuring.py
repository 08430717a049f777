"""What a trial learns from its server beside its requests: real server processes, simulated GPUs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch.clock import SystemClock
from specsearch.config import EngineConfig, Limits, SimulatedHardware, StudyConfig
from specsearch.runners.server import run_trial
from specsearch.runners.workplace import Workplace
from specsearch.search_space import ChoiceParameter, Point, SearchSpace, Value
from specsearch.trial import StopFlag, TrialKind, TrialRequest, TrialResult, TrialStatus
from specsearch.workload import LoadPoint, Workload

PROMPTS = tuple(
    f"{subject} asks you to explain how {thing} works, in a few plain sentences for a curious reader"
    for subject, thing in (("A farmer", "a plough"), ("A sailor", "a sextant"), ("A cook", "an oven"))
)
PLAIN: Point = {"speculative_algorithm": "none"}
CHAIN: Point = {"speculative_algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1}
LIMITS = Limits(start_s=30, silence_s=10, request_s=20, stall_s=10, stop_s=5, release_s=5)


def place(
    folder: Path,
    *,
    faults: Sequence[Mapping[str, object]] = (),
    args: Mapping[str, Value] | None = None,
    env: Mapping[str, str] | None = None,
    load_points: Sequence[LoadPoint] = (),
    **hardware: object,
) -> Workplace:
    """A workplace of two simulated GPUs; one load point at concurrency 2, unless others are given."""
    simulated = SimulatedHardware(**{"target": "tiny", "time_scale": 0.002, **hardware, "faults": tuple(faults)})
    engine = EngineConfig(
        type="simulated", model="tiny", tp_size=2, args=args or {}, env=env or {}, simulated=simulated
    )
    space = SearchSpace((ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")),))
    points = tuple(load_points) or (load(2),)
    config = StudyConfig(name="t", source=folder, engine=engine, space=space, load_points=points, limits=LIMITS)
    return Workplace(config, folder / "logs", (0, 1))


def load(concurrency: int, *, tokens: int = 120, requests: int = 4, name: str = "small") -> LoadPoint:
    return LoadPoint(Workload(name, PROMPTS), concurrency, output_tokens=tokens, requests=requests, repeats=2)


def run(workplace: Workplace, point: Point, known: Mapping[str, int] | None = None) -> TrialResult:
    request = TrialRequest(number=0, attempt=1, kind=TrialKind.SEED, point=point, known_effective=known or {})
    return run_trial(request, workplace, clock=SystemClock(), stop=StopFlag(), on_progress=lambda progress: None)


def told(result: TrialResult, words: str) -> list[str]:
    return [warning for warning in result.warnings if words in warning]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """One sound trial of a chain."""
    return run(place(tmp_path_factory.mktemp("good")), CHAIN)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """Plain decoding with the decode graphs pinned off."""
    return run(place(tmp_path_factory.mktemp("eager"), args={"disable_decode_cuda_graph": True}), PLAIN)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """A chain whose log cannot be read, whose drafter has no graphs and whose server falls silent about itself."""
    after = 1 + 4 + 2 * 4  # the first generation, the warm-up, both repeats
    faults = [
        {"kind": "odd_log"},
        {"kind": "draft_graph_missing"},
        {"kind": "bad_server_info", "variant": "html", "after_requests": after},
    ]
    return run(place(tmp_path_factory.mktemp("odd"), faults=faults), CHAIN)


def test_every_trial_is_launched_with_the_options_that_help_measuring(good: TrialResult, eager: TrialResult) -> None:
    for result in (good, eager):
        assert result.command
        assert "SGLANG_RECORD_STEP_TIME=1" in result.command
        for flag in ("--enable-metrics", "--incremental-streaming-output"):
            assert flag in result.command


def test_the_command_to_serve_with_keeps_none_that_a_client_or_a_disk_would_notice(good: TrialResult) -> None:
    assert good.serve_command
    for option in ("SGLANG_RECORD_STEP_TIME", "--incremental-streaming-output"):
        assert option not in good.serve_command


def test_a_search_space_file_has_the_last_word_on_them(tmp_path: Path) -> None:
    args: Mapping[str, Value] = {
        "decode_log_interval": 3,
        "incremental_streaming_output": False,
        "enable_metrics": False,
    }
    result = run(place(tmp_path, args=args, env={"SGLANG_RECORD_STEP_TIME": "0"}), CHAIN)
    assert result.status == TrialStatus.OK, result.message
    assert result.command
    assert "SGLANG_RECORD_STEP_TIME=0" in result.command
    assert "--decode-log-interval 3" in result.command
    assert "--incremental-streaming-output" not in result.command
    assert "--enable-metrics" not in result.command
    assert {m.values["server_step_time_ms"] for m in result.measurements} == {None}
    assert {m.values["degenerate_share"] for m in result.measurements} == {0}
    assert result.serve_command
    assert "--decode-log-interval 3" in result.serve_command


def test_the_servers_step_time_stands_beside_the_clients_in_every_repeat(good: TrialResult) -> None:
    assert good.status == TrialStatus.OK, good.message
    for measurement in good.measurements:
        server, client = measurement.values["server_step_time_ms"], measurement.values["step_time_ms"]
        assert server
        assert client
        assert client == pytest.approx(server, rel=0.5), "a loaded machine holds the client up"


def test_both_accept_lengths_and_the_memory_of_graphs_are_facts_of_a_sound_trial(good: TrialResult) -> None:
    """ME-02: the server's figure begins with the last flush, so it is that of the last repeat."""
    last = good.measurements[-1].values["accept_length"]
    assert good.facts["server_accept_length"] == pytest.approx(last, abs=0.3)
    assert not told(good, "accept length")
    assert good.facts["graph_memory_gb"] is not None
    assert [capture.name for capture in good.captures] == ["target verify", "draft decode", "draft extend"]
    assert not told(good, "graph")
    assert good.queue_limited is False


def test_the_environment_of_the_ranks_is_read_back(good: TrialResult) -> None:
    """SM-08: what really runs, never what was asked."""
    assert good.effective_env
    assert good.effective_env["NCCL_CUMEM_ENABLE"] == "0"
    assert good.effective_env["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_two_values_of_a_variable_that_the_server_forces_are_one_configuration(tmp_path: Path) -> None:
    """SM-08: neither is measured twice, and the difference to what was asked is listed."""
    workplace = place(tmp_path, faults=[{"kind": "variable_forced", "name": "NCCL_NVLS_ENABLE", "value": "1"}])
    first = run(workplace, {**PLAIN, "env.NCCL_NVLS_ENABLE": "0"})
    assert first.status == TrialStatus.OK, first.message
    assert first.overridden == ("env.NCCL_NVLS_ENABLE: asked 0, runs 1",)
    second = run(workplace, {**PLAIN, "env.NCCL_NVLS_ENABLE": "1"}, known={first.effective_key or "": 0})
    assert second.status == TrialStatus.SKIPPED_DUPLICATE
    other = place(tmp_path / "other")
    assert run(other, {**PLAIN, "env.NCCL_NVLS_ENABLE": "0"}).effective_key != first.effective_key


def test_more_requests_than_the_server_runs_at_once_make_the_trial_queue_limited(tmp_path: Path) -> None:
    """SM-04"""
    result = run(place(tmp_path, args={"max_running_requests": 1}), PLAIN)
    assert result.status == TrialStatus.OK, result.message
    assert result.queue_limited is True
    assert told(result, "2 requests were sent at once and 1 are run at once")


def test_a_queue_for_most_of_one_load_point_makes_the_trial_queue_limited_and_is_named(tmp_path: Path) -> None:
    """SM-04: memory for two replies is short, though two requests would be admitted; alone each runs at once."""
    points = (load(1), load(2))
    result = run(place(tmp_path, args={"max_total_tokens": 200}, load_points=points), PLAIN)
    assert result.status == TrialStatus.OK, result.message
    assert result.queue_limited is True
    assert told(result, "most of the measurement at small@2:")


def test_a_queue_in_the_warm_up_alone_limits_nothing(tmp_path: Path) -> None:
    """SM-04: the warm-up of a crowded load point must not count against another one."""
    crowded = LoadPoint(Workload("crowd", PROMPTS), 12, output_tokens=300, requests=1, repeats=1)
    result = run(place(tmp_path, args={"max_total_tokens": 400}, load_points=(crowded,)), PLAIN)
    assert result.status == TrialStatus.OK, result.message
    assert re.search(r"Decode batch.*#queue-req: [1-9]", Path(result.log_path or "").read_text())
    assert result.queue_limited is False


def test_a_log_that_cannot_be_read_leaves_the_queue_unknown_and_is_said(odd: TrialResult) -> None:
    """ME-09: never zero for what is not there."""
    assert odd.status == TrialStatus.OK, odd.message
    assert odd.queue_limited is None
    assert len(told(odd, "no decode line that can be read")) == 1
    assert {m.values["cuda_graph_share"] for m in odd.measurements} == {1}, "the counters know it all the same"


def test_a_drafter_without_graphs_of_its_own_is_said(odd: TrialResult) -> None:
    assert told(odd, "the drafter's own passes run without a graph")


def test_decode_graphs_that_are_pinned_off_are_not_missed(eager: TrialResult) -> None:
    """SM-06: nobody asked for them."""
    assert eager.status == TrialStatus.OK, eager.message
    assert not told(eager, "graph")


def test_a_server_that_no_longer_describes_itself_keeps_its_measurement(odd: TrialResult) -> None:
    """ME-03: who it is was established before."""
    assert (odd.status, odd.reason) == (TrialStatus.OK, None), odd.message
    assert odd.effective_key
    assert odd.facts["server_accept_length"] is None
    assert len(told(odd, "does not any more")) == 1
    assert all(m.values["accept_length"] for m in odd.measurements)


@pytest.mark.parametrize("variant", ["html", "missing"])
def test_a_server_that_never_describes_itself_is_not_measured(tmp_path: Path, variant: str) -> None:
    """ME-03, ME-01: without a description nobody knows whose server it is."""
    result = run(place(tmp_path, faults=[{"kind": "bad_server_info", "variant": variant}]), CHAIN)
    assert (result.status, result.reason) == (TrialStatus.FAILED, "wrong_server")
    assert not result.measurements


def test_a_description_without_internal_states_costs_only_what_stands_in_them(tmp_path: Path) -> None:
    """ME-02, ME-03: null, and no other trial's figure in its place."""
    faults = [{"kind": "bad_server_info", "variant": "no_internal_states"}]
    result = run(place(tmp_path, faults=faults), CHAIN)
    assert result.status == TrialStatus.OK, result.message
    assert result.facts["server_accept_length"] is None
    assert {m.values["server_step_time_ms"] for m in result.measurements} == {None}
    assert all(m.values["accept_length"] for m in result.measurements)


def test_requests_beyond_the_drafters_own_context_are_told_apart(tmp_path: Path) -> None:
    """LF-14: the same prompts, short and long replies."""
    points = (load(1, tokens=100, requests=2, name="short"), load(1, tokens=400, requests=2, name="long"))
    workplace = place(
        tmp_path,
        drafter="short-context",
        env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
        load_points=points,
    )
    result = run(workplace, CHAIN)
    assert result.status == TrialStatus.OK, result.message
    assert result.draft_context_overridden
    by_point = {m.load_point: m.values for m in result.measurements}
    within, beyond = "accept_length_within_draft_context", "accept_length_beyond_draft_context"
    assert by_point["short@1"][beyond] is None
    assert by_point["short@1"][within] == by_point["short@1"]["accept_length"]
    assert by_point["long@1"][within] is None
    assert by_point["long@1"][beyond] == by_point["long@1"]["accept_length"]
    assert len(told(result, "beyond the 256 tokens that the drafter was made for")) == 1


def test_a_drafter_that_cannot_be_stretched_is_the_configurations_fault(tmp_path: Path) -> None:
    """LF-14"""
    result = run(place(tmp_path, drafter="short-context"), CHAIN)
    assert (result.status, result.reason) == (TrialStatus.INFEASIBLE, "draft_context_too_short")


def test_a_knob_that_changes_nothing_here_is_said_where_it_teaches_the_search(tmp_path: Path) -> None:
    """SM-03: the custom kernel is off on GPUs without NVLink, whatever is asked."""
    workplace = place(tmp_path)
    wider = replace(workplace.config.engine, tp_size=4)
    workplace = replace(workplace, config=replace(workplace.config, engine=wider), gpu_indices=(0, 1, 2, 3))
    result = run(workplace, {**PLAIN, "custom_all_reduce": True})
    assert result.status == TrialStatus.OK, result.message
    assert result.lesson == "not custom_all_reduce"
    assert len(told(result, "changes nothing on these GPUs")) == 1


@pytest.mark.parametrize(
    "point",
    [
        {"speculative_algorithm": "NGRAM"},
        {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True},
    ],
    ids=["ngram", "adaptive"],
)
def test_algorithms_without_a_fixed_tree_are_measured_like_any_other(tmp_path: Path, point: Point) -> None:
    result = run(place(tmp_path), point)
    assert result.status == TrialStatus.OK, (result.reason, result.message, result.detail)
    assert all(m.values["accept_length"] and m.values["accept_length"] > 1.1 for m in result.measurements)
    assert not told(result, "accept length of")
