"""The rules of each algorithm, its attention backends and its ways to accept drafts, known before a launch."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace, Value
from tests.engines.contract import CHAIN, PLAIN, TREE

ORDINARY = {"hidden_size": 64, "vocab_size": 512, "num_hidden_layers": 8, "max_position_embeddings": 2048}
LLAMA = {**ORDINARY, "architectures": ["LlamaForCausalLM"]}
DEEPSEEK = {**ORDINARY, "architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}
HEAD = {**ORDINARY, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512}
LATENT_HEAD = {**HEAD, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 512}
NGRAM: Mapping[str, Value] = {"speculative_algorithm": "NGRAM", "num_draft_tokens": 8}
UNO: Mapping[str, Value] = {
    "speculative_algorithm": "UNO",
    "num_draft_tokens": 8,
    "uno_lora_path": "/adapter",
    "attention_backend": "fa3",
}
DFLASH: Mapping[str, Value] = {"speculative_algorithm": "DFLASH", "draft_model": "/d", "num_draft_tokens": 8}

Model = Callable[[Mapping[str, object]], str]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Writes a model folder that holds a configuration only."""

    def write(config: Mapping[str, object]) -> str:
        folder = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return write


def problems(rules: SGLangRules, point: Mapping[str, Value], **changes: Value) -> str:
    return " / ".join(rules.problems({**point, **changes}))


def says(found: str, sentence: str | None) -> bool:
    """Whether a problem is there, or none where none is expected."""
    return sentence in found if sentence else not found


@pytest.mark.parametrize(
    ("algorithm", "version", "sentence"),
    [
        ("DFLASH", "0.5.10.post1", "DFLASH came with SGLang 0.5.11"),
        ("DFLASH", "0.5.11", None),
        ("UNO", "0.5.19", "UNO came with SGLang 0.5.20"),
        ("UNO", "0.5.20", None),
        ("SOMETHING_ELSE", "0.5.23", None),
    ],
)
def test_an_algorithm_that_came_later_is_refused(algorithm: str, version: str, sentence: str | None) -> None:
    point = {**(UNO if algorithm == "UNO" else DFLASH), "speculative_algorithm": algorithm}
    assert says(problems(SGLangRules(version), point), sentence)


@pytest.mark.parametrize(
    ("architecture", "version", "sentence"),
    [
        ("DeepseekV3ForCausalLM", "0.5.9", None),
        ("HYV3ForCausalLM", "0.5.10", "name"),
        ("HYV3ForCausalLM", "0.5.11", None),
        ("Qwen4ExpForConditionalGeneration", "0.5.19", "name"),
        ("Qwen4ExpForConditionalGeneration", "0.5.20", None),
        ("Qwen3NextForCausalLM", "0.5.23", "itself, whose multi-token prediction it can use"),
        ("Qwen2ForCausalLM", "0.5.23", "takes the target as drafter and dies"),
    ],
)
def test_which_target_brings_its_drafter_depends_on_the_version(
    model: Model, architecture: str, version: str, sentence: str | None
) -> None:
    """LF-13"""
    rules = SGLangRules(version, model=model({**ORDINARY, "architectures": [architecture]}))
    point = {name: value for name, value in CHAIN.items() if name != "draft_model"} | {"speculative_algorithm": "NEXTN"}
    assert says(problems(rules, point), sentence)


def test_a_dspark_head_may_lie_in_the_target(model: Model) -> None:
    bundled, plain = model({**LLAMA, "dspark_block_size": 4}), model(LLAMA)
    point: Mapping[str, Value] = {"speculative_algorithm": "DSPARK"}
    assert not SGLangRules("0.5.20", model=bundled).problems(point)
    assert "DSPARK needs a draft_model" in problems(SGLangRules("0.5.20", model=plain), point)
    assert not SGLangRules("0.5.23", model=plain).problems(point), "a folder below the target is looked for since"


@pytest.mark.parametrize("phase", ["attention_backend", "prefill_attention_backend", "decode_attention_backend"])
def test_trtllm_mha_in_either_phase_verifies_no_tree(phase: str) -> None:
    """LF-05"""
    rules = SGLangRules("0.5.23", args={phase: "trtllm_mha"})
    assert f"eagle_topk 4 with {phase} trtllm_mha" in problems(rules, TREE)
    assert not rules.problems(CHAIN)


def test_a_backend_that_both_phases_override_does_not_count() -> None:
    both = {"prefill_attention_backend": "fa3", "decode_attention_backend": "fa3"}
    assert not SGLangRules("0.5.23", args={"attention_backend": "trtllm_mha", **both}).problems(TREE)


@pytest.mark.parametrize(
    ("backend", "page", "runs"),
    [("flashmla", None, False), ("trtllm_mla", 1, False), ("fa3", None, True), ("triton", 64, True)],
)
def test_a_backend_that_makes_its_own_pages_verifies_no_tree(backend: str, page: int | None, runs: bool) -> None:
    """LF-05: nobody asked for large pages, and SGLang makes them."""
    args: dict[str, Value] = {"attention_backend": backend, **({} if page is None else {"page_size": page})}
    assert (not SGLangRules("0.5.23", args=args).problems(TREE)) is runs


def test_what_the_baseline_resolved_to_counts_and_is_named_as_the_origin() -> None:
    rules = SGLangRules("0.5.23").settled_by({"attention_backend": "trtllm_mha", "page_size": "64"})
    found = problems(rules, TREE)
    assert "attention_backend trtllm_mha (as the baseline resolved it)" in found
    assert not rules.problems(CHAIN)
    assert not rules.problems({**TREE, "attention_backend": "fa3"}), "the point says otherwise"


@pytest.mark.parametrize(
    ("version", "backend", "steps", "top_k", "sentence"),
    [
        ("0.5.23", "flashinfer", 3, 4, "drafts chains only"),
        ("0.5.23", "flashinfer", 3, 1, None),
        ("0.5.23", "flashinfer", 1, 4, None),
        ("0.5.23", "triton", 3, 4, None),
        ("0.5.23", "fa3", 3, 4, None),
        ("0.5.9", "flashinfer", 3, 4, "drafts chains only"),
    ],
)
def test_a_drafter_of_latent_attention_drafts_no_tree_on_some_backends(
    model: Model, version: str, backend: str, steps: int, top_k: int, sentence: str | None
) -> None:
    tokens = steps + 1 if top_k == 1 else 4
    point = {**TREE, "num_steps": steps, "eagle_topk": top_k, "num_draft_tokens": tokens}
    rules = SGLangRules(version, model=model(DEEPSEEK), args={"attention_backend": backend, "page_size": 1})
    assert says(problems(rules, point, draft_model=model(LATENT_HEAD)), sentence)


def test_before_0_5_15_the_target_decided_on_the_attention_of_the_drafter(model: Model) -> None:
    args: Mapping[str, Value] = {"attention_backend": "flashinfer"}
    target, drafter = model(DEEPSEEK), model(HEAD)
    assert "drafts chains only" in problems(SGLangRules("0.5.14", args, model=target), TREE, draft_model=drafter)
    assert not SGLangRules("0.5.15", args, model=target).problems({**TREE, "draft_model": drafter})


def test_an_ordinary_drafter_of_a_target_with_latent_attention_needs_a_backend_of_its_own(model: Model) -> None:
    rules = SGLangRules("0.5.23", model=model(DEEPSEEK), args={"attention_backend": "trtllm_mla"})
    point = {**CHAIN, "draft_model": model(HEAD)}
    assert "give speculative_draft_attention_backend another one" in problems(rules, point)
    assert not rules.problems({**point, "speculative_draft_attention_backend": "triton"})
    assert not rules.problems({**point, "draft_model": model(LATENT_HEAD)})


@pytest.mark.parametrize(
    ("version", "backend", "sentence"),
    [
        ("0.5.23", "torch_native", "no drafter runs with attention_backend torch_native"),
        ("0.5.15", "intel_amx", "no drafter runs with attention_backend intel_amx"),
        ("0.5.16", "intel_amx", None),
        ("0.5.9", "fa4", "no drafter runs with"),
        ("0.5.10", "fa4", None),
        ("0.5.23", "one_that_came_later", None),
    ],
)
def test_some_backends_draft_nothing(version: str, backend: str, sentence: str | None) -> None:
    assert says(problems(SGLangRules(version), CHAIN | {"attention_backend": backend, "cuda_graph": False}), sentence)


@pytest.mark.parametrize(
    ("changes", "version", "sentence"),
    [
        ({}, "0.5.23", None),
        ({"eagle_topk": 4, "num_draft_tokens": 8}, "0.5.23", "samples along a chain"),
        ({"speculative_algorithm": "STANDALONE"}, "0.5.23", "has EAGLE, EAGLE3 and NEXTN only"),
        ({"speculative_accept_threshold_acc": 0.9}, "0.5.23", "leave out speculative_accept_threshold_acc 0.9"),
        ({"speculative_accept_threshold_single": 1.0}, "0.5.23", None),
        ({"enable_deterministic_inference": True, "custom_all_reduce": False}, "0.5.22", "before SGLang 0.5.23"),
        ({"enable_deterministic_inference": True, "custom_all_reduce": False}, "0.5.23", None),
        ({"enable_multi_layer_eagle": True}, "0.5.16", "before SGLang 0.5.17"),
    ],
)
def test_rejection_sampling_has_conditions(changes: Mapping[str, Value], version: str, sentence: str | None) -> None:
    point = {**CHAIN, "speculative_use_rejection_sampling": True, **changes}
    assert says(problems(SGLangRules(version), point), sentence)


@pytest.mark.parametrize("switch", ["speculative_use_rejection_sampling", "speculative_use_block_verification"])
def test_a_drafter_of_a_smaller_vocabulary_samples_no_rejections(model: Model, switch: str) -> None:
    small, whole = model({**HEAD, "draft_vocab_size": 128}), model(HEAD)
    rules = SGLangRules("0.5.23", model=model(LLAMA))
    point: Mapping[str, Value] = {**CHAIN, switch: True}
    assert "chooses among 128" in problems(rules, point, draft_model=small)
    assert not rules.problems({**point, "draft_model": whole})


def test_block_verification_knows_few_algorithms_and_no_cpu() -> None:
    rules = SGLangRules("0.5.23")
    switch = {"speculative_use_block_verification": True}
    assert "not STANDALONE" in problems(rules, {**CHAIN, **switch}, speculative_algorithm="STANDALONE")
    assert "cannot run on device cpu" in problems(rules, {**CHAIN, **switch}, device="cpu")
    assert not rules.problems({**DFLASH, **switch})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"speculative_draft_window_size": 64, "speculative_draft_sink_size": 4}, None),
        ({"speculative_draft_window_size": 0}, "must be at least 1"),
        ({"speculative_draft_sink_size": 4}, "needs a speculative_draft_window_size"),
    ],
)
def test_a_window_of_the_drafter_is_positive_and_a_sink_needs_one(
    changes: Mapping[str, Value], sentence: str | None
) -> None:
    assert says(problems(SGLangRules("0.5.23"), {**CHAIN, **changes}), sentence)


@pytest.mark.parametrize(
    ("algorithm", "version", "args", "sentence"),
    [
        ("STANDALONE", "0.5.23", {"attn_dp_size": 2}, "STANDALONE cannot be together with data-parallel attention"),
        ("NGRAM", "0.5.9", {"enable_dp_attention": True, "dp_size": 2}, "NGRAM cannot be together"),
        ("NGRAM", "0.5.9", {"enable_dp_attention": True}, None),
        ("EAGLE3", "0.5.23", {"attn_dp_size": 2}, None),
        ("DFLASH", "0.5.22", {"attn_dp_size": 2, "enable_dp_lm_head": True}, "before SGLang 0.5.23"),
        ("DFLASH", "0.5.23", {"attn_dp_size": 2}, "needs enable_dp_lm_head"),
        ("DFLASH", "0.5.23", {"attn_dp_size": 2, "enable_dp_lm_head": True}, None),
    ],
)
def test_data_parallel_attention_goes_with_some_algorithms(
    algorithm: str, version: str, args: Mapping[str, Value], sentence: str | None
) -> None:
    point = {"NGRAM": NGRAM, "DFLASH": DFLASH}.get(algorithm, {**CHAIN, "speculative_algorithm": algorithm})
    assert says(problems(SGLangRules(version, args), point), sentence)


@pytest.mark.parametrize(
    ("algorithm", "version", "env", "sentence"),
    [
        ("EAGLE", "0.5.20", {"SGLANG_ENABLE_PP_SPEC": "1"}, "does not speculate across pipeline stages"),
        ("EAGLE", "0.5.21", {}, "needs SGLANG_ENABLE_PP_SPEC=1"),
        ("EAGLE", "0.5.21", {"SGLANG_ENABLE_PP_SPEC": "1"}, None),
        ("EAGLE3", "0.5.23", {"SGLANG_ENABLE_PP_SPEC": "1"}, "have EAGLE only"),
    ],
)
def test_pipeline_stages_speculate_with_eagle_and_a_variable(
    algorithm: str, version: str, env: Mapping[str, str], sentence: str | None
) -> None:
    rules = SGLangRules(version, {"pp_size": 2}, env)
    assert says(problems(rules, CHAIN, speculative_algorithm=algorithm), sentence)
    assert not rules.problems(PLAIN)


def test_chunks_of_a_prompt_are_whole_pages() -> None:
    rules = SGLangRules("0.5.23", {"page_size": 64})
    assert "no multiple of the page size 64: use one, such as 960" in problems(rules, PLAIN, chunked_prefill_size=1000)
    assert not rules.problems({**PLAIN, "chunked_prefill_size": 1024})
    assert not rules.problems({**PLAIN, "chunked_prefill_size": -1}), "off"


def test_deterministic_inference_has_its_backends_and_turns_the_custom_all_reduce_off() -> None:
    rules = SGLangRules("0.5.23", {"enable_deterministic_inference": True}, tp_size=8)
    assert "runs with ascend, fa3, fa4" in problems(rules, PLAIN, attention_backend="flashmla")
    assert "custom_all_reduce true has no effect" in problems(rules, PLAIN)
    assert rules.derived("custom_all_reduce", {}) is False
    assert SGLangRules("0.5.23", rules.args, tp_size=1).derived("custom_all_reduce", {}) is None


def test_two_flags_that_never_go_together_are_refused_since_the_version_that_checks_them() -> None:
    args: Mapping[str, Value] = {"disable_cuda_graph_padding": True, "enable_torch_compile": True}
    assert "drop either" in problems(SGLangRules("0.5.12", args), PLAIN)
    assert not SGLangRules("0.5.11", args).problems(PLAIN)


@pytest.mark.parametrize("backend", ["torch_native", "flex_attention"])
def test_graphs_are_off_with_some_backends(backend: str) -> None:
    pinned = SGLangRules("0.5.23", {"attention_backend": backend})
    assert pinned.derived("cuda_graph", {}) is False
    assert pinned.derived("cuda_graph_max_bs", {"cuda_graph": False}) == "unset"
    searched = problems(SGLangRules("0.5.23"), PLAIN, attention_backend=backend)
    assert "cuda_graph true has no effect" in searched


def test_nothing_speculates_with_flex_attention() -> None:
    rules = SGLangRules("0.5.23", {"attention_backend": "flex_attention"})
    assert "no algorithm speculates" in problems(rules, {**NGRAM, "cuda_graph": False})


def test_ngram_takes_neither_drafter_nor_steps_and_has_its_own_flags() -> None:
    space = SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", ("none", "NGRAM", "EAGLE3")),
            ChoiceParameter("draft_model", ("/a", "/b")),
            IntParameter("num_steps", 1, 3),
            ChoiceParameter("eagle_topk", (2, 4)),
            ChoiceParameter("num_draft_tokens", (4, 8)),
            ChoiceParameter("speculative_ngram_max_bfs_breadth", (1, 10)),
        ),
        rules=SGLangRules("0.5.23"),
    )
    points = space.valid_points(1000) or []
    ngram = [point for point in points if point["speculative_algorithm"] == "NGRAM"]
    assert len(ngram) == 4, "draft tokens and breadth"
    assert {point["draft_model"] for point in ngram} == {"unset"}
    eagle = [point for point in points if point["speculative_algorithm"] == "EAGLE3"]
    assert {point["speculative_ngram_max_bfs_breadth"] for point in eagle} == {"unset"}
    asked = SGLangRules("0.5.23").requested({**NGRAM, "num_steps": 3, "eagle_topk": 4, "draft_model": "/a"})
    assert {asked[name] for name in ("num_steps", "eagle_topk", "draft_model")} == {"unset"}


@pytest.mark.parametrize(
    ("changes", "version", "sentence"),
    [
        ({}, "0.5.23", None),
        ({"page_size": 64, "attention_backend": "fa3"}, "0.5.23", "needs attention backend flashinfer"),
        ({"page_size": 64, "attention_backend": "flashinfer"}, "0.5.23", None),
        ({"page_size": 64, "attention_backend": "fa3", "speculative_ngram_max_bfs_breadth": 1}, "0.5.23", None),
        ({"device": "cpu"}, "0.5.15", "cannot run on device cpu"),
        ({"device": "cpu"}, "0.5.16", None),
        ({"num_draft_tokens": 1}, "0.5.23", "leaves NGRAM nothing to draft"),
        (
            {"speculative_ngram_external_corpus_path": "/c", "speculative_ngram_external_sam_budget": 8},
            "0.5.23",
            "outside 1 to 7",
        ),
    ],
)
def test_ngram_has_conditions_of_its_own(changes: Mapping[str, Value], version: str, sentence: str | None) -> None:
    assert says(problems(SGLangRules(version), {**NGRAM, **changes}), sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, None),
        ({"speculative_dflash_block_size": 16}, None),
        ({"speculative_dflash_block_size": 0}, "must be at least 1"),
        ({"speculative_draft_window_size": 4}, "below the block of 8 tokens"),
        ({"device": "cpu"}, "cannot run on device cpu"),
    ],
)
def test_a_block_drafter_has_one_size(changes: Mapping[str, Value], sentence: str | None) -> None:
    rules = SGLangRules("0.5.23")
    assert says(problems(rules, {**DFLASH, **changes}), sentence)


def test_a_block_size_decides_on_the_draft_tokens() -> None:
    rules = SGLangRules("0.5.23")
    sized = {**DFLASH, "speculative_dflash_block_size": 16}
    assert rules.derived("num_draft_tokens", sized) == 16
    assert rules.derived("num_steps", sized) == "unset"
    dspark: Mapping[str, Value] = {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": 7}
    assert rules.derived("num_draft_tokens", dspark) == 8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, None),
        ({"eagle_topk": 4, "num_steps": 4, "num_draft_tokens": 12}, None),
        ({"eagle_topk": 4, "num_steps": 4, "num_draft_tokens": 15}, "UNO with 4 steps, top-k 4 takes 5 to 14"),
        ({"eagle_topk": 4, "num_steps": 4, "num_draft_tokens": 4}, "takes 5 to 14"),
        ({"eagle_topk": 4}, "needs num_steps"),
        ({"eagle_topk": 1, "num_steps": 3}, "takes num_steps 1"),
        ({"attention_backend": "triton"}, "needs attention backend fa3 for prefill"),
        ({"uno_lora_path": "unset"}, "needs uno_lora_path"),
        ({"enable_deterministic_inference": True}, "cannot be together with enable_deterministic_inference"),
    ],
)
def test_uno_has_a_tree_and_conditions_of_its_own(changes: Mapping[str, Value], sentence: str | None) -> None:
    assert says(problems(SGLangRules("0.5.23", tp_size=1), {**UNO, **changes}), sentence)
    assert "one GPU only, engine.tp_size is 8" in problems(SGLangRules("0.5.23", tp_size=8), UNO)


def test_a_gemma_4_assistant_runs_under_other_names_and_by_its_own_rules(model: Model) -> None:
    assistant = model({**ORDINARY, "architectures": ["Gemma4AssistantForCausalLM"]})
    chain = {**CHAIN, "draft_model": assistant, "speculative_algorithm": "NEXTN"}
    assert not SGLangRules("0.5.23").problems(chain)
    assert "since 0.5.12" in problems(SGLangRules("0.5.11"), chain)
    assert "use NEXTN" in problems(SGLangRules("0.5.23"), chain, speculative_algorithm="EAGLE3")
    tree = {**TREE, **{name: chain[name] for name in ("draft_model", "speculative_algorithm")}}
    assert "with triton and trtllm_mha only" in problems(SGLangRules("0.5.23"), tree, attention_backend="fa3")
    no_triple = {"speculative_algorithm": "NEXTN", "draft_model": assistant}
    assert "has no steps by default" in problems(SGLangRules("0.5.23"), no_triple)


def test_a_token_map_is_left_out_where_a_head_brings_its_own() -> None:
    rules = SGLangRules("0.5.23", {"speculative_token_map": "/map"})
    assert rules.requested(CHAIN)["speculative_token_map"] == "unset"
    eagle = {**CHAIN, "speculative_algorithm": "EAGLE"}
    assert rules.requested(eagle)["speculative_token_map"] == "/map"
    assert "leave out speculative_token_map" in problems(rules, eagle, speculative_use_rejection_sampling=True)


def test_one_gpu_has_nothing_to_reduce() -> None:
    one, eight = SGLangRules("0.5.23", tp_size=1), SGLangRules("0.5.23", tp_size=8)
    for name in ("custom_all_reduce", "env.NCCL_PROTO"):
        assert "nothing is reduced between GPUs" in (one.why_inert(name) or "")
        assert eight.why_inert(name) is None
        assert SGLangRules("0.5.23", {"dp_size": 2}, tp_size=1).why_inert(name) is None
    assert one.why_inert("cuda_graph") is None


def test_deterministic_inference_pins_the_channels_since_0_5_18_and_on_several_gpus() -> None:
    """SM-08"""
    args: Mapping[str, Value] = {"enable_deterministic_inference": True}
    forced = {v: set(SGLangRules(v, args, tp_size=8).forced(args)) for v in ("0.5.17", "0.5.18")}
    assert forced["0.5.18"] - forced["0.5.17"] == {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"}
    assert "NCCL_ALGO" not in SGLangRules("0.5.18", args, tp_size=1).forced(args)


def test_the_check_of_drafters_can_be_lifted_and_the_rest_stays(model: Model) -> None:
    head, target = model({**HEAD, "max_position_embeddings": 64}), model(LLAMA)
    point = {**CHAIN, "speculative_algorithm": "EAGLE", "draft_model": head}
    strict, lenient = (SGLangRules("0.5.23", model=target, check_drafter=check) for check in (True, False))
    assert "use EAGLE3" in problems(strict, point)
    assert "use EAGLE3" not in problems(lenient, point)
    assert "its context of 64 tokens is shorter" in problems(lenient, point)
