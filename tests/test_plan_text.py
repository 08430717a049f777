"""A dry run says what every server is given beyond the search space."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.launch import LaunchPlan
from specsearch.plan_text import show_plan
from specsearch.prepare import Prepared
from specsearch.search_space import NoRules, Point, Value
from tests.search_space_samples import GOOD, load


class PinningRules(NoRules):
    """An engine that pins three settings, one of which a space may search."""

    def pinnable(self) -> Sequence[str]:
        return ("attention_backend", "page_size", "env.NCCL_PROTO")


@dataclass
class TellingEngine:
    """An engine with two options to be measured by; it starts nothing."""

    options: dict[str, Value]
    name: str = "telling"
    is_simulated: bool = True

    def version(self) -> str:
        return "1.0"

    def measuring_options(self) -> dict[str, Value]:
        return self.options

    def plan(self, point: Point, *, log_path: Path, **more: object) -> LaunchPlan:
        return LaunchPlan(argv=("serve",), env={}, log_path=log_path, base_url="http://127.0.0.1:30000")


OPTIONS: dict[str, Value] = {"enable_metrics": True, "decode_log_interval": 10, "env.NCCL_DEBUG": "INFO"}


def prepared(folder: Path, options: dict[str, Value], rules: NoRules) -> Prepared:
    """GOOD, which searches env.NCCL_PROTO and pins env.NCCL_DEBUG."""
    config = load(folder, GOOD)
    return Prepared(replace(config, space=replace(config.space, rules=rules)), TellingEngine(options), (), {})  # type: ignore[arg-type]


def test_pins_and_measuring_options_are_told_but_for_those_that_the_file_has_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_plan(prepared(tmp_path, OPTIONS, PinningRules()), "text") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "every trial after the baseline is pinned to what the baseline resolves to: attention_backend, page_size"
        in lines
    )
    assert "every server is started with, to be measured: enable_metrics, decode_log_interval 10" in lines


def test_the_json_plan_has_them_as_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(prepared(tmp_path, OPTIONS, PinningRules()), "json")
    plan = json.loads(capsys.readouterr().out)
    assert plan["pinned_from_the_baseline"] == ["attention_backend", "page_size"]
    assert plan["measuring_options"] == {"enable_metrics": True, "decode_log_interval": 10}


def test_an_engine_that_is_given_nothing_is_told_nothing_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(prepared(tmp_path, {}, NoRules()), "text")
    said = capsys.readouterr().out
    assert "pinned" not in said
    assert "to be measured" not in said


SETTLED = {
    **dict.fromkeys(("attention_backend", "decode_attention_backend"), "triton"),
    "page_size": "1",
    "random_seed": "1",
    "mem_fraction_static": "0.85",
    "max_running_requests": "48",
    "cuda_graph_config": '{"decode": {"backend": "full", "bs": [1, 2], "max_bs": 2}}',
    **{f"env.{name}": "0" for name in ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")},
}


@pytest.mark.parametrize(
    ("args", "env", "left_out"),
    [
        ({}, {}, set()),
        ({"page_size": 64}, {"NCCL_CUMEM_ENABLE": "1"}, {"page_size", "env.NCCL_CUMEM_ENABLE"}),
        ({"device": "cpu"}, {}, {"cuda_graph_bs"}),
        ({"cuda_graph": False}, {}, {"cuda_graph_bs"}),
        ({"enable_nccl_nvls": True}, {}, {"env.NCCL_NVLS_ENABLE"}),
    ],
)
def test_sglang_pins_nothing_that_a_dry_run_did_not_name(
    args: dict[str, Value], env: dict[str, str], left_out: set[str]
) -> None:
    rules = SGLangRules("0.5.23", args, env, "/models/target")
    settled = {**SETTLED, "device": str(args.get("device", "cuda"))}
    pinned = rules.settled_by(settled).pins({"speculative_algorithm": "none"})
    assert pinned.keys() <= set(rules.pinnable())
    assert left_out.isdisjoint(rules.pinnable())
    assert {"attention_backend", "mem_fraction_static"} <= pinned.keys()
