"""`report` gives the verdict from the rows alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch import report
from specsearch.cli import run_command
from specsearch.objective import Bound, Objective
from specsearch.report import show_report
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace
from specsearch.storage import ResultsFolder
from specsearch.trial import Capture, TrialKind, TrialRequest, TrialStatus
from tests.storage.made_rows import FIELDS, PLAIN_POINT, baseline, origin_tree, stamp, trial


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    made = ResultsFolder(tmp_path / "kimi")
    made.write(baseline(), stamp())
    made.write(origin_tree(), stamp())
    return made


def run(*argv: str) -> int:
    return run_command(report.build_parser, report.run, argv)


def test_the_origin_story_is_reported_from_its_rows(folder: ResultsFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder.path)) == 0
    said = capsys.readouterr().out
    assert "No speculation beats the baseline" in said
    assert "3.33" in said
    assert said.count("\n") < 60


def test_the_same_verdict_comes_as_json(folder: ResultsFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder.path), "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["finding"], said["facts"]["name"]) == ("slower", "kimi")
    assert said["outcomes"]["counts"] == {"ok": 2}


def test_the_objective_is_the_one_the_rows_were_made_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No search-space file is read."""
    folder = ResultsFolder(tmp_path)
    for result, first_token_ms in ((baseline(), 200.0), (origin_tree(), 100.0)):
        measurements = tuple(
            replace(m, values={**m.values, "ttft_p50_ms": first_token_ms}) for m in result.measurements
        )
        folder.write(replace(result, measurements=measurements), stamp(objective=Objective("ttft_p50_ms")))
    assert run(str(tmp_path)) == 0
    assert "least ttft_p50_ms" in capsys.readouterr().out


def test_files_that_were_left_out_are_named(folder: ResultsFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """RS-04."""
    (folder.trials_dir / "t0002-1.parquet").write_bytes(b"")
    assert run(str(folder.path)) == 0
    assert "trials/t0002-1.parquet is empty" in capsys.readouterr().out


def test_a_folder_without_rows_or_without_a_ranked_one_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ResultsFolder(tmp_path / "kimi")
    folder.create()
    assert run(str(folder.path)) == 1
    assert "holds no trial" in capsys.readouterr().err
    folder.write(trial(0, PLAIN_POINT, status=TrialStatus.FAILED, reason="gpu_not_free"), stamp())
    assert run(str(folder.path)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: no trial can be ranked: 1 failed gpu_not_free: end what holds the GPU")


def test_a_path_that_is_no_results_folder_exits_4_and_is_not_made_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path / "nothing")) == 4
    assert "no results folder" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_rows_of_another_model_in_the_folder_exit_4(folder: ResultsFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """SR-07: one results folder, one study."""
    folder.write(trial(5, PLAIN_POINT), stamp({**FIELDS, "engine.model": "/models/llama"}))
    assert run(str(folder.path)) == 4
    assert "engine.model: /models/kimi → /models/llama" in capsys.readouterr().err


def test_rows_of_an_extended_study_are_reported_together_and_said(
    folder: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    wider = stamp({**FIELDS, "space.num_steps": "an integer from 1 to 8"})
    folder.write(replace(origin_tree(5), ended_at=9000.0), wider)
    assert run(str(folder.path)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "space.num_steps: an integer from 1 to 5 → an integer from 1 to 8" in said
    assert "Trials: 3 proposed = 3 ok" in said


def test_a_launch_without_a_row_makes_the_report_unfinished(
    folder: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run(str(folder.path))
    assert "Unfinished" not in capsys.readouterr().out
    folder.note_running(TrialRequest(number=2, attempt=1, kind=TrialKind.SEARCH, point=PLAIN_POINT))
    assert run(str(folder.path)) == 0
    assert "Unfinished: 2 trials so far; t0002 has no result yet." in capsys.readouterr().out
    run(str(folder.path), "--format", "json")
    assert json.loads(capsys.readouterr().out)["facts"]["unfinished"] == [2]


@pytest.fixture
def all_break_a_bound(tmp_path: Path) -> ResultsFolder:
    objective = Objective(subject_to=(Bound("ttft_p99_ms", "<=", 60.0),))
    made = ResultsFolder(tmp_path / "bound")
    for result, first_token_ms in ((baseline(), 72.8), (origin_tree(), 90.0)):
        measurements = tuple(
            replace(m, values={**m.values, "ttft_p99_ms": first_token_ms}) for m in result.measurements
        )
        made.write(replace(result, measurements=measurements), stamp(objective=objective))
    return made


def test_trials_that_all_break_a_bound_are_shown_before_the_error(
    all_break_a_bound: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(all_break_a_bound.path)) == 1
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines() if line.strip().startswith("t000")]
    assert [row[:6] for row in rows] == [
        ["t0000", "90.0", "ttft_p99_ms", "<=", "60", "(72.8"],
        ["t0001", "56.7", "ttft_p99_ms", "<=", "60", "(90.0"],
    ]
    assert said.err == "error: no trial can be ranked (2 ok): no trial keeps ttft_p99_ms <= 60; loosen the bound\n"


def test_json_without_a_ranked_trial_has_no_finding_and_the_reason(
    all_break_a_bound: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(all_break_a_bound.path), "--format", "json") == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["finding"], said["facts"]["name"]) == ("none", "kimi")
    assert said["reason"].startswith("no trial can be ranked (2 ok): no trial keeps ttft_p99_ms <= 60")
    assert [trial["broken_bounds"] for trial in said["measured"]] == [
        {"ttft_p99_ms <= 60": "72.8 ms"},
        {"ttft_p99_ms <= 60": "90.0 ms"},
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [("choice none", "The search space has no speculation"), ("choice none, EAGLE3", "has been measured yet")],
)
def test_a_space_without_speculation_is_told_from_one_where_none_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: str, words: str
) -> None:
    made = ResultsFolder(tmp_path)
    made.write(baseline(), stamp({**FIELDS, "space.speculative_algorithm": values}))
    assert run(str(tmp_path)) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_what_a_verdict_rests_on_survives_the_rows(folder: ResultsFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The same evidence from stored rows as from those in memory."""
    row = replace(
        origin_tree(3),
        effective={"attention_backend": "flashinfer"},
        pins={"page_size": 1},
        overridden=("num_draft_tokens: asked 16, runs 4",),
        captures=(Capture("target verify", 1.4, 0.08, 111.0, (1, 2)),),
        queue_limited=True,
        draft_context_overridden=True,
    )
    folder.write(replace(row, measurements=row.measurements[:2]), stamp())
    folder.write(replace(baseline(), number=2, effective={"attention_backend": "triton"}), stamp())
    assert run(str(folder.path), "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [(pin["name"], pin["value"], pin["trials"]) for pin in said["pins"]] == [("page_size", "1", [3])]
    assert [(o["name"], o["asked"], o["runs"], o["trials"]) for o in said["overrides"]] == [
        ("num_draft_tokens", "16", "4", [3])
    ]
    assert next(use for use in said["graphs"] if use["trial"] == 3)["captured"][0]["sizes"] == [1, 2]
    assert [context["trial"] for context in said["draft_contexts"]] == [3]
    assert next(c for c in said["ranking"] if c["trial"] == 3)["queue_limited"] is True


def test_how_much_a_trial_closed_is_counted_where_the_space_is_at_hand(
    folder: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """LF-05: `tune` has the space, `report` has rows alone."""
    space = SearchSpace((ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")), IntParameter("num_steps", 1, 5)))
    point = {"speculative_algorithm": "EAGLE3", "num_steps": 5}
    refused = trial(2, point, status=TrialStatus.INFEASIBLE, reason="arg_rejected", lesson="num_steps <= 2")
    folder.write(refused, stamp())
    assert show_report(folder, "text", space=space) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert 'after t0002 (arg_rejected) "num_steps <= 2" holds: 2 of the space\'s 6 configurations were not' in said
    assert run(str(folder.path)) == 0
    assert 'after t0002 (arg_rejected) "num_steps <= 2" holds: what violates it was not launched' in " ".join(
        capsys.readouterr().out.split()
    )
