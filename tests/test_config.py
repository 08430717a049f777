"""What a search-space file means: sections, spellings, paths, defaults, and what commands make of a study."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch._search_space_file.models import ObjectiveSection
from specsearch.config import (
    ClusterConfig,
    EngineConfig,
    Limits,
    SamplerConfig,
    load_study,
    parse_duration,
    to_fingerprint_fields,
    with_budget,
)
from specsearch.engines.simulated.faults import fault_problems
from specsearch.errors import ConfigError
from specsearch.objective import AGGREGATES, Bound, Objective
from specsearch.search_space import ChoiceParameter, IntParameter, NoRules
from specsearch.study import Budget
from specsearch.trial import short_name
from specsearch.workload import RANDOM
from tests.search_space_samples import GOOD, SEED, edited, load, problems


def test_every_section_of_a_file_arrives_in_the_study(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert (config.name, config.engine.type, config.engine.tp_size) == ("good", "sglang", 2)
    assert config.engine.args == {"mem_fraction_static": 0.85, "trust_remote_code": True}
    assert config.engine.env == {"NCCL_DEBUG": "WARN"}
    assert [parameter.name for parameter in config.space.parameters] == [
        "speculative_algorithm", "draft_model", "num_steps", "eagle_topk", "num_draft_tokens", "cuda_graph",
        "env.NCCL_PROTO",
    ]  # fmt: skip
    assert config.space.by_name["num_draft_tokens"] == IntParameter(
        "num_draft_tokens", 2, 16, 1, True, {"speculative_algorithm": ("EAGLE3",)}
    )
    assert isinstance(config.space.rules, NoRules)
    assert [point.name for point in config.load_points] == ["mine@1", "mine@8"]
    assert config.load_points[0].workload.prompts == ("one", "two", "three")
    assert (config.load_points[1].output_tokens, config.load_points[1].requests, config.load_points[1].repeats) == (
        48,
        16,
        2,
    )
    assert config.objective == Objective(
        "output_tokens_per_s", ("mine@1",), "geomean", (Bound("ttft_p99_ms", "<=", 500),)
    )
    assert config.budget == Budget(trials=12, wall_time_s=8 * 3600)
    assert config.seed_points[0]["num_draft_tokens"] == 16
    assert config.warnings == ()


def test_what_a_file_leaves_out_takes_the_defaults_of_the_program(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "engine: {type: sglang, model: org/model}\nparameters: {cuda_graph: {type: choice, values: [true, false]}}\n"
        "workloads: {mine: {file: ./mine.jsonl}}\nload_points: [{workload: mine, concurrency: 1}]\n",
    )
    assert config.name == "space"
    assert config.engine == EngineConfig(type="sglang", model="org/model")
    assert (config.objective, config.budget) == (Objective(), Budget())
    assert (config.sampler, config.cluster, config.limits) == (SamplerConfig(), ClusterConfig(), Limits())
    point = config.load_points[0]
    assert point == type(point)(point.workload, 1)


def test_random_words_are_marked_and_warned_about_once(tmp_path: Path) -> None:
    """ME-05: acceptance is a property of text; random prompts say nothing about it."""
    text = GOOD.replace("workload: mine", "workload: random").replace("mine@1", "random@1")
    config = load(tmp_path, text)
    assert [point.workload.kind for point in config.load_points] == [RANDOM, RANDOM]
    assert len(config.warnings) == 1
    assert "random words say nothing about acceptance" in config.warnings[0]
    assert config.load_points[0].workload.digest == load(tmp_path, text).load_points[0].workload.digest
    assert len(set(config.load_points[0].workload.prompts)) == len(config.load_points[0].workload.prompts)


def test_prompts_of_the_users_own_may_be_marked_random(tmp_path: Path) -> None:
    """ME-05: a file of random tokens is marked as such and warned about."""
    config = load(tmp_path, edited("{file: ./mine.jsonl}", "{file: ./mine.jsonl, kind: random, temperature: 0.7}"))
    assert (config.load_points[0].workload.kind, config.load_points[0].workload.temperature) == (RANDOM, 0.7)
    assert config.warnings


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\nnot json\n', "line 2 is not JSON"),
        ('{"prompt": 7}\n', "line 1 has no text under"),
        ('{"messages": []}\n', "line 1 has no text under"),
        ('"a"\n\n""\n', "line 3 holds an empty prompt"),
        ('"\\ud800"\n', "line 1 holds half a surrogate pair"),
        ("[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_a_bad_file_of_prompts_is_named_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "mine.jsonl").write_text(content)
    found = problems(tmp_path, GOOD)
    assert len(found) == 1
    assert found[0].startswith("line 20: workloads.mine.file: ")
    assert said in found[0]


def test_relative_paths_start_at_the_file_and_not_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-07: Ray changes the working directory, so nothing may depend on it; hub names stay as they are."""
    (tmp_path / "spaces").mkdir()
    (tmp_path / "prompts.jsonl").write_text('"one"\n')
    text = GOOD.replace("./target", "../models/target").replace("[./drafter]", "[./drafts/d1, org/drafter, /abs/d]")
    text = text.replace("./mine.jsonl", "../prompts.jsonl").replace("tp_size: 2", "python: venv/bin/python")
    text = text.replace("NCCL_DEBUG: WARN", "PYTHONPATH: './shim:/opt/x:../lib', HOME_OF: ~/x")
    text = text.replace("trust_remote_code: true", "chat_template: ./t.jinja")
    (tmp_path / "spaces" / "a.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    near = load_study(Path("spaces/a.yaml"))
    monkeypatch.chdir("/")
    far = load_study(tmp_path / "spaces" / "a.yaml")
    assert near == replace(far, source=near.source)
    assert near.engine.model == str(tmp_path / "models" / "target")
    assert near.engine.python == str(tmp_path / "spaces" / "venv" / "bin" / "python")
    assert near.engine.args["chat_template"] == str(tmp_path / "spaces" / "t.jinja")
    assert near.engine.env["PYTHONPATH"] == f"{tmp_path}/spaces/shim:/opt/x:{tmp_path}/lib"
    assert near.engine.env["HOME_OF"] == str(Path.home() / "x")
    assert near.space.by_name["draft_model"].all_values() == (f"{tmp_path}/spaces/drafts/d1", "org/drafter", "/abs/d")


def test_a_bare_interpreter_is_left_to_the_system(tmp_path: Path) -> None:
    """RS-07: `python3.12` is looked up in PATH, not beside the file."""
    assert load(tmp_path, edited("tp_size: 2", "python: python3.12")).engine.python == "python3.12"


def test_sglangs_own_spellings_mean_the_named_knobs_everywhere(tmp_path: Path) -> None:
    text = GOOD.replace("  num_steps:", "  speculative_num_steps:").replace(
        "  draft_model:", "  speculative_draft_model_path:"
    )
    text = text.replace("num_draft_tokens <= 8", "speculative_num_draft_tokens <= 8")
    text = text.replace("num_steps: 3", "speculative_num_steps: 3")
    plain = load(tmp_path, GOOD)
    assert load(tmp_path, text) == plain


def test_pinned_switches_take_the_name_of_the_knob(tmp_path: Path) -> None:
    config = load(
        tmp_path, edited("trust_remote_code: true", "disable_custom_all_reduce: true, cuda_graph_bs_decode: [1, 2, 4]")
    )
    assert config.engine.args["custom_all_reduce"] is False
    assert config.engine.args["cuda_graph_bs"] == "1 2 4"


def test_a_pinned_algorithm_leaves_the_baseline_plain(tmp_path: Path) -> None:
    line = next(line for line in GOOD.splitlines(keepends=True) if line.startswith("  speculative_algorithm"))
    text = GOOD.replace(line, "").replace("{mem_", "{speculative_algorithm: eagle3, mem_")
    config = load(tmp_path, text)
    assert config.space.by_name["speculative_algorithm"] == ChoiceParameter("speculative_algorithm", ("EAGLE3",))
    assert config.space.start_baseline({})["speculative_algorithm"] == "none"


def test_environment_values_are_taken_as_they_are_written(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        edited("NCCL_DEBUG: WARN", "A: 1, B: 0x10, C: 1.50, D: true, E: on, F: ''").replace("LL, Simple", "1, on"),
    )
    assert config.engine.env == {"A": "1", "B": "0x10", "C": "1.50", "D": "true", "E": "on", "F": ""}
    assert config.space.by_name["env.NCCL_PROTO"].all_values() == ("unset", "1", "on")


def test_plain_words_mean_what_they_look_like(tmp_path: Path) -> None:
    """Traps of YAML 1.1: 1e-3 is a number, 8h a text, 1:30 no base-60 number, 010 no octal one."""
    text = edited("trust_remote_code: true", "a: 1e-3, b: 8h, c: 1:30, d: 010, e: -5, f: .5, g: '7', h: 2026-01-01")
    args = load(tmp_path, text).engine.args
    assert {name: args[name] for name in "abcdefgh"} == {
        "a": 0.001, "b": "8h", "c": "1:30", "d": "010", "e": -5, "f": 0.5, "g": "7", "h": "2026-01-01",
    }  # fmt: skip


def test_integers_beside_fractions_become_fractions(tmp_path: Path) -> None:
    text = edited("  cuda_graph:", "  some_share: {type: choice, values: [0.5, 1, unset]}\n  cuda_graph:")
    assert load(tmp_path, text).space.by_name["some_share"].all_values() == (0.5, 1.0, "unset")


def test_lists_of_graph_batches_are_one_value_each(tmp_path: Path) -> None:
    text = edited("  cuda_graph:", "  cuda_graph_bs: {type: choice, values: [[1, 2, 4], '1 8', unset]}\n  cuda_graph:")
    assert load(tmp_path, text).space.by_name["cuda_graph_bs"].all_values() == ("1 2 4", "1 8", "unset")


def test_the_last_value_of_an_integer_is_one_that_the_steps_reach(tmp_path: Path) -> None:
    text = edited("  cuda_graph:", "  page_size: {type: int, low: 1, high: 10, step: 4}\n  cuda_graph:")
    assert load(tmp_path, text).space.by_name["page_size"] == IntParameter("page_size", 1, 9, 4)


def test_a_condition_may_name_one_value_without_a_list_and_share_an_anchor(tmp_path: Path) -> None:
    text = GOOD.replace(
        "[./drafter], when: {speculative_algorithm: [EAGLE3]}", "[./drafter], when: &s {speculative_algorithm: EAGLE3}"
    )
    text = text.replace("high: 5, when: {speculative_algorithm: [EAGLE3]}", "high: 5, when: *s")
    assert load(tmp_path, text) == load(tmp_path, GOOD)


def test_an_integer_variable_can_be_a_condition(tmp_path: Path) -> None:
    text = edited("  cuda_graph: {type: choice, values: [true, false]}",
        "  env.NCCL_MAX_NCHANNELS: {type: int, low: 4, high: 32}\n"
        "  cuda_graph: {type: choice, values: [true, false], when: {env.NCCL_MAX_NCHANNELS: [8]}}")  # fmt: skip
    assert load(tmp_path, text).space.by_name["cuda_graph"].when == {"env.NCCL_MAX_NCHANNELS": (8,)}


def test_faults_and_hardware_of_the_simulated_engine_are_passed_on(tmp_path: Path) -> None:
    text = edited("type: sglang\n  model: ./target", "type: simulated\n  simulated: {gpu: h100, noise: 0, faults: "
        "[{kind: oom, when: {num_steps: [5]}, share: 0.5}]}")  # fmt: skip
    engine = load(tmp_path, text).engine
    assert (engine.model, engine.simulated.gpu, engine.simulated.noise) == (engine.simulated.target, "h100", 0)
    assert engine.simulated.faults == ({"kind": "oom", "when": {"num_steps": [5]}, "share": 0.5},)


def test_the_gray_box_sampler_falls_back_with_a_warning(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD + "sampler: {type: graybox, seed: 7}\n")
    assert config.sampler == SamplerConfig("tpe", 7)
    assert "graybox is not there yet" in config.warnings[0]


def test_trials_that_share_a_node_are_warned_about(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD + "cluster: {trials_per_node: 2, resource_wait: 5m}\n")
    assert config.cluster == ClusterConfig(2, 300)
    assert "2 trials share a node" in config.warnings[0]


def test_limits_take_times_and_shares(tmp_path: Path) -> None:
    limits = load(
        tmp_path, GOOD + "limits: {start: 90, silence: 90s, request: 30m, stall: 1.5m, stop: '20', release: 1h30m}\n"
    ).limits
    assert limits == Limits(90, 90, 1800, 90, 20, 5400)


def test_a_budget_of_no_limit_is_null(tmp_path: Path) -> None:
    assert load(tmp_path, edited("{trials: 12, wall_time: 8h}", "{trials: null, gpu_hours: 64}")).budget == Budget(
        None, None, 64
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), (1.5, 1.5), ("90", 90), ("90s", 90), ("30m", 1800), ("8h", 28800), ("1h30m", 5400), ("2d", 172800),
     ("250ms", 0.25), ("1 h", 3600)],
)  # fmt: skip
def test_times_are_read_in_every_spelling(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "8 hours", "-1", "0", "0s", "1h30", "nan", "inf", "1e3", "9" * 13, "99999d", "8H"]
)
def test_what_is_no_time_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        parse_duration(text)


def test_the_command_line_overrides_the_budget_it_names_and_no_more(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert with_budget(config) == config
    assert with_budget(config, trials=3).budget == Budget(3, 8 * 3600)
    assert with_budget(config, wall_time_s=60).budget == Budget(12, 60)
    with pytest.raises(ConfigError) as caught:
        with_budget(config, trials=0, wall_time_s=-1)
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError) as caught:
        with_budget(config, trials=0)
    assert str(caught.value) == "--trials: saw 0; give 1 or more"


def test_the_aggregates_of_the_file_are_those_of_the_study() -> None:
    assert set(ObjectiveSection.model_fields["aggregate"].annotation.__args__) == set(AGGREGATES)  # type: ignore[union-attr]


def test_a_fingerprint_changes_with_what_the_numbers_depend_on_and_with_nothing_else(tmp_path: Path) -> None:
    fields = to_fingerprint_fields(load(tmp_path, GOOD))
    assert fields["engine.args.mem_fraction_static"] == "0.85"
    assert fields["space.num_steps"] == "int 1..5 when speculative_algorithm in [EAGLE3]"
    assert fields["space.num_draft_tokens"] == "int 2..16 log when speculative_algorithm in [EAGLE3]"
    assert fields["space.cuda_graph"] == "choice true, false"
    assert fields["load_points.mine@8"].endswith("output_tokens 48 requests 16 repeats 2")
    assert fields["objective"] == "output_tokens_per_s at mine@1, geomean subject to ttft_p99_ms <= 500"

    def differing(text: str) -> set[str]:
        other = to_fingerprint_fields(load(tmp_path, text))
        return {name for name in fields | other if fields.get(name) != other.get(name)}

    same = GOOD.replace("name: good", "name: other").replace("trials: 12", "trials: 3").replace(SEED, "  []\n")
    same += "sampler: {type: random, seed: 3}\ncluster: {trials_per_node: 2}\nlimits: {start: 5m, stop: 3}\n"
    assert differing(same) == set()
    assert differing(GOOD.replace("high: 5", "high: 6")) == {"space.num_steps"}
    assert differing(GOOD.replace("0.85", "0.8")) == {"engine.args.mem_fraction_static"}
    assert differing(GOOD.replace("output_tokens: 48", "output_tokens: 64")) == {"load_points.mine@8"}
    assert differing(GOOD.replace("<= 500", "<= 600")) == {"objective"}
    assert differing(GOOD + "baseline: {cuda_graph: false}\n") == {"baseline"}
    (tmp_path / "mine.jsonl").write_text('"other"\n')
    assert differing(GOOD) == {"load_points.mine@1", "load_points.mine@8"}


def test_another_model_under_the_same_path_has_another_fingerprint(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("{}")
    (target / "model.safetensors").write_bytes(b"1234")
    before = to_fingerprint_fields(load(tmp_path, GOOD))
    assert before == to_fingerprint_fields(load(tmp_path, GOOD))
    (target / "README.md").write_text("no part of the model")
    assert before == to_fingerprint_fields(load(tmp_path, GOOD))
    (target / "model.safetensors").write_bytes(b"12345")
    heavier = to_fingerprint_fields(load(tmp_path, GOOD))
    assert {name for name in before if before[name] != heavier[name]} == {f"engine.files.{target}"}
    (target / "config.json").write_text('{"a": 1}')
    assert to_fingerprint_fields(load(tmp_path, GOOD)) != heavier


def test_the_faults_of_the_documentation_load_and_can_be_simulated(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "search-spaces.md").read_text()
    (shown,) = re.findall(r"^```yml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    config = load(tmp_path, shown + GOOD[GOOD.index("parameters:") :])
    assert [fault["kind"] for fault in config.engine.simulated.faults] == ["oom_graph", "request_failures"]
    assert fault_problems(config.engine.simulated.faults) == []
    broken = shown.replace("share: 0.1", "shares: 0.1")
    assert fault_problems(load(tmp_path, broken + GOOD[GOOD.index("parameters:") :]).engine.simulated.faults)


def test_a_word_of_a_name_means_what_the_documentation_says() -> None:
    point = {
        "speculative_algorithm": "EAGLE3", "draft_model": "/d/other", "num_steps": 3, "eagle_topk": 4,
        "num_draft_tokens": 16, "cuda_graph": False, "custom_all_reduce": False, "env.NCCL_ALGO": "Ring",
        "env.NCCL_PROTO": "LL",
    }  # fmt: skip
    page = (Path(__file__).parents[1] / "docs" / "search-spaces.md").read_text()
    assert f"such as `{short_name(point)}`:" in page
