"""The SGLang driver as an engine, and what it puts on the command line."""

import sys
from pathlib import Path

import pytest

from specsearch.config import EngineConfig
from specsearch.engines import ENGINES, make_engine
from specsearch.engines._base import Engine
from specsearch.engines.sglang import SGLangEngine
from specsearch.workload import LoadPoint, Workload
from tests.engines.contract import PLAIN, TREE, EngineContract, flag, plan_of

CHAT = Workload("chat", ("hello",))


def config(**changes: object) -> EngineConfig:
    return EngineConfig(**{"type": "sglang", "model": "/models/target", "python": sys.executable, **changes})


class TestSGLangEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return SGLangEngine(config(version="0.5.23"))


def test_the_registry_makes_the_engine_that_the_search_space_names() -> None:
    assert isinstance(make_engine(config(), ()), SGLangEngine)
    assert set(ENGINES) == {"sglang", "simulated"}


def test_the_origin_storys_command_comes_out_word_for_word() -> None:
    engine = SGLangEngine(
        config(
            model="/models/kimi",
            tp_size=8,
            version="0.5.23",
            args={"trust_remote_code": True, "mem_fraction_static": 0.85},
            env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
        )
    )
    plan = plan_of(engine, {**TREE, "num_continuous_decode_steps": 4, "cuda_graph": False}, port=31001, trial="7-1-ab")
    expected = (
        f"{sys.executable} -m sglang.launch_server --model-path /models/kimi --tp-size 8 "
        "--disable-cuda-graph --enable-metrics --incremental-streaming-output --max-running-requests 48 "
        "--mem-fraction-static 0.85 --num-continuous-decode-steps 4 "
        "--random-seed 1 --speculative-algorithm EAGLE3 --speculative-draft-model-path /drafters/own "
        "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --speculative-num-steps 3 --trust-remote-code "
        "--host 127.0.0.1 --port 31001 --weight-version 7-1-ab"
    )
    assert " ".join(plan.argv) == expected
    assert plan.env["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"


def test_a_command_prefix_stands_before_the_interpreter() -> None:
    plan = plan_of(SGLangEngine(config(command_prefix=("srun", "--gpus=8"))), PLAIN)
    assert plan.command()[:4] == ("srun", "--gpus=8", sys.executable, "-m")


@pytest.mark.parametrize(
    ("version", "spelling"),
    [
        ("0.5.9", "--cuda-graph-max-bs"),
        ("0.5.13.post1", "--cuda-graph-max-bs"),
        ("0.5.14", "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
        (None, "--cuda-graph-max-bs-decode"),
    ],
)
def test_the_graph_batch_is_spelled_as_the_version_wants_it(version: str | None, spelling: str) -> None:
    """LF-06: the old spelling is refused as ambiguous from 0.5.20 on."""
    point = {**PLAIN, "cuda_graph_max_bs": 32, "cuda_graph_bs": "1 2 4"}
    argv = plan_of(SGLangEngine(config(version=version)), point).argv
    assert flag(argv, spelling) == "32"
    sizes = argv.index(spelling.replace("max-bs", "bs"))
    assert argv[sizes + 1 : sizes + 4] == ("1", "2", "4")


def test_switches_are_flags_only_where_they_turn_something_off() -> None:
    engine = SGLangEngine(config())
    on = plan_of(engine, {**PLAIN, "cuda_graph": True, "custom_all_reduce": True}).argv
    off = plan_of(engine, {**PLAIN, "cuda_graph": False, "custom_all_reduce": False}).argv
    assert not {"--disable-cuda-graph", "--disable-custom-all-reduce"} & set(on)
    assert {"--disable-cuda-graph", "--disable-custom-all-reduce"} <= set(off)


def test_any_other_parameter_is_a_flag_and_false_or_unset_is_none() -> None:
    point = {**PLAIN, "attention_backend": "triton", "disable_radix_cache": True, "enable_mixed_chunk": False}
    argv = plan_of(SGLangEngine(config()), {**point, "page_size": "unset"}).argv
    assert flag(argv, "--attention-backend") == "triton"
    assert "--disable-radix-cache" in argv
    assert not {"--enable-mixed-chunk", "--page-size", "True", "False", "unset"} & set(argv)


def test_a_point_wins_over_what_is_pinned_even_by_the_flag_that_a_switch_hides_behind() -> None:
    engine = SGLangEngine(config(args={"disable_cuda_graph": True, "page_size": 16, "random_seed": 7}))
    argv = plan_of(engine, {**PLAIN, "cuda_graph": True, "page_size": 32}).argv
    assert "--disable-cuda-graph" not in argv
    assert flag(argv, "--page-size") == "32"
    assert flag(argv, "--random-seed") == "7"


def test_pinned_speculative_arguments_are_left_out_of_plain_decoding() -> None:
    engine = SGLangEngine(config(args={"speculative_draft_attention_backend": "triton", "draft_model": "/d"}))
    plain, tree = plan_of(engine, PLAIN).argv, plan_of(engine, TREE).argv
    assert not [word for word in plain if "speculative" in word or word == "/d"]
    assert flag(tree, "--speculative-draft-attention-backend") == "triton"
    assert flag(tree, "--speculative-draft-model-path") == "/drafters/own"


def test_the_draft_tokens_of_a_chain_are_given_even_where_the_space_has_none() -> None:
    """LF-21: the three values are always passed together."""
    chain = {"speculative_algorithm": "EAGLE3", "draft_model": "/d", "num_steps": 5, "eagle_topk": 1}
    assert flag(plan_of(SGLangEngine(config()), chain).argv, "--speculative-num-draft-tokens") == "6"


@pytest.mark.parametrize(("concurrency", "limit"), [(1, "48"), (64, "64")])
def test_plain_and_speculative_trials_admit_equally_many_requests(concurrency: int, limit: str) -> None:
    """SM-04: left alone, SGLang admits 48 with speculation and thousands without."""
    engine = SGLangEngine(config(), (LoadPoint(CHAT, 1), LoadPoint(CHAT, concurrency)))
    assert flag(plan_of(engine, PLAIN).argv, "--max-running-requests") == limit
    assert flag(plan_of(engine, TREE).argv, "--max-running-requests") == limit


def test_a_limit_of_the_users_own_is_kept() -> None:
    engine = SGLangEngine(config(args={"max_running_requests": 4}), (LoadPoint(CHAT, 64),))
    argv = plan_of(engine, TREE).argv
    assert flag(argv, "--max-running-requests") == "4"
    assert argv.count("--max-running-requests") == 1


def test_a_pinned_variable_can_be_unset_by_a_point() -> None:
    engine = SGLangEngine(config(env={"NCCL_PROTO": "Simple", "OMP_NUM_THREADS": "1"}))
    plan = plan_of(engine, {**PLAIN, "env.NCCL_PROTO": "unset"})
    assert "NCCL_PROTO" not in plan.environment({"NCCL_PROTO": "LL", "OMP_NUM_THREADS": "8"})
    assert plan.env["OMP_NUM_THREADS"] == "1"
    assert "-u NCCL_PROTO" in plan.shell()


def test_without_claimed_gpus_the_visible_ones_are_left_as_they_are(tmp_path: Path) -> None:
    plan = SGLangEngine(config()).plan(PLAIN, port=1, log_path=tmp_path, tmpdir=tmp_path, gpu_indices=None, trial="t")
    assert "CUDA_VISIBLE_DEVICES" not in plan.env
