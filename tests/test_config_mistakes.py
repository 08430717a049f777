"""What is said of each kind of mistake in a search-space file, beginning with the line it is on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specsearch._search_space_file.document import FOLLOWING
from specsearch.config import load_study
from specsearch.errors import ConfigError
from specsearch.metrics import METRICS
from specsearch.search_space import ChoiceParameter
from tests.search_space_samples import GOOD, SEED, edited, load, problems


def test_all_mistakes_are_told_together_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        GOOD.replace("tp_size: 2", "tp_sise: 2")
        .replace("concurrency: 1}", "concurency: 1}")
        .replace("low: 1,", "low: 9,")
    )
    text = text.replace("budget:", "budgte:").replace("metric: output_tokens_per_s", "metric: output_tokens_per_sec")
    directed = ", ".join(metric.name for metric in METRICS.values() if metric.better)
    assert problems(tmp_path, text) == [
        "line 5: engine.tp_sise: unknown key; did you mean 'tp_size'?",
        "line 11: parameters.num_steps.low: low 9 is above high 5",
        "line 22: load_points[0].concurrency: is missing: requests in flight at any time",
        "line 22: load_points[0].concurency: unknown key; did you mean 'concurrency'?",
        f"line 24: objective.metric: no such metric; did you mean 'output_tokens_per_s'? There are {directed}",
        "line 25: budgte: unknown section; did you mean 'budget'?",
    ]


def mistakes() -> Iterator[tuple[str, str, str, str]]:
    """Name, old text, new text and what is said, from search_space_mistakes.txt."""
    for case in Path(__file__).with_name("search_space_mistakes.txt").read_text().split("\n\n")[1:]:
        name, *lines = case.strip("\n").split("\n")
        parts = {sign: [line[2:] for line in lines if line[0] == sign] for sign in "-+>"}
        end = "" if parts["+"] else "\n"  # a line that goes takes its end along
        yield name, "\n".join(parts["-"]) + end, "\n".join(parts["+"]), " ".join(parts[">"])


MISTAKES = {name: edit for name, *edit in mistakes()}


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_with_its_line_and_what_is_allowed(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = problems(tmp_path, edited(old, new))
    assert any(said in problem for problem in found), found
    assert all(problem.startswith("line ") for problem in found)


def test_an_integer_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, edited("low: 1, high: 5", "low: 1, high: " + "9" * 5000))
    assert found == [
        "line 11: parameters.num_steps.high: an integer has at most 18 digits, this one has 5000",
    ]


def test_one_mistake_is_said_once_and_brings_no_others(tmp_path: Path) -> None:
    all_found = {name: problems(tmp_path, edited(old, new)) for name, (old, new, _) in MISTAKES.items()}
    several = {name for name, found in all_found.items() if len(found) > 1}
    assert several == {"on and off", "text for a switch", "log from zero", "pinned twice"}  # each is two mistakes


def test_a_list_of_mistakes_ends_with_the_checks_that_could_not_be_made_yet(tmp_path: Path) -> None:
    """What the engine would say is not said before the space can be read; a text that is no YAML has no such line."""
    path = tmp_path / "space.yaml"
    path.write_text("nam: x\n")
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert str(caught.value).splitlines()[-1] == f"  - {FOLLOWING}"
    path.write_text("a: [")
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert FOLLOWING not in str(caught.value)


def test_a_variable_without_its_env_is_still_known_by_its_name(tmp_path: Path) -> None:
    """A seed point that spells it right is not told that there is no such parameter."""
    text = edited("  env.NCCL_PROTO:", "  NCCL_PROTO:").replace("num_steps: 3,", "num_steps: 3, env.NCCL_PROTO: LL,")
    assert problems(tmp_path, text) == [
        "line 15: parameters.NCCL_PROTO: an environment variable is written env.NAME; did you mean 'env.NCCL_PROTO'?"
    ]


@pytest.mark.parametrize(
    ("values", "wanted"), [("1, 2, 4", "[1, 2, 4]"), ("1", "[1]"), ("'1, 2, 4'", "[1, 2, 4]"), ("1,2", "[1, 2]")]
)
def test_values_without_brackets_are_one_mistake(tmp_path: Path, values: str, wanted: str) -> None:
    """YAML reads what follows the first comma as further keys."""
    (said,) = problems(tmp_path, edited("values: [1, 2, 4], when", f"values: {values}, when"))
    assert said == f"line 12: parameters.eagle_topk.values: write a list: {wanted}"


@pytest.mark.parametrize(
    ("constraint", "place"),
    [
        ("cuda_graph || num_steps > 1", " at '||'"),
        ("cuda_graph && num_steps > 1", " at '&&'"),
        ("num_steps = 1", " at '='"),
        ("num_steps > 1 and", " to its end"),
        ("(num_steps > 1", " at '('"),
        ("num_steps > 1)", " at ')'"),
        ("num_steps is_not_one", " at 'is_not_one'"),
    ],
)
def test_a_constraint_that_cannot_be_read_says_where_and_what_is_allowed(
    tmp_path: Path, constraint: str, place: str
) -> None:
    (said,) = problems(tmp_path, edited("num_draft_tokens <= 8 or eagle_topk > 1", f'"{constraint}"'))
    allowed = "allowed are comparisons, and, or, not, in, arithmetic"
    assert said == f"line 16: constraints[0]: cannot be read{place}; {allowed}"


@pytest.mark.parametrize("fault", ["{when: {num_steps: [5]}}", "{kind: null}"])
def test_a_fault_without_a_kind_is_named_with_its_line(tmp_path: Path, fault: str) -> None:
    text = edited("type: sglang", f"type: simulated\n  simulated:\n    faults:\n      - {fault}")
    (said,) = problems(tmp_path, text)
    assert said.startswith("line 6: engine.simulated.faults[0]: kind is missing")


def test_a_key_given_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD + "name: again\n") == ["line 26: name: given twice, first in line 1; keep one"]


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("num_steps", "line 11: parameters.eagle_topk: num_steps missing"),
        ("eagle_topk", "line 11: parameters.num_steps: eagle_topk missing"),
        ("num_draft_tokens", "line 11: parameters.num_steps: num_draft_tokens missing"),
    ],
)
def test_a_part_of_the_triple_is_refused_with_what_is_missing(tmp_path: Path, removed: str, said: str) -> None:
    """LF-21: the server stops without a word on a part of steps, top-k and draft tokens."""
    kept = GOOD[: GOOD.index("constraints:")] + GOOD[GOOD.index("workloads:") :]
    lines = [line for line in kept.splitlines(keepends=True) if not line.startswith(f"  {removed}:")]
    found = problems(tmp_path, "".join(lines))
    assert found == [f"{said}: EAGLE3 takes num_steps, eagle_topk, num_draft_tokens all together or none of them"]


def test_the_whole_triple_may_be_left_to_the_engine_or_be_pinned(tmp_path: Path) -> None:
    """LF-21: all absent is the engine's own choice; pinned knobs count as given."""
    text = "".join(
        line
        for line in (GOOD[: GOOD.index("constraints:")] + GOOD[GOOD.index("workloads:") :]).splitlines(keepends=True)
        if not line.startswith(("  num_steps:", "  eagle_topk:", "  num_draft_tokens:"))
    )
    assert "num_steps" not in load(tmp_path, text).space.by_name
    pinned = text.replace("{mem_", "{num_steps: 3, speculative_eagle_topk: 4, speculative_num_draft_tokens: 8, mem_")
    config = load(tmp_path, pinned)
    assert config.space.by_name["eagle_topk"] == ChoiceParameter("eagle_topk", (4,))
    assert config.engine.args.keys() == {"mem_fraction_static", "trust_remote_code"}
    assert problems(tmp_path, text.replace("{mem_", "{num_steps: 3, mem_"))[0].startswith(
        "line 6: engine.args.num_steps: eagle_topk"
    )


def test_the_triple_may_depend_on_the_algorithm_only(tmp_path: Path) -> None:
    """LF-21: a knob of the triple that vanishes for some top-k would leave a part of it."""
    text = edited("log: true, when: {speculative_algorithm: [EAGLE3]}", "log: true, when: {eagle_topk: [2, 4]}")
    assert "num_draft_tokens may depend on speculative_algorithm only, not on eagle_topk" in problems(tmp_path, text)[0]


def test_the_triple_is_checked_for_each_algorithm(tmp_path: Path) -> None:
    """LF-21: what EAGLE3 has does not help STANDALONE; NGRAM needs no triple and no drafter."""
    text = GOOD.replace("[none, EAGLE3]", "[none, EAGLE3, STANDALONE]")
    text = text.replace("high: 5, when: {speculative_algorithm: [EAGLE3]}", "high: 5")
    found = problems(tmp_path, text)
    assert any("eagle_topk, num_draft_tokens missing: STANDALONE" in problem for problem in found)
    assert any("STANDALONE needs a drafter" in problem for problem in found)
    load(tmp_path, GOOD.replace("[none, EAGLE3]", "[none, EAGLE3, NGRAM]"))


def test_a_drafter_is_needed_by_the_real_engine_and_not_by_the_simulated_one(tmp_path: Path) -> None:
    line = next(line for line in GOOD.splitlines(keepends=True) if line.startswith("  draft_model"))
    text = GOOD.replace(line, "")
    assert problems(tmp_path, text) == [
        "line 9: parameters.speculative_algorithm.EAGLE3: EAGLE3 needs a drafter; give draft_model"
    ]
    load(tmp_path, text.replace("type: sglang", "type: simulated"))


def test_speculative_knobs_without_an_algorithm_are_refused(tmp_path: Path) -> None:
    line = next(line for line in GOOD.splitlines(keepends=True) if line.startswith("  speculative_algorithm"))
    text = GOOD.replace(line, "").replace(", when: {speculative_algorithm: [EAGLE3]}", "")
    assert any(
        "parameters.num_steps: speaks of speculation; give speculative_alg" in said for said in problems(tmp_path, text)
    )


@pytest.mark.parametrize("variable", ["NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"])
def test_an_nccl_size_that_is_no_power_of_two_needs_an_explicit_word(tmp_path: Path, variable: str) -> None:
    """SM-09: NCCL has returned wrong sums at such values, so a space has to say that it wants them."""
    searched = edited("env.NCCL_PROTO: {type: choice, values: [unset, LL, Simple]}",
        f"env.{variable}: {{type: choice, values: [unset, 512, 480]}}")  # fmt: skip
    pinned = edited("NCCL_DEBUG: WARN", f"{variable}: 480")
    ranged = edited("env.NCCL_PROTO: {type: choice, values: [unset, LL, Simple]}",
        f"env.{variable}: {{type: int, low: 256, high: 512, step: 64}}")  # fmt: skip
    for text in (searched, pinned, ranged):
        found = problems(tmp_path, text)
        assert len(found) == 1
        assert "is no power of two" in found[0]
        assert "allow_odd_nccl_sizes: true" in found[0]
        load(tmp_path, text.replace("tp_size: 2", "allow_odd_nccl_sizes: true"))
    load(tmp_path, searched.replace("480", "256"))


def test_a_thread_count_that_nccl_does_not_know_needs_an_explicit_word_as_well(tmp_path: Path) -> None:
    """SM-09: 1024 is a power of two, and NCCL would take another count without an error."""
    text = edited("env.NCCL_PROTO: {type: choice, values: [unset, LL, Simple]}",
        "env.NCCL_NTHREADS: {type: choice, values: [unset, 512, 1024]}")  # fmt: skip
    (found,) = problems(tmp_path, text)
    assert "NCCL_NTHREADS 1024: NCCL takes 64, 128, 256, 512" in found
    load(tmp_path, text.replace("tp_size: 2", "allow_odd_nccl_sizes: true"))


def test_a_list_of_quadruples_becomes_seed_points_and_its_zero_is_the_baseline(tmp_path: Path) -> None:
    """SR-14: batch,steps,topk,draft; 1,0,0,0 is no trial of its own; 3/4/16 fits a tree of 36."""
    config = load(tmp_path, edited(SEED, '  ["1,0,0,0", "1,2,4,4", "1, 3, 1, 4", "8,3,4,16"]\n'))
    triples = [(p["num_steps"], p["eagle_topk"], p["num_draft_tokens"]) for p in config.seed_points]
    assert triples == [(2, 4, 4), (3, 1, 4), (3, 4, 16)]
    assert {point["speculative_algorithm"] for point in config.seed_points} == {"EAGLE3"}
    assert config.warnings == ()


def test_a_pasted_block_of_quadruples_is_read(tmp_path: Path) -> None:
    """SR-14: the lines of a sweep file, as they are."""
    config = load(tmp_path, edited(f"seed_points:\n{SEED}", "seed_points: |\n  1,0,0,0\n  1,2,4,4\n\n  1,3,4,16\n"))
    assert [point["num_draft_tokens"] for point in config.seed_points] == [4, 16]


def test_fewer_draft_tokens_than_the_depth_can_use_are_taken_with_a_warning(tmp_path: Path) -> None:
    """SR-14: allowed at top-k above 1, but the last steps cannot matter."""
    config = load(tmp_path, edited(SEED, '  ["1,5,4,4"]\n'))
    assert len(config.seed_points) == 1
    assert config.warnings == ("seed point 5/4/4: 4 draft tokens cannot use the depth of 5 steps; it takes 6 or more",)


@pytest.mark.parametrize(
    ("quadruple", "said"),
    [
        ("4,3,4,16", "batch 4 is ambiguous: no load point has that concurrency (there are 1, 8)"),
        ("1,3,4", "expected 'batch,steps,topk,draft' such as '1,3,4,16', saw '1,3,4'"),
        ("1,3,0,4", "mixes zeros with numbers"),
        ("1,3,4,17", "17 is outside the space: num_draft_tokens is an integer from 2 to 16"),
        ("1,3,8,16", "8 is outside the space: eagle_topk is one of 1, 2, 4"),
    ],
)
def test_a_quadruple_that_means_nothing_here_is_refused_with_the_reason(
    tmp_path: Path, quadruple: str, said: str
) -> None:
    """SR-14: above all a batch that is no load point's."""
    found = problems(tmp_path, edited(SEED, f'  - "1,0,0,0"\n  - "{quadruple}"\n'))
    assert len(found) == 1
    assert found[0].startswith("line 19: seed_points[1]")
    assert said in found[0]


def test_a_quadruple_needs_exactly_one_speculative_algorithm(tmp_path: Path) -> None:
    """SR-14: a quadruple does not say its algorithm."""
    text = edited(SEED, '  - "1,3,4,16"\n').replace("[none, EAGLE3]", "[none, EAGLE3, NGRAM]")
    assert "the space has several algorithms (EAGLE3, NGRAM)" in problems(tmp_path, text)[0]


def test_a_seed_point_without_an_algorithm_does_not_turn_into_plain_decoding(tmp_path: Path) -> None:
    config = load(tmp_path, edited("{speculative_algorithm: EAGLE3, num_steps: 3", "{num_steps: 3"))
    assert config.seed_points[0]["speculative_algorithm"] == "EAGLE3"


def test_draft_tokens_that_follow_from_a_chain_need_not_be_in_the_space(tmp_path: Path) -> None:
    """With top-k 1 the server verifies steps + 1 tokens, so a chain of 3 steps is valid in a space from 8 on."""
    text = edited("low: 2, high: 16, log", "low: 8, high: 16, log").replace(SEED, '  - "1,3,1,4"\n')
    assert load(tmp_path, text).seed_points[0]["num_draft_tokens"] == 4


def test_a_mistake_beside_the_simulated_hardware_is_not_said_of_it(tmp_path: Path) -> None:
    """`type: simulated` and `simulated:` are one word in two roles."""
    text = edited("type: sglang", "type: simulated\n  simulated: {target: tiny, noise: -1}").replace(
        "tp_size: 2", 'tp_size: "2"'
    )
    found = [problem.partition(": ")[2] for problem in problems(tmp_path, text)]
    assert "engine.tp_size: expected an integer, saw '2'" in found
    assert "engine.simulated.noise: saw -1; must be greater than or equal to 0" in found
