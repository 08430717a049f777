"""`python -m specsearch.tune` from the outside: exit codes, rows, resume, interruption. In process, without Ray."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.command import command, run, servers_of, space, started, wait_for

IN_PROCESS = ("--executor", "in-process")


def rows(results: Path) -> list[dict[str, object]]:
    """The trials table, read as anybody would."""
    return sorted(pq.read_table(results / "trials").to_pylist(), key=lambda row: (row["trial"], row["attempt"]))


def test_a_study_ends_with_a_verdict_and_rows_that_say_simulated(tmp_path: Path) -> None:
    done = run("tune", space(tmp_path), "--results", tmp_path / "r", *IN_PROCESS)
    assert done.code == 0, done.err
    assert "SIMULATED" in done.out
    assert "break-even" in done.out.lower()
    assert "Launch command" in done.out
    found = rows(tmp_path / "r")
    assert found[0]["kind"] == "baseline"
    assert {row["engine"] for row in found} == {"simulated"}
    assert all(row["simulated"] for row in found)
    assert len({row["point"] for row in found}) == len(found)
    assert str(tmp_path / "r") in done.err
    assert "best so far" in done.err


def test_the_same_command_again_measures_nothing_twice(tmp_path: Path) -> None:
    """SR-01: a finished study is finished; more trials go on from its rows, and what is left is said."""
    path, results = space(tmp_path), tmp_path / "r"
    run("tune", path, "--results", results, *IN_PROCESS, "--trials", "1")
    before = rows(results)
    again = run("tune", path, "--results", results, *IN_PROCESS, "--trials", "1")
    assert again.code == 0
    assert "rows are kept" in again.err
    assert rows(results) == before
    more = run("tune", path, "--results", results, *IN_PROCESS, "--trials", "2")
    assert "up to 2 launches" in more.err  # one of the search, and the matched plain run
    assert rows(results)[: len(before)] == before
    assert sum(row["kind"] in ("seed", "search") for row in rows(results)) == 2


def test_the_report_says_the_same_from_rows_alone_and_json_is_for_machines(tmp_path: Path) -> None:
    results = tmp_path / "r"
    done = run("tune", space(tmp_path), "--results", results, *IN_PROCESS, "--trials", "1", "--format", "json")
    said = json.loads(done.out)
    assert said["simulated"] is True
    report = run("report", results, "--format", "json")
    assert report.code == 0
    assert json.loads(report.out)["headline"] == said["headline"]


def test_requests_become_rows_when_asked_for_and_agree_with_their_repeat(tmp_path: Path) -> None:
    results = tmp_path / "r"
    words = ("tune", space(tmp_path), "--results", results, *IN_PROCESS, "--trials", "1")
    assert run(*words, "--keep-requests").code == 0
    requests = pq.read_table(results / "requests").to_pylist()
    repeats = pq.read_table(results / "measurements").to_pylist()
    for repeat in repeats:
        key = (repeat["trial"], repeat["repeat"])
        mine = [request for request in requests if (request["trial"], request["repeat"]) == key]
        assert len(mine) == repeat["requests_total"] == 4
        assert sum(request["completion_tokens"] for request in mine) == repeat["output_tokens"]
        assert min(request["started_s"] for request in mine) == 0
        assert all(request["chunk_tokens"][-1] == request["completion_tokens"] for request in mine)
        assert all(0 < request["ttft_ms"] <= request["e2e_ms"] for request in mine)


def test_another_space_in_the_same_folder_is_refused_with_what_differs(tmp_path: Path) -> None:
    """SR-07: exit 4 and the differing fields; the rows stay."""
    results = tmp_path / "r"
    run("tune", space(tmp_path), "--results", results, *IN_PROCESS, "--trials", "1")
    before = rows(results)
    changed = space(tmp_path)
    changed.write_text(changed.read_text().replace("high: 3", "high: 2"))
    refused = run("tune", changed, "--results", results, *IN_PROCESS)
    assert refused.code == 4
    assert "space.num_steps: int 1..3 " in refused.err
    assert "→ int 1..2 " in refused.err
    extended = run("tune", changed, "--results", results, *IN_PROCESS, "--trials", "1", "--extend")
    assert extended.code == 0, extended.err
    assert rows(results) == before
    changed.write_text(changed.read_text().replace("concurrency: 2", "concurrency: 4"))
    refused = run("tune", changed, "--results", results, *IN_PROCESS, "--extend")
    assert refused.code == 4
    assert "load_points" in refused.err


def test_a_folder_in_use_by_a_live_run_is_refused(tmp_path: Path) -> None:
    path, results = space(tmp_path, simulated="faults: [{kind: slow_start, seconds: 60}]"), tmp_path / "r"
    with started("tune", path, "--results", results, *IN_PROCESS) as (process, mark):
        wait_for(lambda: bool(servers_of(mark)), 30, "a server")
        refused = run("tune", path, "--results", results, *IN_PROCESS)
        assert refused.code == 4
        assert str(process.pid) in refused.err
    wait_for(lambda: not servers_of(mark), 15, "the server of a killed run gone")


def test_a_killed_run_goes_on_with_every_finished_row_and_no_server_left(tmp_path: Path) -> None:
    """SR-01, SR-05, RC-04: SIGKILL in the middle; the interrupted trial is run once more, nothing is lost."""
    path, results = space(tmp_path), tmp_path / "r"
    with started("tune", path, "--results", results, *IN_PROCESS) as (process, mark):
        wait_for(lambda: len(list((results / "trials").glob("*.parquet"))) >= 2, 60, "two rows")
        wait_for(lambda: bool(servers_of(mark)), 30, "the next server")
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        wait_for(lambda: not servers_of(mark), 15, "no server left")
    before = rows(results)
    done = run("tune", path, "--results", results, *IN_PROCESS)
    assert done.code == 0, done.err
    after = rows(results)
    assert after[: len(before)] == before
    measured = [row["point"] for row in after if row["status"] == "ok"]
    assert len(set(measured)) == len(measured)
    assert sum(row["kind"] in ("seed", "search") and row["status"] == "ok" for row in after) == 3
    interrupted = [row for row in after if row["status"] == "failed"]
    assert [row["reason"] for row in interrupted] == ["interrupted"] * len(interrupted)
    assert len(interrupted) <= 1
    assert not list(results.glob(".t*.running.json"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_one_interrupt_saves_everything_and_takes_the_server_down(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """RC-02: even schedulers that obey nobody are gone before the command ends."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup, and so it stays for the command")
    faults = "faults: [{kind: ignores_sigterm}, {kind: slow_start, seconds: 60, when: {num_steps: [1, 2, 3]}}]"
    path, results = space(tmp_path, simulated=faults), tmp_path / "r"
    path.write_text(path.read_text() + 'seed_points: ["2,2,1,3"]\n')
    with started("tune", path, "--results", results, *IN_PROCESS) as (process, mark):
        wait_for(lambda: len(list((results / "trials").glob("*.parquet"))) >= 1, 60, "the baseline's row")
        wait_for(lambda: bool(servers_of(mark)), 30, "the next server")
        process.send_signal(number)
        assert process.wait(40) == code
        assert not servers_of(mark)
    assert [row["status"] for row in rows(results)] == ["ok", "aborted"]


def test_a_node_that_keeps_its_memory_ends_the_study_with_what_was_measured(tmp_path: Path) -> None:
    """RC-01: exit 3 once no node is left; the rows stay and their verdict is said."""
    kept = "faults: [{kind: memory_kept, release_after_s: never, when: {speculative_algorithm: [EAGLE3]}}]"
    path = space(tmp_path, simulated=kept)
    path.write_text(path.read_text() + 'seed_points: ["2,2,1,3"]\n')
    done = run("tune", path, "--results", tmp_path / "r", *IN_PROCESS)
    assert done.code == 3
    assert [row["status"] for row in rows(tmp_path / "r")] == ["ok", "ok"]
    assert "no node is left" in done.err
    assert "start baseline" in done.out


@pytest.mark.parametrize("executor", ["ray", "in-process"])
def test_a_node_too_small_is_said_at_once(tmp_path: Path, executor: str) -> None:
    """SR-09: asked and available are named, before Ray or a server is started."""
    done = run("tune", space(tmp_path, simulated="gpus: 4"), "--results", tmp_path / "r", "--executor", executor)
    assert done.code == 3
    assert done.seconds < 15
    assert "needs 8 GPUs on one node" in done.err
    assert "has 4" in done.err
    assert not list((tmp_path / "r" / "trials").iterdir())


def test_a_space_smaller_than_its_budget_is_enumerated_and_ends_cleanly(tmp_path: Path) -> None:
    """SR-03, SM-02: draft tokens are no dimension with top-k 1; three launches and a baseline."""
    path = tmp_path / "s.yaml"
    text = space(tmp_path).read_text().replace("values: [1, 2]", "values: [1]").replace("[none, EAGLE3]", "[EAGLE3]")
    path.write_text(text.replace("trials: 3", "trials: 20"))
    done = run("tune", path, "--results", tmp_path / "r", *IN_PROCESS)
    assert done.code == 0, done.err
    assert "exhausted" in done.out
    steps = [row["num_steps"] for row in rows(tmp_path / "r")]
    assert steps[0] is None
    assert sorted(steps[1:]) == [1, 2, 3]


def test_a_study_without_a_rankable_trial_ends_with_1_and_stops_at_the_baseline(tmp_path: Path) -> None:
    """LF-06: a baseline that cannot run ends the study instead of the budget."""
    path = space(tmp_path, simulated="faults: [{kind: oom_kv}]")
    done = run("tune", path, "--results", tmp_path / "r", *IN_PROCESS)
    assert done.code == 1
    assert [row["reason"] for row in rows(tmp_path / "r")] == ["oom_kv_budget"]
    assert "baseline" in done.err


def test_every_proposal_has_a_row_with_its_reason(tmp_path: Path) -> None:
    """RS-09, SR-02: failures are rows; statuses sum to the proposals; the objective is null but for ok."""
    faults = "faults: [{kind: oom_graph, when: {num_steps: [3]}}, {kind: degenerate_output, when: {num_steps: [2]}}]"
    path = space(tmp_path, simulated=faults)
    path.write_text(path.read_text() + 'seed_points: ["1,0,0,0", "2,1,1,2", "2,2,1,3", "2,3,1,4", "2,1,2,6"]\n')
    done = run("tune", path, "--results", tmp_path / "r", *IN_PROCESS, "--trials", "4", "--format", "json")
    assert done.code == 0, done.err
    found = rows(tmp_path / "r")
    reasons = {(row["num_steps"], row["eagle_topk"]): (row["status"], row["reason"]) for row in found}
    assert reasons[1, 1] == ("ok", None)
    assert reasons[2, 1] == ("invalid", "degenerate_output")
    assert reasons[3, 1] == ("infeasible", "graph_capture_oom")
    assert reasons[1, 2] == ("rejected", "infeasible_params")
    assert all((row["objective"] is None) == (row["status"] != "ok") for row in found)
    outcomes = json.loads(done.out)["outcomes"]
    assert sum(outcomes["counts"].values()) == outcomes["proposals"]


def test_an_inert_knob_is_said_and_not_searched_unless_forced(tmp_path: Path) -> None:
    """SM-03: num_continuous_decode_steps does nothing in any version read."""
    knob = "  num_continuous_decode_steps: {type: choice, values: [1, 2, 4, 8]}"
    path = space(tmp_path, parameters=knob)
    plan = json.loads(run("tune", path, "--dry-run", "--format", "json").out)
    assert "num_continuous_decode_steps" in plan["not_searched"]
    assert "num_continuous_decode_steps" not in plan["plans"][0]["point"]
    forced = run("tune", path, "--dry-run", "--force-knob", "num_continuous_decode_steps", "--format", "json")
    assert json.loads(forced.out)["not_searched"] == {}
    misspelt = run("tune", path, "--dry-run", "--force-knob", "num_continous_decode_steps")
    assert misspelt.code == 2
    assert "num_continous_decode_steps: the space has no such parameter" in misspelt.err


def test_a_dry_run_prints_shell_lines_and_leaves_nothing(tmp_path: Path) -> None:
    done = run("tune", space(tmp_path), "--dry-run", "--results", tmp_path / "r", cwd=tmp_path)
    assert done.code == 0
    assert "--tp-size 8" in done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.yaml"]


def test_mistakes_in_a_file_are_all_listed_and_exit_2(tmp_path: Path) -> None:
    path = space(tmp_path)
    path.write_text(path.read_text().replace("repeats: 2", "repeats: none").replace("num_steps:", "num_stps:"))
    done = run("tune", path, *IN_PROCESS)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert done.err.count("line ") >= 2
    assert run("tune", tmp_path / "absent.yaml").code == 2
    for time_budget in ("soon", ""):  # an empty one is a shell variable that is not set, and no budget without limit
        assert run("tune", space(tmp_path), "--time-budget", time_budget).code == 2
    assert run("tune", space(tmp_path), "--trials", "-1").code == 2
    assert run("tune", "--no-such-option").code == 2


def test_relative_paths_mean_the_file_s_folder_and_the_caller_s(tmp_path: Path) -> None:
    """RS-07: drafters resolve against the file, --results against the caller; nothing lands elsewhere."""
    spaces, work = tmp_path / "spaces", tmp_path / "work" / "x"
    spaces.mkdir()
    work.mkdir(parents=True)
    (spaces / "drafters" / "d1").mkdir(parents=True)
    drafter = "  draft_model: {type: choice, values: [./drafters/d1], when: {speculative_algorithm: [EAGLE3]}}"
    path = space(spaces, parameters=drafter)
    path.write_text(path.read_text() + 'seed_points: ["2,1,1,2"]\n')
    done = run("tune", Path("../../spaces") / path.name, "--results", "./out", *IN_PROCESS, "--trials", "1", cwd=work)
    assert done.code == 0, done.err
    assert rows(work / "out")[1]["draft_model"] == str(spaces / "drafters" / "d1")
    assert sorted(entry.name for entry in work.iterdir()) == ["out"]
    before = len(rows(work / "out"))
    again = run("tune", path, "--results", work / "out", *IN_PROCESS, "--trials", "1", cwd=Path("/"))
    assert again.code == 0
    assert len(rows(work / "out")) == before


def test_a_stranger_that_looks_like_a_server_survives_every_study(tmp_path: Path) -> None:
    """RC-12: nothing is ended by its name or its port."""
    import subprocess

    decoy_code = "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); time.sleep(600)"
    decoy = subprocess.Popen(["sglang::scheduler", "-c", decoy_code], executable=sys.executable)
    try:
        assert run("tune", space(tmp_path), "--results", tmp_path / "r", *IN_PROCESS, "--trials", "1").code == 0
        assert decoy.poll() is None
    finally:
        decoy.kill()
        decoy.wait()


def test_the_wrong_pynvml_stops_a_real_engine_with_a_sentence_and_no_simulated_one(tmp_path: Path) -> None:
    """RC-10: the deprecated distribution has the module's name and lacks what is needed."""
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "pynvml.py").write_text(
        "import warnings\nwarnings.warn('deprecated', FutureWarning)\ndef nvmlInit(): ...\n"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(stub), os.environ.get("PYTHONPATH", "")])}
    simulated = run("tune", space(tmp_path), "--results", tmp_path / "r", *IN_PROCESS, "--trials", "1", env=env)
    assert simulated.code == 0
    assert simulated.err.count("FutureWarning") <= 1
    real = tmp_path / "real.yaml"
    real.write_text(
        "name: real\nengine: {type: sglang, model: org/model, tp_size: 1, version: 0.5.23}\n"
        "parameters: {cuda_graph: {type: choice, values: [true, false]}}\n"
        "load_points: [{workload: chat, concurrency: 1}]\n"
    )
    checked = run("check", real, env=env)
    assert checked.code == 3
    assert "nvidia-ml-py" in checked.out


def test_check_says_fit_or_every_problem(tmp_path: Path) -> None:
    assert run("check", space(tmp_path)).code == 0
    broken = space(tmp_path, simulated="gpu: rtx-9999, faults: [{kind: gremlins}]")
    done = run("check", broken, "--format", "json")
    said = json.loads(done.out)
    assert done.code == 3
    assert len(said["space"]) >= 2
    assert said["fit"] is False


def test_a_port_that_a_stranger_holds_is_never_measured(tmp_path: Path) -> None:
    """ME-01: with strangers on ports of the range, every trial still measures its own server."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        done = run("tune", space(tmp_path), "--results", tmp_path / "r", *IN_PROCESS, "--trials", "1")
    assert done.code == 0
    ports = {str(row["command"]).partition("--port ")[2].split()[0] for row in rows(tmp_path / "r")}
    assert len(ports) == len(rows(tmp_path / "r"))


def test_a_study_outlives_whoever_watched_it(tmp_path: Path) -> None:
    """Progress that nobody can read any more, and a stream that lacks our characters, cost neither rows nor verdict."""
    words = command("tune", space(tmp_path), "--results", tmp_path / "r", *IN_PROCESS, "--trials", "1")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=full, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60
        )
    assert done.returncode == 0
    assert b"SIMULATED" in done.stdout
    assert b"\\xb7" in done.stdout
    assert [row["status"] for row in rows(tmp_path / "r")] == ["ok", "ok"]


def test_a_results_folder_that_cannot_be_used_is_said_in_a_sentence(tmp_path: Path) -> None:
    taken = tmp_path / "r" / "study.log"
    taken.mkdir(parents=True)
    cases = (
        (taken.parent, 4, f"cannot open {taken}"),
        ("~nobody-has-this-name/r", 2, "--results"),
        (b"\xff", 2, "surrogates"),
    )
    for results, code, said in cases:
        done = run("tune", space(tmp_path), "--results", os.fsdecode(results), *IN_PROCESS, cwd=tmp_path)
        assert done.code == code
        assert said in done.err
        assert "Traceback" not in done.err
