"""What every engine must do; inherit EngineContract and give it an `engine` fixture."""

import pickle
import shlex
from pathlib import Path

import pytest

from specsearch.engines._base import Engine
from specsearch.errors import TrialError
from specsearch.launch import LaunchPlan
from specsearch.search_space import Point
from specsearch.trial import Phase

PLAIN: Point = {"cuda_graph": True, "custom_all_reduce": True, "speculative_algorithm": "none"}
TREE: Point = {
    "cuda_graph": True,
    "custom_all_reduce": True,
    "draft_model": "/drafters/own",
    "eagle_topk": 4,
    "num_draft_tokens": 16,
    "num_steps": 3,
    "speculative_algorithm": "EAGLE3",
}
CHAIN: Point = {**TREE, "eagle_topk": 1, "num_draft_tokens": 4}

LOGS_THAT_SAY_NOTHING = {
    "empty": "",
    "blank lines": "\n\n\n",
    "another program": "hello\n2026-12-01 starting up\n#running-req: many, cuda graph: perhaps\n",
    "half a line": "[2026-12-01 10:00:00] Decode bat",
    "binary": "\x00\x1b[31m\x7f\ufffd\n",
}
EXIT_CODES = (None, 0, 1, 2, -6, -7, -9, -11, -15, 137)


def plan_of(engine: Engine, point: Point, *, port: int = 31001, trial: str = "t0007-1-c0ffee") -> LaunchPlan:
    """A launch plan with everything else held fixed."""
    return engine.plan(
        point,
        port=port,
        log_path=Path("/results/logs/t0007.log"),
        tmpdir=Path("/results/tmp/t0007"),
        gpu_indices=(2, 3),
        trial=trial,
    )


class EngineContract:
    """The behaviour that the runner relies on, whatever the engine."""

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError("give the engine under test")

    def test_an_engine_says_its_name_and_whether_it_is_simulated(self, engine: Engine) -> None:
        assert engine.name
        assert isinstance(engine.is_simulated, bool)

    def test_an_engine_survives_pickling_and_plans_the_same_afterwards(self, engine: Engine) -> None:
        copy = pickle.loads(pickle.dumps(engine))
        assert plan_of(copy, TREE) == plan_of(engine, TREE)

    def test_a_plan_depends_on_its_arguments_alone(self, engine: Engine, tmp_path: Path) -> None:
        before = dict(TREE)
        assert plan_of(engine, TREE) == plan_of(engine, TREE)
        assert before == TREE, "planning changed the point"

    def test_planning_starts_and_writes_nothing(self, engine: Engine, tmp_path: Path) -> None:
        engine.plan(
            TREE, port=31001, log_path=tmp_path / "logs" / "x.log", tmpdir=tmp_path / "tmp", gpu_indices=None, trial="t"
        )
        assert list(tmp_path.iterdir()) == []

    def test_the_order_in_which_a_point_names_its_values_is_of_no_consequence(self, engine: Engine) -> None:
        backwards = dict(reversed(TREE.items()))
        assert plan_of(engine, backwards) == plan_of(engine, TREE)

    @pytest.mark.parametrize("point", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
    def test_a_shell_reads_the_printed_line_as_the_plan(self, engine: Engine, point: Point) -> None:
        plan = plan_of(engine, {**point, "env.ODD_VALUE": "two words, a 'quote' and $HOME"})
        words = shlex.split(plan.shell())
        assert tuple(words[-len(plan.argv) :]) == plan.argv
        assignments = dict(word.split("=", 1) for word in words[: -len(plan.argv)] if "=" in word)
        assert assignments == dict(plan.env)

    @pytest.mark.parametrize("point", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
    def test_every_word_of_a_plan_is_text(self, engine: Engine, point: Point) -> None:
        plan = plan_of(engine, point)
        assert all(isinstance(word, str) for word in plan.argv)
        assert all(isinstance(value, str) for value in plan.env.values())

    def test_plain_decoding_is_launched_without_any_speculative_flag(self, engine: Engine) -> None:
        plan = plan_of(engine, PLAIN)
        assert [word for word in plan.argv if word.startswith("--speculative")] == []

    def test_speculation_is_launched_with_its_algorithm_drafter_and_whole_triple(self, engine: Engine) -> None:
        argv = plan_of(engine, TREE).argv
        assert flag(argv, "--speculative-algorithm") == "EAGLE3"
        assert flag(argv, "--speculative-draft-model-path") == "/drafters/own"
        assert flag(argv, "--speculative-num-steps") == "3"
        assert flag(argv, "--speculative-eagle-topk") == "4"
        assert flag(argv, "--speculative-num-draft-tokens") == "16"

    def test_a_set_variable_reaches_the_server_and_an_unset_one_does_not(self, engine: Engine) -> None:
        plan = plan_of(
            engine, {**PLAIN, "env.NCCL_PROTO": "LL", "env.NCCL_ALGO": "unset", "env.MALLOC_ARENA_MAX": "unset"}
        )
        inherited = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "MALLOC_ARENA_MAX": "2", "PATH": "/bin"}
        environment = plan.environment(inherited)
        assert environment["NCCL_PROTO"] == "LL"
        assert "NCCL_ALGO" not in environment
        assert "MALLOC_ARENA_MAX" not in environment
        assert environment["PATH"] == "/bin"

    def test_the_server_sees_the_claimed_gpus_only(self, engine: Engine) -> None:
        assert plan_of(engine, PLAIN).env["CUDA_VISIBLE_DEVICES"] == "2,3"

    def test_the_server_keeps_its_temporary_files_in_the_folder_of_the_trial(self, engine: Engine) -> None:
        assert plan_of(engine, PLAIN).env["TMPDIR"] == "/results/tmp/t0007"

    def test_the_port_is_the_one_that_was_given(self, engine: Engine) -> None:
        plan = plan_of(engine, PLAIN, port=31999)
        assert flag(plan.argv, "--port") == "31999"
        assert plan.base_url == "http://127.0.0.1:31999"

    def test_two_trials_of_the_same_point_are_told_apart_by_their_token(self, engine: Engine) -> None:
        assert plan_of(engine, PLAIN, trial="a") != plan_of(engine, PLAIN, trial="b")

    def test_a_chain_has_as_many_draft_tokens_as_steps_and_one(self, engine: Engine) -> None:
        """SM-02"""
        partial = {"speculative_algorithm": "EAGLE3", "num_steps": 5, "eagle_topk": 1}
        assert engine.rules.derived("num_draft_tokens", partial) == 6

    def test_a_tree_too_small_for_its_draft_tokens_is_refused_and_the_origin_story_is_not(self, engine: Engine) -> None:
        """LF-02"""
        assert engine.rules.problems({**TREE, "num_steps": 1, "eagle_topk": 2, "num_draft_tokens": 16})
        assert not engine.rules.problems(TREE)

    @pytest.mark.parametrize("text", LOGS_THAT_SAY_NOTHING.values(), ids=LOGS_THAT_SAY_NOTHING.keys())
    def test_a_log_that_says_nothing_yields_no_numbers(self, engine: Engine, text: str) -> None:
        """ME-09: never zeros for what is not there."""
        facts = engine.read_log(text)
        assert not facts.ready
        assert facts.decode_lines == facts.decode_lines_that_tell == facts.decode_lines_in_graph == 0
        assert facts.graph_capture_s is None

    @pytest.mark.parametrize("phase", Phase)
    @pytest.mark.parametrize("exit_code", EXIT_CODES)
    def test_every_end_has_a_reason(self, engine: Engine, exit_code: int | None, phase: Phase) -> None:
        for text in LOGS_THAT_SAY_NOTHING.values():
            error = engine.failure(text, exit_code=exit_code, phase=phase)
            assert isinstance(error, TrialError)
            assert error.reason
            assert " " not in error.reason, "a reason is one machine-readable word"
            assert str(error)


def flag(argv: tuple[str, ...], name: str) -> str | None:
    """The word after a flag; None where the flag is not given."""
    return argv[argv.index(name) + 1] if name in argv else None
