"""What holds of the rules at every point, sensible or not."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from specsearch import speculation
from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace, Value, point_key
from tests.engines.contract import TREE

ALGORITHMS = ("none", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "PLUGIN")
ODD = st.one_of(
    st.integers(-2, 70), st.just(10**400), st.floats(), st.booleans(), st.text(max_size=6), st.just("unset")
)
KNOBS = {
    "num_steps": st.integers(0, 8),
    "eagle_topk": st.integers(0, 10),
    "num_draft_tokens": st.integers(0, 130),
    "draft_model": st.just("/d"),
    "attention_backend": st.sampled_from(["triton", "fa3", "flashinfer", "trtllm_mha", "flashmla", "torch_native"]),
    "decode_attention_backend": st.sampled_from(["triton", "trtllm_mha"]),
    "page_size": st.sampled_from([1, 64]),
    "speculative_adaptive": st.booleans(),
    "speculative_use_rejection_sampling": st.booleans(),
    "enable_deterministic_inference": st.booleans(),
    "cuda_graph": st.booleans(),
    "speculative_dflash_block_size": st.integers(-1, 20),
    "uno_lora_path": st.just("/adapter"),
    "chunked_prefill_size": st.integers(-1, 4096),
}
SENSIBLE = st.fixed_dictionaries({"speculative_algorithm": st.sampled_from(ALGORITHMS)}, optional=KNOBS)
VERSIONS = st.sampled_from(["0.5.9", "0.5.11", "0.5.13", "0.5.14", "0.5.17", "0.5.20", "0.5.23", "0.6.0", "0.0.0", "x"])


@given(version=VERSIONS, point=SENSIBLE | st.dictionaries(st.sampled_from([*KNOBS, "speculative_algorithm"]), ODD))
@settings(max_examples=200)
def test_no_point_raises(version: str, point: Mapping[str, Value]) -> None:
    rules = SGLangRules(version)
    for said in rules.problems(point):
        assert said
    for name in point:
        rules.derived(name, point)


def test_a_number_that_cannot_even_be_printed_is_refused() -> None:
    (found,) = SGLangRules("0.5.23").problems({**TREE, "num_steps": 10**5000})
    assert found.startswith("num_steps is beyond what a server takes")


@given(version=VERSIONS, point=SENSIBLE)
@settings(max_examples=200)
def test_a_tree_without_problems_has_room_for_its_tokens(version: str, point: Mapping[str, Value]) -> None:
    """LF-02"""
    rules = SGLangRules(version)
    asked = rules.asked(point)
    triple = [asked.whole(name) for name in ("num_steps", "eagle_topk", "num_draft_tokens")]
    if rules.problems(point) or asked.algorithm not in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE") or None in triple:
        return
    steps, top_k, tokens = (value for value in triple if value is not None)
    assert tokens <= speculation.tree_capacity(steps, top_k)
    assert tokens == steps + 1 or top_k > 1


@given(version=VERSIONS, point=SENSIBLE)
@settings(max_examples=200)
def test_a_canonical_point_is_its_own_canonical_form(version: str, point: Mapping[str, Value]) -> None:
    space = SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", ALGORITHMS),
            ChoiceParameter("speculative_adaptive", (True, False)),
            ChoiceParameter("draft_model", ("/d", "/e")),
            IntParameter("num_steps", 1, 8),
            ChoiceParameter("eagle_topk", (1, 2, 10)),
            IntParameter("num_draft_tokens", 2, 130),
            ChoiceParameter("cuda_graph", (True, False)),
            ChoiceParameter("cuda_graph_max_bs", (8, 16)),
            ChoiceParameter("attention_backend", ("triton", "torch_native")),
            ChoiceParameter("speculative_dflash_block_size", (8, 16)),
            ChoiceParameter("uno_lora_path", ("/adapter", "unset")),
        ),
        rules=SGLangRules(version),
    )
    once = space.canonical(point)
    assert point_key(space.canonical(once)) == point_key(once)
