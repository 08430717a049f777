"""The page an operator reads: complete, narrow, and marked where it is simulated."""

import shlex
from dataclasses import replace

import pytest

from specsearch.analysis.text import WIDTH, verdict_lines, wrap_command
from specsearch.analysis.verdict import StudyFacts, verdict
from specsearch.study import Objective
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
    assert "below break-even by 1.23" in text.replace("\n", " ")
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
