"""What SGLang would fix, ignore or refuse, known before a launch."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.engines.sglang.models.checkpoint import config_path
from specsearch.engines.sglang.models.drafter import derived_context_length
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace
from tests.engines.contract import CHAIN, PLAIN, TREE

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 7168,
    "vocab_size": 163840,
    "num_hidden_layers": 61,
    "max_position_embeddings": 131072,
}
EAGLE3_HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 7168,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 131072,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
}

Model = Callable[[str, Mapping[str, object]], str]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Writes a model folder that holds a configuration only."""

    def write(name: str, config: Mapping[str, object]) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return write


def problems(rules: SGLangRules, point: Mapping[str, object], **changes: object) -> str:
    return " / ".join(rules.problems({**point, **changes}))


def test_the_trees_of_the_case_are_told_apart() -> None:
    """LF-02"""
    rules = SGLangRules("0.5.23")
    assert "16 does not fit" in problems(rules, TREE, num_steps=1, eagle_topk=2, num_draft_tokens=16)
    assert not rules.problems(TREE), "16 draft tokens are more than steps * top-k + 1 and run all the same"


def test_a_chain_collapses_to_one_point_per_number_of_steps() -> None:
    """SM-02: 6 step counts and 5 draft token counts are 6 configurations."""
    space = SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", ("EAGLE3",)),
            ChoiceParameter("draft_model", ("/d",)),
            IntParameter("num_steps", 1, 6),
            ChoiceParameter("eagle_topk", (1,)),
            ChoiceParameter("num_draft_tokens", (2, 4, 8, 16, 32)),
        ),
        rules=SGLangRules("0.5.23"),
    )
    points = space.valid_points(1000)
    assert points is not None
    assert [(point["num_steps"], point["num_draft_tokens"]) for point in points] == [(s, s + 1) for s in range(1, 7)]


def test_a_pinned_top_k_of_one_fixes_the_draft_tokens_as_well() -> None:
    rules = SGLangRules(args={"eagle_topk": 1})
    assert rules.derived("num_draft_tokens", {"speculative_algorithm": "EAGLE", "num_steps": 3}) == 4
    assert rules.derived("num_draft_tokens", {"speculative_algorithm": "NGRAM", "num_steps": 3}) is None


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"num_draft_tokens": 8}, "num_steps, eagle_topk missing"),
        ({"num_steps": 3}, "eagle_topk, num_draft_tokens missing"),
        ({"eagle_topk": 4, "num_steps": 3}, "num_draft_tokens missing"),
    ],
)
def test_a_part_of_the_triple_is_refused_with_what_is_missing(given: Mapping[str, object], missing: str) -> None:
    """LF-21"""
    point = {"speculative_algorithm": "EAGLE3", "draft_model": "/d", **given}
    assert missing in problems(SGLangRules("0.5.23"), point)


def test_the_whole_triple_may_be_left_to_sglang() -> None:
    assert not SGLangRules("0.5.23").problems({"speculative_algorithm": "EAGLE3", "draft_model": "/d"})


@pytest.mark.parametrize("algorithm", ["EAGLE3", "eagle3", "STANDALONE"])
def test_an_algorithm_that_drafts_with_a_model_needs_one(algorithm: str) -> None:
    """LF-13"""
    point = {name: value for name, value in TREE.items() if name != "draft_model"}
    assert "needs a draft_model" in problems(SGLangRules("0.5.23"), point, speculative_algorithm=algorithm)


def test_a_target_that_bundles_its_drafter_needs_no_other_for_eagle(model: Model) -> None:
    """LF-13"""
    point = {name: value for name, value in TREE.items() if name != "draft_model"} | {"speculative_algorithm": "EAGLE"}
    bundled = model("deepseek", {**TARGET, "architectures": ["DeepseekV3ForCausalLM"]})
    plain = model("qwen", {**TARGET, "architectures": ["Qwen2ForCausalLM"]})
    assert not SGLangRules("0.5.23", model=bundled).problems(point)
    assert "needs a draft_model" in problems(SGLangRules("0.5.23", model=plain), point)


def test_trtllm_mha_verifies_no_tree() -> None:
    """LF-05"""
    rules = SGLangRules("0.5.23", args={"decode_attention_backend": "trtllm_mha"})
    assert "trtllm_mha" in problems(rules, TREE)
    assert not rules.problems(CHAIN)
    assert not rules.problems(PLAIN)


@pytest.mark.parametrize(
    ("version", "backend", "runs"),
    [
        ("0.5.23", "triton", True),
        ("0.5.23", "flashinfer", True),
        ("0.5.23", "flashmla", False),
        ("0.5.9", "triton", False),
        ("0.5.9", "fa3", True),
    ],
)
def test_a_tree_with_large_pages_needs_a_backend_that_has_it(version: str, backend: str, runs: bool) -> None:
    """LF-05"""
    rules = SGLangRules(version, args={"page_size": 64})
    assert (not rules.problems({**TREE, "attention_backend": backend})) is runs
    assert not rules.problems({**CHAIN, "attention_backend": backend})
    makes_its_own_pages = backend == "flashmla"
    assert bool(rules.problems({**TREE, "attention_backend": backend, "page_size": 1})) is makes_its_own_pages


def test_early_versions_verify_chains_only_with_the_second_worker() -> None:
    second_worker = {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert "chains only" in problems(SGLangRules("0.5.10.post1", env=second_worker), TREE)
    assert not SGLangRules("0.5.23", env=second_worker).problems(TREE)


def test_an_eagle3_head_is_refused_under_the_name_eagle_with_the_one_word_fix(model: Model) -> None:
    """SM-01: the configuration of the case."""
    drafter = model(
        "draft", {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 7168, "draft_vocab_size": 32000}
    )
    rules = SGLangRules("0.5.23", model=model("target", TARGET))
    found = problems(rules, TREE, draft_model=drafter, speculative_algorithm="EAGLE")
    assert "EAGLE-3 head" in found
    assert found.endswith("use EAGLE3")


def test_a_head_without_a_telling_name_is_known_by_its_keys(model: Model) -> None:
    """SM-01"""
    nameless = {**EAGLE3_HEAD, "architectures": ["LlamaForCausalLM"]}
    rules = SGLangRules("0.5.23", model=model("target", TARGET))
    assert rules.problems({**TREE, "draft_model": model("draft", nameless), "speculative_algorithm": "EAGLE"})
    assert not rules.problems({**TREE, "draft_model": model("draft", nameless)})


def test_the_reverse_mismatch_is_refused_too(model: Model) -> None:
    """SM-01"""
    drafter = model("draft", {**TARGET, "architectures": ["LlamaForCausalLMEagle"]})
    rules = SGLangRules("0.5.23", model=model("target", TARGET))
    assert "no EAGLE-3 head" in problems(rules, TREE, draft_model=drafter)
    assert not rules.problems({**TREE, "draft_model": drafter, "speculative_algorithm": "EAGLE"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, ""),
        ({"hidden_size": 4096}, "hidden states of size 4096, the target has 7168"),
        ({"hidden_size": 4096, "target_hidden_size": 7168}, ""),
        ({"vocab_size": 128256}, "vocab_size is 128256, the target's 163840"),
        ({"draft_vocab_size": 200000}, "draft_vocab_size 200000 is larger than its vocab_size 163840"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 61]}}, "reads layer 61"),
    ],
)
def test_a_drafter_made_for_another_model_is_refused(model: Model, change: Mapping[str, object], sentence: str) -> None:
    rules = SGLangRules("0.5.23", model=model("target", TARGET))
    found = problems(rules, TREE, draft_model=model("draft", {**EAGLE3_HEAD, **change}))
    assert sentence in found
    assert bool(found) is bool(sentence)


def test_the_sizes_of_a_multimodal_target_are_those_of_its_language_part(model: Model) -> None:
    kimi = {"architectures": ["KimiK25ForConditionalGeneration"], "hidden_size": 1, "text_config": TARGET}
    rules = SGLangRules("0.5.23", model=model("target", kimi))
    assert not rules.problems({**TREE, "draft_model": model("draft", EAGLE3_HEAD)})


def test_a_drafter_of_shorter_context_is_refused_until_it_is_allowed_or_the_context_lowered(model: Model) -> None:
    """LF-14"""
    target = model("target", TARGET)
    point = {**TREE, "draft_model": model("draft", {**EAGLE3_HEAD, "max_position_embeddings": 2048})}
    assert "2048 tokens is shorter than the server's 131072" in problems(SGLangRules("0.5.23", model=target), point)
    allowed = SGLangRules("0.5.23", model=target, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"})
    assert not allowed.problems(point)
    assert not SGLangRules("0.5.23", model=target, args={"context_length": 2048}).problems(point)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
    ],
)
def test_a_context_length_is_derived_as_sglang_does(scaling: Mapping[str, object] | None, length: int) -> None:
    assert derived_context_length({"max_position_embeddings": 4096, "rope_scaling": scaling}) == length


def test_a_model_on_the_hub_is_looked_up_in_the_local_cache_only(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc\n")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "abc" / "config.json").write_text("{}")
    environment = {"HF_HUB_CACHE": "", "HF_HOME": str(tmp_path)}
    assert config_path("org/model", environment) == repository / "snapshots" / "abc" / "config.json"
    assert config_path("org/other", environment) is None


def test_a_variable_that_a_flag_overwrites_is_refused_and_its_forced_value_is_not() -> None:
    """SM-08"""
    rules = SGLangRules("0.5.23", args={"enable_symm_mem": True})
    assert "enable_symm_mem sets it to 1" in problems(rules, PLAIN, **{"env.NCCL_NVLS_ENABLE": "0"})
    assert not rules.problems({**PLAIN, "env.NCCL_NVLS_ENABLE": "1"})
    assert not rules.problems({**PLAIN, "env.NCCL_NVLS_ENABLE": "unset"})
    assert not SGLangRules("0.5.23").problems({**PLAIN, "env.NCCL_NVLS_ENABLE": "0"})


def test_deterministic_inference_and_sglang_itself_overwrite_variables() -> None:
    """SM-08"""
    rules = SGLangRules("0.5.23")
    assert "enable_deterministic_inference" in problems(
        rules, {**PLAIN, "enable_deterministic_inference": True}, **{"env.NCCL_ALGO": "Tree"}
    )
    assert "SGLang itself" in problems(rules, PLAIN, **{"env.CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert problems(SGLangRules("0.5.17"), PLAIN, **{"env.CUDA_MODULE_LOADING": "LAZY"})
    assert not problems(rules, PLAIN, **{"env.CUDA_MODULE_LOADING": "LAZY"})


def test_defaults_are_those_of_a_server_without_arguments() -> None:
    rules = SGLangRules("0.5.23")
    assert rules.default("cuda_graph") is True
    assert rules.default("custom_all_reduce") is True
    assert rules.default("speculative_algorithm") == "none"
    assert rules.default("num_continuous_decode_steps") == 1
    assert rules.default("attention_backend") is None


def test_a_point_that_names_a_backend_is_not_given_those_of_the_baseline() -> None:
    """The two of the phases would override the one that is searched, and pages belong to a backend."""
    backends = {"attention_backend": "cutedsl_mla", "prefill_attention_backend": "trtllm_mla"}
    settled = backends | {"page_size": "64", "random_seed": "1"}
    rules = SGLangRules("0.5.23", tp_size=8).settled_by(settled)
    point = {"speculative_algorithm": "none", "attention_backend": "triton"}
    assert rules.pins(point) == {"random_seed": 1}
    without = rules.pins({"speculative_algorithm": "none"})
    assert without == backends | {"page_size": 64, "random_seed": 1}
