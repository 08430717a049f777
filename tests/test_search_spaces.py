"""The search spaces that are shipped load, say what their comments promise, and stay small or whole as they claim."""

import re
from pathlib import Path

import pytest

from specsearch.config import StudyConfig, load_study
from specsearch.search_space import is_plain
from specsearch.speculation import triple_problem

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "search_spaces").glob("*.yaml"))
TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")


def shipped(name: str) -> StudyConfig:
    return load_study(ROOT / "search_spaces" / f"{name}.yaml")


def yaml_blocks(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_space_loads_without_a_warning_and_bears_the_name_of_its_file(path: Path) -> None:
    config = load_study(path)
    assert config.warnings == ()
    assert config.name == path.stem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_space_holds_plain_decoding_and_a_seed_point_that_fits_its_tree(path: Path) -> None:
    """LF-02, LF-21: shipped points are points that SGLang runs."""
    config = load_study(path)
    assert "none" in config.space.by_name["speculative_algorithm"].all_values()
    assert is_plain(config.space.start_baseline(config.baseline))
    assert config.seed_points
    for point in config.seed_points:
        assert not config.space.problems(config.space.canonical(point))
        steps, topk, draft = (point[name] for name in TRIPLE)
        assert triple_problem(int(steps), int(topk), int(draft)) is None


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_space_is_listed_in_the_readme_and_says_at_its_top_what_it_is_for(path: Path) -> None:
    assert f"[{path.name}]({path.name})" in (ROOT / "search_spaces" / "README.md").read_text()
    assert path.read_text().startswith("# ")


def test_the_quick_start_is_the_built_in_file_and_small() -> None:
    assert (ROOT / "search_spaces" / "quickstart.yaml").samefile(ROOT / "specsearch" / "quickstart.yaml")
    config = shipped("quickstart")
    assert (config.engine.type, config.engine.tp_size) == ("simulated", 8)
    assert [point.name for point in config.load_points] == ["chat@1", "chat@8"]
    requests = sum(point.requests_per_repeat * point.repeats for point in config.load_points)
    assert requests * (config.budget.trials or 0) <= 500


def test_the_kimi_space_can_express_the_command_that_it_began_with() -> None:
    """Every setting of the last launch of the search by hand is in the seed point or pinned."""
    config = shipped("kimi-k2.5-eagle3-8gpu")
    point = config.space.canonical(config.seed_points[0])
    assert point.items() >= {
        "speculative_algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 16, "cuda_graph": True,
        "num_continuous_decode_steps": 4, "custom_all_reduce": False, "env.NCCL_PROTO": "LL", "env.NCCL_ALGO": "Ring",
        "env.NCCL_P2P_LEVEL": "SYS", "env.NCCL_MAX_NCHANNELS": "16", "env.NCCL_BUFFSIZE": "16777216",
        "env.NCCL_NTHREADS": "512",
    }.items()  # fmt: skip
    assert config.engine.args.items() >= {"trust_remote_code": True, "mem_fraction_static": 0.85}.items()
    assert config.engine.env == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert (config.engine.tp_size, config.budget.trials, config.budget.wall_time_s) == (8, 40, 8 * 3600)
    assert {point.concurrency for point in config.load_points} == {1, 8}
    assert [bound.metric for bound in config.objective.subject_to] == ["ttft_p99_ms"]


def test_the_kimi_space_searches_every_dimension_that_has_to_be_expressible() -> None:
    names = shipped("kimi-k2.5-eagle3-8gpu").space.by_name
    assert names.keys() >= {
        "speculative_algorithm", "draft_model", *TRIPLE, "cuda_graph", "cuda_graph_max_bs", "custom_all_reduce",
        "num_continuous_decode_steps",
    }  # fmt: skip
    assert "attention_backend" in shipped("llama-8b-eagle3-1gpu").space.by_name


def test_the_tiny_space_points_at_the_models_and_stand_ins_of_the_tests() -> None:
    """RS-07: its paths start at the file."""
    config = shipped("tiny-eagle3-cpu")
    real = ROOT / "tests" / "real"
    assert Path(config.engine.model) == real / "models" / "target"
    assert Path(config.engine.env["PYTHONPATH"]) == real / "shim"
    assert config.space.by_name["draft_model"].all_values() == (str(real / "models" / "eagle3"),)
    for path in (config.engine.model, config.engine.env["PYTHONPATH"], str(real / "models" / "eagle3")):
        assert Path(path).is_dir()
    triples = [tuple(point[name] for name in TRIPLE) for point in config.seed_points]
    assert triples == [(3, 1, 4), (2, 1, 3), (3, 4, 8), (2, 2, 4)]
    assert config.engine.tp_size == 1


def test_the_prompts_of_the_tiny_space_are_sentences_its_target_was_trained_on() -> None:
    grammar = """
        the a my your one this that every quick slow brown lazy old young red green small large fox dog cat bird horse
        cow hen frog wolf bear jumps over runs past looks at sits near walks around sleeps beside times and again .
    """
    words = set(grammar.split())
    for prompt in shipped("tiny-eagle3-cpu").load_points[0].workload.prompts:
        assert {word for word in prompt.split() if not word.isdigit()} <= words


@pytest.mark.parametrize("page", ["search_spaces/README.md", "docs/search-spaces.md"])
def test_the_first_example_of_a_page_loads(page: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml_blocks(page)[0])
    assert load_study(path).warnings == ()


def test_the_parts_shown_in_the_documentation_load_inside_a_file(tmp_path: Path) -> None:
    whole, seeds, load_points, _broken = yaml_blocks("docs/search-spaces.md")
    (tmp_path / "support.jsonl").write_text('"help"\n')
    before, after = whole.split("seed_points:")
    path = tmp_path / "mine.yaml"
    path.write_text(before + seeds + after[after.index("load_points:") :])
    assert len(load_study(path).seed_points) == 2
    before, after = whole.split("load_points:")
    path.write_text(before + load_points + after[after.index("objective:") :])
    assert [point.name for point in load_study(path).load_points] == ["support@4", "chat@1"]
