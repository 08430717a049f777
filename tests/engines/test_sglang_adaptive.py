"""SGLang's adaptive speculation as one more configuration."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace, Value
from tests.engines.contract import CHAIN, TREE

ADAPTIVE: Mapping[str, Value] = {**CHAIN, "speculative_adaptive": True}


def problems(version: str, point: Mapping[str, Value], **changes: Value) -> str:
    return " / ".join(SGLangRules(version).problems({**point, **changes}))


def space(version: str, *more: ChoiceParameter) -> SearchSpace:
    return SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", ("none", "EAGLE3", "STANDALONE")),
            ChoiceParameter("draft_model", ("/d",)),
            IntParameter("num_steps", 1, 4),
            ChoiceParameter("eagle_topk", (1, 4)),
            ChoiceParameter("num_draft_tokens", (4, 8)),
            ChoiceParameter("speculative_adaptive", (True, False)),
            *more,
        ),
        rules=SGLangRules(version),
    )


def test_a_chain_of_eagle_may_be_adaptive() -> None:
    assert not problems("0.5.23", ADAPTIVE)
    assert not problems(
        "0.5.23", {"speculative_algorithm": "EAGLE3", "draft_model": "/d", "speculative_adaptive": True}
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"speculative_algorithm": "STANDALONE"}, "it has EAGLE and EAGLE3 only, not STANDALONE"),
        ({"eagle_topk": 4}, "it drafts chains only, not a tree of eagle_topk 4"),
        ({"attn_dp_size": 2}, "data-parallel attention"),
        ({"enable_multi_layer_eagle": True}, "enable_multi_layer_eagle"),
        ({"enable_two_batch_overlap": True}, "enable_two_batch_overlap"),
        ({"enable_pdmux": True}, "enable_pdmux"),
    ],
)
def test_where_sglang_would_silently_do_without_it_the_point_is_refused(
    changes: Mapping[str, Value], reason: str
) -> None:
    found = problems("0.5.23", ADAPTIVE, **changes)
    assert "speculative_adaptive would be switched off without an error" in found
    assert reason in found


def test_it_came_with_0_5_11_and_could_not_overlap_there() -> None:
    assert "came with SGLang 0.5.11" in problems("0.5.10", ADAPTIVE)
    assert "needs disable_overlap_schedule: true" in problems("0.5.11", ADAPTIVE)
    assert not problems("0.5.11", ADAPTIVE, disable_overlap_schedule=True)
    assert not SGLangRules("0.5.11", env={"SGLANG_ENABLE_SPEC_V2": "0"}).problems(ADAPTIVE)
    assert not problems("0.5.12", ADAPTIVE)


@pytest.mark.parametrize(
    ("version", "steps", "allowed"),
    [
        ("0.5.12", 4, True),  # what is asked is added to the candidates
        ("0.5.13", 4, False),
        ("0.5.17", 5, False),
        ("0.5.20", 5, True),
        ("0.5.23", 2, False),
    ],
)
def test_the_first_number_of_steps_is_a_candidate(version: str, steps: int, allowed: bool) -> None:
    found = problems(version, ADAPTIVE, num_steps=steps, num_draft_tokens=steps + 1)
    assert (not found) is allowed
    assert allowed or f"num_steps {steps} is none of the steps" in found


def test_before_0_5_14_the_triple_is_given_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    point = {"speculative_algorithm": "EAGLE", "draft_model": "/d", "speculative_adaptive": True}
    found = SGLangRules("0.5.13", model=str(tmp_path)).problems(point)
    assert any("SGLang would choose eagle_topk 4 for this target" in said for said in found)
    assert "eagle_topk missing" in problems("0.5.13", {**point, "num_steps": 3})
    assert not problems("0.5.14", {**point, "num_steps": 3})


def test_in_a_space_it_is_one_configuration_whatever_its_triple() -> None:
    points = space("0.5.23").valid_points(10_000) or []
    adaptive = [point for point in points if point.get("speculative_adaptive") is True]
    assert [(p["num_steps"], p["eagle_topk"], p["num_draft_tokens"]) for p in adaptive] == [(3, 1, 4)]
    assert {point["speculative_algorithm"] for point in adaptive} == {"EAGLE3"}
    assert len(points) > 5, "and the fixed configurations are there as well"


def test_a_config_is_left_out_where_it_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "adaptive.json"
    file.write_text(json.dumps({"1": {"candidate_steps": [2, 4, 6]}, "ema_alpha": 0.1}))
    points = space("0.5.23", ChoiceParameter("speculative_adaptive_config", (str(file),))).valid_points(10_000) or []
    first = {p["speculative_adaptive"]: p for p in points if p["speculative_algorithm"] == "EAGLE3"}
    assert first[True]["num_steps"] == 4, "the middle candidate of the file"
    assert first[False]["speculative_adaptive_config"] == "unset"


@pytest.mark.parametrize(
    ("version", "config", "sentence"),
    [
        ("0.5.23", {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [0]}}, None),
        ("0.5.13", {"1": {"candidate_steps": [0, 3]}}, "whole numbers from 1 on"),
        ("0.5.23", {"1": {"candidate_steps": []}}, "candidate_steps of batch size 1"),
        ("0.5.23", {"1": {"candidate_steps": "3"}}, "saw '3'"),
        ("0.5.23", {"1": [3]}, "saw None"),
        ("0.5.23", {"1": {"candidate_steps": [3, True]}}, "saw a list"),
        ("0.5.23", {"candidate_steps": [1, 3]}, "names no batch size"),
        ("0.5.12", {"candidate_steps": [1, 3]}, None),
        ("0.5.12", {"candidate_steps": [3]}, "two or more"),
        ("0.5.23", [1, 3], "is not a JSON object"),
        ("0.5.23", None, "does not exist on this host"),
    ],
)
def test_the_file_of_candidates_is_read_as_the_version_reads_it(
    tmp_path: Path, version: str, config: object, sentence: str | None
) -> None:
    file = tmp_path / "adaptive.json"
    if config is not None:
        file.write_text(json.dumps(config))
    found = problems(version, ADAPTIVE, speculative_adaptive_config=str(file))
    assert (not found) if sentence is None else sentence in found


def test_a_tree_stays_a_tree_without_it() -> None:
    assert not problems("0.5.23", TREE, speculative_adaptive=False)
