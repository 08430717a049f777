"""What is said of an installed SGLang before a launch: what it lacks, ignores or does otherwise than others."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from specsearch.config import EngineConfig
from specsearch.engines._base import Fitness
from specsearch.engines.sglang import SGLangEngine
from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.engines.sglang.effective import overridden
from specsearch.engines.sglang.installed.profiles import NEWEST
from specsearch.search_space import UNSET, ChoiceParameter, SearchSpace, Value
from tests.engines.sglang_fakes import install


class Place:
    """An interpreter that has some SGLang, and a space for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fitness(
        self, version: str, *parameters: ChoiceParameter, args: Mapping[str, Value] = {}, **how: object
    ) -> Fitness:
        packages = install(self.folder / "packages", version, **how)  # type: ignore[arg-type]
        config = EngineConfig(
            "sglang",
            "org/model",
            python=sys.executable,
            args=args,
            env={"PYTHONPATH": str(packages), "HF_HUB_CACHE": str(self.folder)},
        )
        space = SearchSpace((ChoiceParameter("page_size", (1, 64)), *parameters))
        return SGLangEngine(config).fitness(space, (), dry_run=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_newer_version_that_kept_everything_is_only_said_to_be_unknown(place: Place) -> None:
    found = place.fitness("0.6.0")
    assert found.errors == ()
    assert found.warnings[0] == (
        f"SGLang 0.6.0 is not known; it is taken to behave like {NEWEST}; "
        "its source holds all that specsearch relies on"
    )


@pytest.mark.parametrize("version", ["0.6.0", "0.0.0"])
def test_what_a_newer_version_no_longer_has_is_said_with_what_will_be_missing(place: Place, version: str) -> None:
    found = place.fitness(version, lacks=["cuda_graph_passes", "The server is fired up and ready to roll!"])
    assert found.errors == (
        f"SGLang {version} does not have the log line that says ready (The server is fired up and ready to roll!): "
        "no trial would be seen to be ready",
    )
    assert found.warnings[:2] == (
        f"SGLang {version} is not known; it is taken to behave like {NEWEST}",
        f"SGLang {version} does not have the counter cuda_graph_passes (cuda_graph_passes): "
        "the share of decode passes inside a CUDA graph is taken from the log",
    )


def test_a_flag_that_specsearch_gives_by_itself_and_a_newer_version_lacks_is_an_error(place: Place) -> None:
    found = place.fitness("0.6.0", lacks=["--random-seed"])
    assert found.errors == (
        "SGLang 0.6.0 does not have the flag --random-seed (--random-seed): "
        "specsearch gives it by itself, and every launch ends with exit code 2",
    )


CONTINUOUS = ChoiceParameter("num_continuous_decode_steps", (1, 4))


def test_a_knob_that_a_later_version_reads_is_no_longer_inert(place: Place) -> None:
    """SM-03"""
    assert place.fitness("0.6.0", CONTINUOUS, unread=()).inert == {}


def test_a_knob_that_no_code_reads_is_inert_and_said_to_change_nothing_where_it_is_pinned(place: Place) -> None:
    """SM-03"""
    found = place.fitness(
        "0.6.0",
        CONTINUOUS,
        args={"mem_fraction_static": 0.8},
        unread=["mem_fraction_static", "num_continuous_decode_steps"],
    )
    assert list(found.inert) == ["num_continuous_decode_steps"]
    assert (
        "mem_fraction_static is pinned and changes nothing: "
        "SGLang 0.6.0 declares --mem-fraction-static and no code of it reads that"
    ) in found.warnings


def test_graphs_of_decoding_alone_are_refused_before_a_version_can_turn_them_off(place: Place) -> None:
    found = place.fitness("0.5.13", ChoiceParameter("decode_cuda_graph", (True, False)))
    assert found.errors[-1] == (
        "parameters.decode_cuda_graph: SGLang 0.5.13 cannot turn off the graphs of decoding alone, which came with "
        "0.5.14; search cuda_graph, which turns off all"
    )


ALGORITHMS = ("none", "EAGLE3", "NGRAM")
TOP_K = ChoiceParameter("eagle_topk", (1, 2, 4), {"speculative_algorithm": ("EAGLE3",)})


def schedules(found: Fitness) -> list[str]:
    """Which trials are said to schedule otherwise than plain decoding."""
    said = [warning for warning in found.warnings if "overlapping scheduling" in warning]
    return [warning.partition(" runs ")[2].partition(" without")[0] for warning in said]


@pytest.mark.parametrize(
    ("version", "unlike"),
    [
        ("0.5.9", ["EAGLE3", "NGRAM"]),
        ("0.5.12", ["EAGLE3 at eagle_topk 2, 4", "NGRAM"]),
        ("0.5.13", ["NGRAM"]),
        ("0.5.14", []),
    ],
)
def test_trials_that_schedule_otherwise_than_plain_decoding_are_named(
    place: Place, version: str, unlike: list[str]
) -> None:
    found = place.fitness(version, ChoiceParameter("speculative_algorithm", ALGORITHMS), TOP_K)
    assert schedules(found) == unlike


def test_with_the_overlap_off_in_every_trial_nothing_differs(place: Place) -> None:
    off = {"disable_overlap_schedule": True}
    found = place.fitness("0.5.9", ChoiceParameter("speculative_algorithm", ALGORITHMS), TOP_K, args=off)
    assert schedules(found) == []


def test_an_algorithm_that_came_later_is_an_error_where_the_parser_refuses_it(place: Place) -> None:
    found = place.fitness("0.5.10", ChoiceParameter("speculative_algorithm", ("none", "DFLASH")))
    assert "speculative_algorithm DFLASH: SGLang 0.5.10 has EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM" in found.errors


def test_knobs_of_graphs_mean_nothing_where_there_are_none() -> None:
    space = SearchSpace(
        (
            ChoiceParameter("cuda_graph", (True, False)),
            ChoiceParameter("decode_cuda_graph", (True, False)),
            ChoiceParameter("cuda_graph_max_bs", (8, 16)),
        ),
        rules=SGLangRules(NEWEST),
    )
    points = space.valid_points(100)
    assert points is not None
    assert [tuple(point.values()) for point in points if False in point.values()] == [
        (True, UNSET, False),
        (False, UNSET, UNSET),
    ]


def test_graphs_of_prefill_alone_are_no_override_of_graphs() -> None:
    info = {"cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "breakable"}}}
    rules = SGLangRules(NEWEST)
    asked = {"cuda_graph": True, "decode_cuda_graph": False}
    assert list(overridden(asked, rules, info, {}, None)) == []
    assert list(overridden({"cuda_graph": True}, rules, info, {}, None)) == ["cuda_graph: asked true, runs false"]
    assert list(overridden({"decode_cuda_graph": True}, rules, info, {}, None)) == [
        "decode_cuda_graph: asked true, runs false"
    ]
