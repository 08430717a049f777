"""What a drafter is, told from its files, and which algorithm it is for (SM-01)."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsearch.engines.sglang.models.checkpoint import Config, Tensors
from specsearch.engines.sglang.models.drafter import (
    Kind,
    classify,
    derived_context_length,
    drafter_problems,
    is_mla,
    mismatch,
    short_context,
)

TARGET: Config = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "vocab_size": 512,
    "num_hidden_layers": 8,
    "max_position_embeddings": 2048,
}
HEAD: Config = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "vocab_size": 512,
    "draft_vocab_size": 128,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
}
FUSED: Tensors = {"fc.weight": (64, 192), "d2t": (128,), "t2d": (512,), "midlayer.mlp.up_proj.weight": ()}
WHOLE: Tensors = {"model.embed_tokens.weight": (512, 64), "model.layers.0.mlp.up_proj.weight": (), "lm_head.weight": ()}

KINDS: Mapping[str, tuple[Config, Tensors, Kind]] = {
    "an EAGLE-3 head by its name": ({"architectures": ["LlamaForCausalLMEagle3"]}, {}, Kind.EAGLE3),
    "one with latent attention": ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, {}, Kind.EAGLE3),
    "one in another writing": ({"architectures": ["Eagle3Speculator"]}, {}, Kind.EAGLE3),
    "one by a smaller vocabulary": ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 9}, {}, Kind.EAGLE3),
    "one by its aux layers": (
        {"architectures": ["LlamaForCausalLM"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2]}},
        {},
        Kind.EAGLE3,
    ),
    "one without a name by its map of tokens": ({"hidden_size": 64}, {"d2t": (128,)}, Kind.EAGLE3),
    "one named like its predecessors, by its middle layer": (
        {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": 64},
        {"midlayer.input_layernorm.weight": (64,)},
        Kind.EAGLE3,
    ),
    "one by the width of its fusion": ({"hidden_size": 64}, {"fc.weight": (64, 192)}, Kind.EAGLE3),
    "an EAGLE head by its name": ({"architectures": ["Qwen2ForCausalLMEagle"]}, {}, Kind.EAGLE),
    "one by the width of its fusion ": (
        {"architectures": ["LlamaForCausalLM"], "hidden_size": 64},
        {"fc.weight": (64, 128)},
        Kind.EAGLE,
    ),
    "an MTP head by its name": ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, {}, Kind.MTP),
    "one inside its target": ({"architectures": ["Qwen3NextForCausalLM"]}, WHOLE, Kind.MTP),
    "one by its count of layers": ({"architectures": ["NewForCausalLM"], "num_nextn_predict_layers": 1}, {}, Kind.MTP),
    "one beside a DSPARK head": ({"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 4}, {}, Kind.MTP),
    "a DFLASH drafter": ({"architectures": ["DFlashDraftModel"]}, {}, Kind.DFLASH),
    "one by its key": ({"architectures": ["Qwen3ForCausalLM"], "dflash_config": {}}, {}, Kind.DFLASH),
    "a DSPARK drafter": ({"architectures": ["Qwen3DSparkModel"]}, {}, Kind.DSPARK),
    "a Gemma 4 assistant": ({"architectures": ["Gemma4AssistantForCausalLM"]}, {}, Kind.ASSISTANT),
    "Medusa heads by a key": ({"medusa_num_heads": 4}, {}, Kind.MEDUSA),
    "Medusa heads by their weights": ({}, {"medusa_head.0.0.linear.weight": (64, 64)}, Kind.MEDUSA),
    "a whole model": (TARGET, WHOLE, Kind.MODEL),
    "a whole model without weights": (
        {"architectures": ["Qwen2ForCausalLM"], "num_nextn_predict_layers": 0},
        {},
        Kind.MODEL,
    ),
    "nothing that is known": ({"architectures": ["SomethingNew"]}, {}, Kind.UNKNOWN),
    "an empty configuration": ({}, {}, Kind.UNKNOWN),
}


@pytest.mark.parametrize("case", KINDS)
def test_a_drafter_is_told_by_its_name_its_keys_and_its_weights(case: str) -> None:
    config, tensors, kind = KINDS[case]
    assert classify(config, tensors).kind is kind


@pytest.mark.parametrize(
    ("algorithm", "kind", "fix"),
    [
        ("EAGLE", Kind.EAGLE3, "use EAGLE3"),
        ("NEXTN", Kind.EAGLE3, "use EAGLE3"),
        ("STANDALONE", Kind.EAGLE3, "use EAGLE3"),
        ("DFLASH", Kind.EAGLE3, "use EAGLE3"),
        ("EAGLE3", Kind.EAGLE, "use EAGLE"),
        ("EAGLE3", Kind.MTP, "use NEXTN"),
        ("EAGLE3", Kind.ASSISTANT, "use NEXTN"),
        ("EAGLE3", Kind.MODEL, "use STANDALONE"),
        ("EAGLE", Kind.MODEL, "use STANDALONE"),
        ("EAGLE", Kind.MEDUSA, "use another drafter"),
        ("EAGLE", Kind.DFLASH, "use DFLASH"),
        ("STANDALONE", Kind.EAGLE, "use EAGLE"),
        ("EAGLE", Kind.EAGLE, None),
        ("NEXTN", Kind.MTP, None),
        ("EAGLE3", Kind.EAGLE3, None),
        ("STANDALONE", Kind.MODEL, None),
        ("DSPARK", Kind.DSPARK, None),
        ("EAGLE", Kind.UNKNOWN, None),
        ("A_PLUGIN", Kind.EAGLE3, None),
    ],
)
def test_a_wrong_pair_is_refused_with_the_right_algorithm(algorithm: str, kind: Kind, fix: str | None) -> None:
    config, tensors = next((config, tensors) for config, tensors, known in KINDS.values() if known is kind)
    said = mismatch(algorithm, classify(config, tensors))
    assert (said is None) if fix is None else (said or "").endswith(fix)


def test_the_sentence_says_what_was_seen() -> None:
    said = mismatch("EAGLE", classify({"architectures": ["LlamaForCausalLM"]}, {"d2t": (128,)}))
    assert said is not None
    assert "an EAGLE-3 head (LlamaForCausalLM, but its weights hold d2t)" in said


@pytest.mark.parametrize(
    ("changes", "tensors", "sentence"),
    [
        ({}, {}, None),
        ({}, FUSED, None),
        ({"num_aux_hidden_states": 4}, {}, "joins 4 hidden states, and the target hands over 3"),
        ({"num_aux_hidden_states": 2, "eagle_config": {}}, {}, "joins 2 hidden states, and the target hands over 3"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 1, 5]}},
            {},
            "joins 3 hidden states, and the target",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5]}},
            FUSED,
            "has 192 inputs, its configuration says 2",
        ),
        ({"eagle_config": {"use_aux_hidden_state": False}}, FUSED, "leave fc out without an error"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, {}, None),
        ({"draft_vocab_size": 256}, FUSED, "d2t maps 128 tokens, its draft_vocab_size is 256"),
        ({"target_hidden_size": 128}, {}, "reads hidden states of size 128, the target has 64"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}}, {}, "reads layer 8 of the target"),
    ],
)
def test_a_head_and_its_target_agree_on_the_hidden_states(
    changes: Mapping[str, object], tensors: Tensors, sentence: str | None
) -> None:
    found = list(drafter_problems("EAGLE3", {**HEAD, **changes}, tensors, TARGET))
    assert (found == []) if sentence is None else any(sentence in said for said in found)


@pytest.mark.parametrize(
    ("config", "latent"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}, True),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 512}, True),
        ({"architectures": ["KimiK25ForConditionalGeneration"], "kv_lora_rank": 512}, True),
        ({"architectures": ["LlamaForCausalLMEagle3"], "kv_lora_rank": 512}, False),
        ({"architectures": ["BailingMoeV2ForCausalLM"]}, False),
        ({"architectures": ["DeepseekV4ForCausalLM"], "kv_lora_rank": 512}, False),
    ],
)
def test_latent_attention_is_a_matter_of_the_class(config: Config, latent: bool) -> None:
    assert is_mla(config) is latent


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    *("architectures", "hidden_size", "target_hidden_size", "vocab_size", "draft_vocab_size", "num_hidden_layers"),
    *("num_aux_hidden_states", "eagle_config", "rope_scaling", "rope_parameters", "max_position_embeddings"),
    *("kv_lora_rank", "num_nextn_predict_layers", "dflash_config", "seq_length"),
)
EAGLE_PART = st.fixed_dictionaries(
    {}, optional={"eagle_aux_hidden_state_layer_ids": JSON, "use_aux_hidden_state": JSON}
)
NAMES = st.sampled_from(
    ["LlamaForCausalLMEagle3", "LlamaForCausalLMEagle", "DeepseekV3ForCausalLM", "DFlashDraftModel"]
)
PARTS = {"architectures": JSON | st.lists(NAMES, max_size=2), "eagle_config": JSON | EAGLE_PART}
CONFIGS = st.fixed_dictionaries({}, optional={key: PARTS.get(key, JSON) for key in KEYS})
TENSORS = st.dictionaries(
    st.sampled_from(["fc.weight", "model.fc.weight", "d2t", "t2d", "midlayer.x", "medusa_head.0", ""]),
    st.lists(st.integers(-1, 10**9), max_size=3).map(tuple),
)


@given(
    algorithm=st.sampled_from(["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", "DSPARK", "X"]),
    drafter=CONFIGS,
    target=CONFIGS | st.none(),
    tensors=TENSORS,
)
def test_no_configuration_of_a_model_raises(
    algorithm: str, drafter: Config, target: Config | None, tensors: Tensors
) -> None:
    for said in drafter_problems(algorithm, drafter, tensors, target):
        assert said
    derived_context_length(drafter)
    short_context(drafter, target, 4096)
