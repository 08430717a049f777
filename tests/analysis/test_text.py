"""The page an operator reads: complete, narrow, and marked where it is simulated."""

import shlex
from dataclasses import replace

import pytest

from specsearch.analysis.text import WIDTH, verdict_lines, wrap_command
from specsearch.analysis.verdict import StudyFacts, verdict
from specsearch.objective import Objective
from specsearch.trial import TrialResult, TrialStatus
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, baseline, origin_tree, repeats, trial

COMMAND = (
    "NCCL_PROTO=LL NCCL_ALGO='^Ring Tree' SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python3 -m sglang.launch_server "
    "--model-path '/models/my own' --trust-remote-code --tp-size 8 --cuda-graph-bs-decode 1 2 4 8 --host 127.0.0.1 "
    '--speculative-algorithm EAGLE3 --speculative-num-steps 3 --json \'{"a": "b c"}\' --log-level info'
)
FAILED = trial(3, TREE_POINT, status=TrialStatus.FAILED, reason="hang")


def page(*rows: TrialResult, top: int = 10) -> str:
    facts = StudyFacts(name="kimi", results="results/kimi", ended="all 4 trials of the budget are used")
    return "\n".join(verdict_lines(verdict(rows, Objective(), facts), top=top))


def test_the_page_of_the_origin_story_has_every_number_of_it() -> None:
    text = page(baseline(), replace(origin_tree(), command=COMMAND), FAILED)
    row = next(line for line in text.splitlines() if line.strip().startswith("chat@1"))
    assert row.split()[1:4] == ["2.10", "3.33", "−1.23"]
    assert "needs 3.33 to break even: below by 1.23" in text.replace("\n", " ")
    assert "To try next" in text
    assert "failed hang × 1 (t0003): see how far the server's log came" in text
    assert "Trials: 3 proposed = 2 ok + 1 failed." in text
    assert "Ended: all 4 trials of the budget are used." in text
    assert text.endswith("Rows and logs: results/kimi")


def test_no_line_is_wider_than_the_page() -> None:
    long_names = {
        **TREE_POINT,
        "draft_model": "/drafters/" + "a-very-long-name-of-a-drafter" * 2,
        "env.NCCL_PROTO": "LL",
    }
    rows = [
        baseline(),
        trial(1, long_names, repeats((131.0, 132.0), accept=2.6), command=COMMAND),
        replace(FAILED, advice="word " * 60, warnings=("odd " * 60,)),
    ]
    assert [line for line in page(*rows).splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize(
    "section", ["SIMULATED", "Break-even (sim", "Top 2 (sim", "Trials (sim", "Launch command (sim"]
)
def test_a_simulated_page_says_so_at_the_top_and_at_every_table(section: str) -> None:
    rows = [replace(row, engine="simulated") for row in (baseline(), origin_tree())]
    assert section in page(*rows)
    assert section not in page(baseline(), origin_tree())


def test_a_wrapped_command_is_the_same_command() -> None:
    lines = wrap_command(COMMAND)
    assert len(lines) > 2
    assert max(map(len, lines)) <= WIDTH
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == shlex.split(COMMAND)


def test_the_ranking_is_cut_where_asked_and_says_of_how_many() -> None:
    rows = [baseline(), *(trial(n, {**TREE_POINT, "num_draft_tokens": n}, repeats((80.0 + n,))) for n in range(2, 9))]
    text = page(*rows, top=3)
    assert "Top 3 of 8 ranked" in text
    assert sum(line.strip().startswith(("1 ", "2 ", "3 ", "4 ")) for line in text.splitlines()) == 3


def test_a_load_point_that_another_trial_wins_is_shown() -> None:
    """ME-13."""
    plain = trial(0, PLAIN_POINT, repeats((21.0, 21.1)) + repeats((1800.0, 1801.0), concurrency=32))
    row = trial(
        1, TREE_POINT, repeats((30.0, 30.1), accept=2.6) + repeats((1500.0, 1501.0), accept=2.6, concurrency=32)
    )
    text = page(plain, row)
    assert "Fastest at each load point" in text
    winners = text.split("Fastest at each load point")[1].splitlines()[2:4]
    assert [line.split()[:2] for line in winners] == [["chat@1", "t0001"], ["chat@32", "t0000"]]


def test_the_worst_case_over_several_load_points_is_named() -> None:
    """ME-05: 1500 of 1800 at 32 requests in flight, whatever happens at one."""
    plain = trial(0, PLAIN_POINT, repeats((21.0, 21.1)) + repeats((1800.0, 1801.0), concurrency=32))
    row = trial(
        1, TREE_POINT, repeats((30.0, 30.1), accept=2.6) + repeats((1500.0, 1501.0), accept=2.6, concurrency=32)
    )
    assert "worst case: 0.83× at chat@32" in page(plain, row)
    assert "worst case" not in page(baseline(), origin_tree())


def test_a_load_point_table_says_whose_ratio_each_column_is() -> None:
    plain = trial(0, PLAIN_POINT, repeats((21.0, 21.1)) + repeats((1800.0, 1801.0), concurrency=32))
    row = trial(
        1, TREE_POINT, repeats((42.0, 42.1), accept=2.6) + repeats((1500.0, 1501.0), accept=2.6, concurrency=32)
    )
    head = page(plain, row).split("Fastest at each load point")[1].splitlines()[1]
    assert head.count("vs best plain") == 1
    assert "t0001 here  t0001 vs plain" in head


def test_what_is_not_decided_comes_with_both_commands_the_plain_one_first() -> None:
    text = page(baseline((90.0, 84.1, 93.5)), trial(1, TREE_POINT, repeats((92.0,), accept=2.1)))
    commands = [line for line in text.splitlines() if line.startswith("Launch command")]
    assert commands == ["Launch command of t0000 plain graphs", "Launch command of t0001 EAGLE3 3/4/16 graphs Ring"]
    assert "--port 30000" in text
    assert "--port 30001" in text


def test_what_is_decided_comes_with_one_command() -> None:
    assert page(baseline(), origin_tree()).count("Launch command") == 1


def test_the_limits_say_what_is_compared_with_what() -> None:
    text = " ".join(page(baseline(), origin_tree()).split())
    assert (
        "What limits: the step cost. Compared with t0001 as it is: a step as cheap as a plain one would be 3.33× as "
        "fast, every draft accepted 1.90×; half a token more accepted per step 1.24×, a step 10% cheaper 1.11×."
    ) in text
    assert "To break even: accept 3.33 instead of 2.10 tokens per step" in text


@pytest.mark.parametrize(
    ("knobs", "legend"),
    [
        ({}, "  3/4/16: steps/top-k/draft tokens"),
        ({"cuda_graph": False}, "  3/4/16: steps/top-k/draft tokens; eager: no CUDA graphs"),
        ({"custom_all_reduce": False}, "  3/4/16: steps/top-k/draft tokens; no-car: no custom all-reduce"),
    ],
)
def test_the_legend_has_the_short_forms_that_occur_and_no_other(knobs: dict[str, bool], legend: str) -> None:
    row = trial(1, {**TREE_POINT, **knobs}, repeats((56.7, 56.8), accept=2.1))
    assert legend in page(baseline(), row).splitlines()


def test_plain_decoding_alone_needs_no_legend() -> None:
    assert "steps/top-k" not in page(baseline())


def test_a_long_title_and_long_load_points_stay_within_the_page() -> None:
    workload = "a-workload-with-quite-a-long-name-of-its-own"
    plain = trial(0, PLAIN_POINT, repeats((21.0, 21.1), workload=workload) + repeats((1800.0, 1801.0)))
    row = trial(1, TREE_POINT, repeats((42.0, 42.1), accept=2.6, workload=workload) + repeats((1500.0, 1501.0)))
    objective = Objective(at=(f"{workload}@1",))
    facts = StudyFacts(name="a-study-with-a-long-name", unfinished=tuple(range(40)))
    rows = [replace(made, engine="simulated") for made in (plain, row)]
    lines = verdict_lines(verdict(rows, objective, facts))
    assert [line for line in lines if len(line) > WIDTH] == []


def test_a_note_of_several_lines_is_one_bullet() -> None:
    facts = StudyFacts(name="kimi", notes=("rows are reused; they differ in", "  space.eagle_topk: 1 → 2"))
    lines = verdict_lines(verdict([baseline(), origin_tree()], Objective(), facts))
    assert "  - rows are reused; they differ in space.eagle_topk: 1 → 2" in lines
    assert not any(line.startswith("  -  ") for line in lines)
