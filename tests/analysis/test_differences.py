"""What else than speculation two servers differed in is found, and nothing that belongs to it is."""

import json
from dataclasses import replace

import pytest

from specsearch.analysis.differences import Comparison, Difference, compare
from specsearch.search_space import Point
from specsearch.trial import TrialResult
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, trial

GRAPHS = {"decode": {"backend": "full", "bs": [1, 2, 4, 8], "max_bs": 8}, "prefill": {"backend": "breakable"}}
SETTINGS = {"attention_backend": "triton", "max_running_requests": "48", "cuda_graph_config": json.dumps(GRAPHS)}
SPECULATION = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": "3", "speculative_draft_model_path": "/d"}
TREE = {name: value for name, value in TREE_POINT.items() if not name.startswith("env.")}


def plain(point: Point = PLAIN_POINT, env: dict[str, str] | None = None, **settings: str) -> TrialResult:
    return trial(0, point, effective={**SETTINGS, **settings}, effective_env=env)


def tree(point: Point = TREE, env: dict[str, str] | None = None, **settings: str) -> TrialResult:
    return trial(1, point, effective={**SETTINGS, **SPECULATION, **settings}, effective_env=env)


def graphs(phase: str, **changes: object) -> str:
    return json.dumps({**GRAPHS, phase: {**GRAPHS[phase], **changes}})


def names(comparison: Comparison) -> list[str]:
    return [difference.name for difference in comparison.differences]


def test_what_speculation_sets_is_no_difference() -> None:
    assert compare(tree(), plain()).differences == ()


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("attention_backend", "flashinfer", "other kernels"),
        ("max_running_requests", "512", "another number of requests is admitted at once"),
        ("some_new_setting", "7", None),
    ],
)
def test_a_setting_that_nobody_searched_is_named_with_both_values(name: str, value: str, note: str | None) -> None:
    """SM-04, and the silent switch of the attention backend where top-k is above 1."""
    (found,) = compare(tree(**{name: value}), plain()).differences
    assert found == Difference(name, SETTINGS.get(name, "unset"), value, note)


def test_a_setting_that_only_the_plain_server_has_counts_as_well() -> None:
    (found,) = compare(tree(), plain(sampling_backend="pytorch")).differences
    assert (found.plain, found.trial) == ("pytorch", "unset")


def test_a_finer_list_of_captured_batches_is_one_difference_of_decoding_alone() -> None:
    """SGLang captures a finer list where it speculates, and the largest size follows from the list."""
    row = tree(cuda_graph_config=graphs("decode", bs=[1, 2, 3, 4, 6], max_bs=6))
    (found,) = compare(row, plain()).differences
    assert (found.name, found.plain, found.trial) == ("cuda_graph_config.decode.bs", "1 2 4 8", "1 2 3 4 6")


def test_graphs_that_are_off_where_they_were_asked_for_are_found_and_their_sizes_are_not_compared() -> None:
    row = tree(cuda_graph_config=graphs("decode", backend="disabled", bs=None, max_bs=None))
    assert names(compare(row, plain())) == ["cuda_graph_config.decode.backend"]


@pytest.mark.parametrize(
    ("knob", "unexplained"),
    [("cuda_graph", []), ("decode_cuda_graph", ["cuda_graph_config.prefill.backend"])],
)
def test_a_searched_graph_knob_explains_the_graphs_it_stands_for_and_no_others(
    knob: str, unexplained: list[str]
) -> None:
    off = {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}
    row = tree({**TREE, knob: False}, cuda_graph_config=json.dumps(off))
    assert names(compare(row, plain({**PLAIN_POINT, knob: True}))) == unexplained


@pytest.mark.parametrize(
    ("knob", "value", "settings"),
    [
        ("custom_all_reduce", False, {"disable_custom_all_reduce": "true"}),
        ("attention_backend", "fa3", {"attention_backend": "fa3", "decode_attention_backend": "fa3"}),
        ("cuda_graph_max_bs", 4, {"cuda_graph_config": graphs("decode", bs=[1, 2, 4], max_bs=4)}),
        ("page_size", 64, {"page_size": "64"}),
    ],
)
def test_a_searched_knob_in_which_the_points_differ_explains_its_setting(
    knob: str, value: str | int, settings: dict[str, str]
) -> None:
    assert compare(tree({**TREE, knob: value}, **settings), plain()).differences == ()
    assert compare(tree(**settings), plain()).differences != ()


@pytest.mark.parametrize("old", [{"disable_cuda_graph": "false", "cuda_graph_bs": "1 2 4"}])
def test_versions_without_a_graph_configuration_are_compared_by_their_own_names(old: dict[str, str]) -> None:
    bare = {name: value for name, value in SETTINGS.items() if name != "cuda_graph_config"}
    eager = trial(1, TREE, effective={**bare, **old, "disable_cuda_graph": "true"})
    finer = trial(1, TREE, effective={**bare, **old, "cuda_graph_bs": "1 2 3 4", "cuda_graph_max_bs": "4"})
    reference = trial(0, PLAIN_POINT, effective={**bare, **old})
    assert names(compare(eager, reference)) == ["disable_cuda_graph"]
    assert names(compare(finer, reference)) == ["cuda_graph_bs"]
    assert compare(replace(eager, point={**TREE, "cuda_graph": False}), reference).differences == ()


def test_variables_are_compared_but_for_those_of_the_place_and_searched_ones() -> None:
    """SGLang writes NCCL_GRAPH_REGISTER only where graphs are on."""
    before = {"NCCL_GRAPH_REGISTER": "0", "NCCL_PROTO": "LL", "TRITON_CACHE_DIR": "/tmp/a", "CUDA_VISIBLE_DEVICES": "0"}
    after = {"NCCL_PROTO": "Simple", "TRITON_CACHE_DIR": "/tmp/b", "CUDA_VISIBLE_DEVICES": "1"}
    searched = compare(tree({**TREE, "env.NCCL_PROTO": "Simple"}, after), plain(env=before))
    assert [(d.name, d.plain, d.trial) for d in searched.differences] == [("env.NCCL_GRAPH_REGISTER", "0", "unset")]
    assert names(compare(tree(env=after), plain(env=before))) == ["env.NCCL_GRAPH_REGISTER", "env.NCCL_PROTO"]


def test_what_a_server_does_not_tell_is_said_to_be_unknown_and_never_equal() -> None:
    mute = compare(replace(tree(), effective={}), plain(env={}))
    assert (mute.settings_known, mute.environment_known, mute.differences) == (False, False, ())
    told = compare(tree(env={}), plain(env={}))
    assert (told.settings_known, told.environment_known) == (True, True)


def test_memory_that_was_left_to_the_drafter_on_purpose_is_told_and_confounds_nothing() -> None:
    row = replace(tree(mem_fraction_static="0.82"), pins={"mem_fraction_static": "0.82"})
    found = compare(row, plain(mem_fraction_static="0.85"))
    assert [difference.deliberate for difference in found.differences] == [True]
    assert found.confounders == ()
    unasked = compare(tree(mem_fraction_static="0.82"), plain(mem_fraction_static="0.85"))
    assert unasked.confounders == ("mem_fraction_static",)


def test_graphs_that_cannot_be_read_are_compared_as_they_stand() -> None:
    (found,) = compare(tree(cuda_graph_config="full"), plain(cuda_graph_config="off")).differences
    assert (found.name, found.plain, found.trial) == ("cuda_graph_config", "off", "full")
