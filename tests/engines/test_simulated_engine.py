"""The simulated engine as the rest of specsearch meets it: the contract, its fitness, and one real launch."""

import dataclasses
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from specsearch.config import EngineConfig, SimulatedHardware
from specsearch.engines import make_engine
from specsearch.engines._base import Engine
from specsearch.engines.simulated import SimulatedEngine
from specsearch.launch import LaunchPlan
from specsearch.search_space import ChoiceParameter, Parameter, SearchSpace, Value
from specsearch.trial import Phase
from tests.engines.contract import CHAIN, PLAIN, TREE, EngineContract, plan_of
from tests.engines.simulated_launch import ROOT, free_port

TINY = SimulatedHardware(target="tiny", time_scale=0.0, noise=0.0)
CONFIG = EngineConfig(type="simulated", model="/models/not-there", tp_size=2, simulated=TINY)


def space(*parameters: Parameter) -> SearchSpace:
    algorithm = ChoiceParameter("speculative_algorithm", ("none", "EAGLE3"))
    return SearchSpace((algorithm, *parameters))


def errors(hardware: Mapping[str, object], *parameters: Parameter, args: Mapping[str, Value] | None = None) -> str:
    simulated = dataclasses.replace(TINY, **hardware)  # type: ignore[arg-type]
    config = dataclasses.replace(CONFIG, simulated=simulated, args=args or {})
    return "\n".join(SimulatedEngine(config).fitness(space(*parameters), (), dry_run=False).errors)


class TestContract(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return SimulatedEngine(CONFIG)


class TestFitness:
    def test_a_model_need_not_exist_and_a_good_space_has_nothing_wrong(self) -> None:
        drafters = ChoiceParameter(
            "draft_model", ("./drafters/eagle3", "./drafters/weak"), {"speculative_algorithm": ("EAGLE3",)}
        )
        graphs = ChoiceParameter("cuda_graph", (True, False))
        inert = ChoiceParameter("num_continuous_decode_steps", (1, 4))
        fitness = SimulatedEngine(CONFIG).fitness(space(drafters, graphs, inert), (), dry_run=False)
        assert fitness.errors == ()
        assert fitness.warnings == ()
        assert "num_continuous_decode_steps" in fitness.inert, "SM-03"

    def test_a_machine_that_cannot_be_simulated_is_named_with_those_that_can(self) -> None:
        found = errors({"gpu": "abacus", "target": "gpt-9", "drafter": "seer", "time_scale": -1.0})
        for words in (
            "engine.simulated.gpu: 'abacus'",
            "rtx-pro-6000",
            "target: 'gpt-9'",
            "drafter: 'seer'",
            "cannot be negative",
        ):
            assert words in found

    def test_a_fault_that_does_not_exist_is_an_error(self) -> None:
        assert "no kind 'gremlins'" in errors({"faults": ({"kind": "gremlins"},)})

    def test_an_algorithm_that_is_not_simulated_is_an_error(self) -> None:
        config_space = SearchSpace((ChoiceParameter("speculative_algorithm", ("none", "DFLASH")),))
        assert "DFLASH is not simulated" in SimulatedEngine(CONFIG).fitness(config_space, (), dry_run=False).errors[0]

    def test_a_flag_that_the_simulated_version_lacks_is_an_error_with_the_nearest_spelling(self) -> None:
        """LF-06"""
        assert "no flag --atention-backend; the nearest it has is --attention-backend" in errors(
            {}, ChoiceParameter("atention_backend", ("triton",))
        )
        assert "no flag --page-sizes" in errors({}, args={"page_sizes": 1})


class TestPlan:
    def test_the_engine_is_made_by_its_name_and_says_that_it_is_simulated(self) -> None:
        engine = make_engine(CONFIG)
        assert (engine.name, engine.is_simulated, engine.version()) == ("simulated", True, "0.5.23")

    def test_the_launch_is_sglangs_but_for_the_program_and_the_machine(self) -> None:
        real = plan_of(make_engine(dataclasses.replace(CONFIG, type="sglang", version="0.5.23")), TREE)
        simulated = plan_of(SimulatedEngine(CONFIG), TREE)
        assert simulated.argv[2] == "specsearch.engines.simulated.server"
        assert simulated.argv[3:] == real.argv[3:]
        assert dict(simulated.env) == dict(real.env) | {"SPECSEARCH_SIMULATED": simulated.env["SPECSEARCH_SIMULATED"]}

    def test_faults_travel_with_the_launch(self) -> None:
        hardware = dataclasses.replace(TINY, faults=({"kind": "oom_kv", "when": {"num_steps": [3]}},))
        plan = plan_of(SimulatedEngine(dataclasses.replace(CONFIG, simulated=hardware)), PLAIN)
        assert '"faults":[{"kind":"oom_kv","when":{"num_steps":[3]}}]' in plan.env["SPECSEARCH_SIMULATED"]


class Launched:
    """A plan that was started, with its log."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        environment = plan.environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)})
        with plan.log_path.open("wb") as log:
            self.process = subprocess.Popen(plan.argv, stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def log(self) -> str:
        return self.plan.log_path.read_text()


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """One tree that is started as a trial would start it."""
    folder = tmp_path_factory.mktemp("trial")
    plan = SimulatedEngine(CONFIG).plan(
        TREE, port=free_port(), log_path=folder / "log", tmpdir=folder, gpu_indices=(0, 1), trial="t0003-1-abc"
    )
    server = Launched(plan)
    yield server
    server.process.kill()
    server.process.wait()


class TestARealLaunch:
    @pytest.fixture(autouse=True)
    def _is_ready(self, launched: Launched) -> None:
        deadline = time.monotonic() + 30
        while not SimulatedEngine(CONFIG).read_log(launched.log).ready:
            assert launched.process.poll() is None, launched.log
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_the_driver_of_sglang_finds_it_healthy_generating_and_ours(self, launched: Launched) -> None:
        server = SimulatedEngine(CONFIG).server(launched.plan)
        assert server.is_healthy(5)
        assert server.generates(5)
        assert server.is_ours()
        assert server.flush_cache()

    def test_a_server_of_another_trial_is_not_ours(self, launched: Launched) -> None:
        """ME-01"""
        argv = tuple("t0004-1-def" if word == "t0003-1-abc" else word for word in launched.plan.argv)
        assert not SimulatedEngine(CONFIG).server(dataclasses.replace(launched.plan, argv=argv)).is_ours()

    def test_it_runs_what_was_asked_and_says_what_it_does_not(self, launched: Launched) -> None:
        server = SimulatedEngine(CONFIG).server(launched.plan)
        identity = server.identity(TREE)
        assert identity
        assert identity.version == "0.5.23"
        assert identity.overridden == ()
        assert identity.settings["speculative_num_draft_tokens"] == "16"
        other = server.identity({**CHAIN, "num_draft_tokens": 9})
        assert other
        assert "num_draft_tokens: asked 9, runs 16" in other.overridden

    def test_log_and_counters_prove_that_graphs_are_used(self, launched: Launched) -> None:
        engine = SimulatedEngine(CONFIG)
        server = engine.server(launched.plan)
        assert server.generates(5)
        passes = server.decode_passes()
        assert passes
        assert passes[0] > 0
        assert passes[1] == 0
        assert engine.read_log(launched.log).graph_capture_s


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("oom_load", "oom_alloc"),
        ("oom_kv", "oom_kv_budget"),
        ("oom_graph", "graph_capture_oom"),
        ("graphs_refused", "graph_capture_failed"),
    ],
)
def test_the_driver_of_sglang_tells_the_faults_apart(tmp_path: Path, kind: str, reason: str) -> None:
    """LF-01, LF-03: the log of a simulated failure is classified like a real one."""
    hardware = dataclasses.replace(TINY, faults=({"kind": kind},))
    engine = SimulatedEngine(dataclasses.replace(CONFIG, simulated=hardware))
    plan = engine.plan(PLAIN, port=free_port(), log_path=tmp_path / "log", tmpdir=tmp_path, gpu_indices=None, trial="t")
    server = Launched(plan)
    exit_code = server.process.wait(30)
    assert exit_code == -9
    assert engine.failure(server.log, exit_code=exit_code, phase=Phase.READY).reason == reason
