"""One live trial on the simulated engine: real server processes, simulated GPUs."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Timer
from uuid import uuid4

import pytest

from specsearch.clock import SystemClock
from specsearch.config import EngineConfig, Limits, SimulatedHardware, StudyConfig
from specsearch.runners.server import run_trial
from specsearch.runners.workplace import Workplace, gpus_of
from specsearch.search_space import ChoiceParameter, IntParameter, Point, SearchSpace
from specsearch.trial import Phase, Progress, StopFlag, TrialKind, TrialRequest, TrialResult, TrialStatus
from specsearch.workload import LoadPoint, Workload

PROMPTS = tuple(
    f"{subject} asks you to explain how {thing} works, in a few plain sentences for a curious reader"
    for subject, thing in (("A farmer", "a plough"), ("A sailor", "a sextant"), ("A cook", "an oven"))
)
EAGLE3: Point = {
    "speculative_algorithm": "EAGLE3",
    "draft_model": "/drafters/eagle3",
    "num_steps": 3,
    "eagle_topk": 2,
    "num_draft_tokens": 6,
    "cuda_graph": True,
}
PLAIN: Point = {"speculative_algorithm": "none", "cuda_graph": True}
LIMITS = Limits(start_s=30, silence_s=4, request_s=4, stall_s=3, stop_s=5, release_s=1.5)


def place(tmp_path: Path, *, faults: Sequence[Mapping[str, object]] = (), gpus: int = 2) -> Workplace:
    """A workplace on a fast simulated machine."""
    hardware = SimulatedHardware(target="tiny", time_scale=0.002, faults=tuple(faults))
    engine = EngineConfig(type="simulated", model="tiny", tp_size=gpus, simulated=hardware)
    space = SearchSpace((ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")), IntParameter("num_steps", 1, 3)))
    load_point = LoadPoint(Workload("small", PROMPTS), concurrency=2, output_tokens=48, requests=4, repeats=2)
    config = StudyConfig(
        name="test", source=tmp_path, engine=engine, space=space, load_points=(load_point,), limits=LIMITS
    )
    return Workplace(config, tmp_path / "logs", tuple(range(gpus)))


def run(
    workplace: Workplace, point: Point = EAGLE3, *, stop: StopFlag | None = None, known: Mapping[str, int] | None = None
) -> TrialResult:
    """One attempt, as the study's first trial."""
    request = TrialRequest(number=0, attempt=1, kind=TrialKind.SEED, point=point, known_effective=known or {})
    said: list[Progress] = []
    return run_trial(request, workplace, clock=SystemClock(), stop=stop or StopFlag(), on_progress=said.append)


MARK = "TEST_OF_THE_RUNNER"  # inherited by every server that is started here


def marked_processes(mark: str) -> set[int]:
    """Every process of this machine that inherited the mark, this one left out."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found - {os.getpid()}


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every trial here, whatever goes wrong in it, leaves no process behind."""
    mark = uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    assert not marked_processes(mark)


def test_a_good_trial_knows_its_numbers_its_phases_and_its_server(tmp_path: Path) -> None:
    result = run(place(tmp_path))
    assert (result.status, result.reason) == (TrialStatus.OK, None), result.message
    assert [m.repeat for m in result.measurements] == [0, 1]
    for measurement in result.measurements:
        assert measurement.values["output_tokens"] == 4 * 48
        assert measurement.values["requests_failed"] == 0
        assert measurement.values["cuda_graph_share"] == 1
        assert measurement.accept_source == "requests"
        assert measurement.values["accept_length"] > 1.2
    assert list(result.phase_s) == [phase.value for phase in Phase]
    assert sum(result.phase_s.values()) == pytest.approx(result.ended_at - result.started_at, abs=0.5)
    assert result.effective_key
    assert result.effective["speculative_num_steps"] == "3"
    assert result.facts["gpu_memory_used_bytes"] > 0
    assert result.gpu_count == 2
    assert result.gpu_seconds > 0
    assert "--speculative-num-steps 3" in result.command
    assert all(gpu.used_bytes == 0 for gpu in gpus_of(place(tmp_path)).read())
    assert Path(result.log_path).read_text().count("The server is fired up") == 1


def test_plain_decoding_has_no_accept_length_and_never_zero_or_one_in_its_place(tmp_path: Path) -> None:
    """ME-02: what is not there is null."""
    result = run(place(tmp_path), PLAIN)
    assert result.status == TrialStatus.OK, result.message
    assert {m.values["accept_length"] for m in result.measurements} == {None}
    assert {m.accept_source for m in result.measurements} == {"none"}


OUTCOMES = [
    ({"kind": "never_ready"}, "failed", "nccl_hang"),
    ({"kind": "never_ready", "where": "weights"}, "failed", "startup_hang"),
    ({"kind": "dies_loading"}, "failed", "unknown"),
    ({"kind": "oom_graph"}, "infeasible", "graph_capture_oom"),
    ({"kind": "oom_load"}, "infeasible", "oom_alloc"),
    ({"kind": "oom_kv"}, "infeasible", "oom_kv_budget"),
    ({"kind": "graphs_refused"}, "infeasible", "graph_capture_failed"),
    ({"kind": "port_taken"}, "failed", "port_taken"),
    ({"kind": "wrong_identity"}, "failed", "wrong_server"),
    ({"kind": "health_but_no_generation"}, "failed", "hang_at_readiness"),
    ({"kind": "health_but_no_generation", "after_requests": 6}, "failed", "hang_after_ready"),
    ({"kind": "dies_under_load", "after_requests": 6}, "failed", "runtime_crash"),
    ({"kind": "child_dies", "after_requests": 6}, "failed", "child_crashed"),
    ({"kind": "graphs_ignored"}, "invalid", "graphs_not_active"),
    ({"kind": "degenerate_output"}, "invalid", "degenerate_output"),
    ({"kind": "request_failures", "share": 0.5}, "invalid", "request_failures"),
]


@pytest.mark.parametrize(("fault", "status", "reason"), OUTCOMES, ids=lambda value: str(value)[:40])
def test_what_goes_wrong_gets_its_own_status_and_reason(
    tmp_path: Path, fault: dict[str, object], status: str, reason: str
) -> None:
    """LF-01, LF-03, LF-09, LF-12, LF-18, ME-01, ME-04, ME-06, ME-11, RC-03, SM-06: one row each, nothing ranked."""
    result = run(place(tmp_path, faults=[fault]))
    assert (result.status.value, result.reason) == (status, reason), (result.message, result.detail)
    assert result.message
    assert result.phase is not None
    assert result.node_unfit is None


def test_the_first_decisive_line_of_a_crash_is_kept(tmp_path: Path) -> None:
    """LF-18: half of the requests succeed, and the trial is a crash all the same."""
    result = run(place(tmp_path, faults=[{"kind": "dies_under_load", "after_requests": 6}]))
    assert result.detail
    assert "error" in result.detail.lower()
    assert result.exit_code not in (None, 0)


def test_an_inert_knob_that_is_searched_by_force_tells_trials_apart(tmp_path: Path) -> None:
    """SM-03: the server runs the same whatever its value, and the user has asked to see that."""
    knob = "num_continuous_decode_steps"
    workplace = place(tmp_path)
    forced = replace(workplace, config=replace(workplace.config, force_inert=(knob,)))
    first = run(forced, {**PLAIN, knob: 1})
    known = {first.effective_key or "": 0}
    assert run(forced, {**PLAIN, knob: 4}, known=known).status == TrialStatus.OK
    assert run(forced, {**PLAIN, knob: 1}, known=known).status == TrialStatus.SKIPPED_DUPLICATE
    assert f"{knob} is inert: the engine ignores it, and it was searched by force" in first.warnings


def test_a_busy_gpu_stops_the_launch_and_is_named(tmp_path: Path) -> None:
    """RC-01, RC-12: nothing is launched beside a stranger, and the stranger is left alone."""
    workplace = place(tmp_path)
    folder = workplace.simulated_gpus_dir / "gpu1"
    folder.mkdir(parents=True)
    claim = {"bytes": 5 * 2**30, "command": "somebody's training", "start_time": _start_time(os.getpid())}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(claim))
    result = run(workplace)
    assert (result.status, result.reason, result.phase) == (TrialStatus.FAILED, "gpu_not_free", Phase.GPUS_FREE)
    assert "GPU 1" in result.message
    assert "5 GiB" in result.message
    assert result.command is None
    assert not list((tmp_path / "logs").glob("*"))


def test_memory_that_does_not_come_back_keeps_the_measurement_and_takes_the_node_out(tmp_path: Path) -> None:
    """RC-01: the finished measurement stands; the node takes no more trials."""
    result = run(place(tmp_path, faults=[{"kind": "memory_kept", "release_after_s": "never"}]))
    assert result.status == TrialStatus.OK
    assert result.measurements
    assert result.node_unfit
    assert "GPU" in result.node_unfit


def test_memory_that_comes_back_late_is_waited_for_and_the_wait_is_stored(tmp_path: Path) -> None:
    """RC-01: the next launch has to wait as long as it takes, within the limit."""
    result = run(place(tmp_path, faults=[{"kind": "memory_kept", "release_after_s": 0.8}]))
    assert result.status == TrialStatus.OK
    assert result.node_unfit is None
    assert result.facts["gpu_release_s"] >= 0.5


def test_a_server_that_ignores_sigterm_is_gone_all_the_same(tmp_path: Path) -> None:
    """RC-02: schedulers that leave for another session and obey nobody end with their trial."""
    workplace = place(tmp_path, faults=[{"kind": "ignores_sigterm"}])
    config = replace(workplace.config, limits=replace(LIMITS, stop_s=0.5))
    result = run(replace(workplace, config=config))
    assert result.status == TrialStatus.OK, result.message


def test_an_effective_configuration_that_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """SM-02, SR-03: equal only after the server resolved it."""
    first = run(place(tmp_path / "a"))
    again = run(place(tmp_path / "b"), known={first.effective_key: 7})
    assert (again.status, again.reason) == (TrialStatus.SKIPPED_DUPLICATE, "same_effective_configuration")
    assert "t0007" in again.message
    assert not again.measurements


@pytest.mark.parametrize("hard", [False, True])
def test_a_stop_ends_the_trial_with_a_row_and_takes_the_server_down(tmp_path: Path, hard: bool) -> None:
    workplace = place(tmp_path, faults=[{"kind": "slow_start", "seconds": 20, "interval_s": 0.2}])
    stop = StopFlag()

    def set_stop() -> None:
        stop.hard = hard
        stop.reason = "user"

    Timer(0.7, set_stop).start()
    began = time.monotonic()
    result = run(workplace, stop=stop)
    assert (result.status, result.reason) == (TrialStatus.ABORTED, "user")
    assert time.monotonic() - began < 10


def test_a_slow_start_is_not_a_hang(tmp_path: Path) -> None:
    """LF-16: as long as new lines appear the server is waited for, beyond the limit for silence."""
    workplace = place(tmp_path, faults=[{"kind": "slow_start", "seconds": 3, "interval_s": 0.3}])
    config = replace(workplace.config, limits=replace(LIMITS, silence_s=1.5))
    result = run(replace(workplace, config=config))
    assert result.status == TrialStatus.OK, result.message
    assert result.facts["startup_s"] > 3


def test_two_trials_share_neither_port_nor_log_nor_token(tmp_path: Path) -> None:
    workplace = place(tmp_path)
    words = [set(run(workplace, PLAIN).command.split()) for _ in range(2)]
    assert len(words[0] - words[1]) >= 3  # port, token, temporary folder


def _start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
