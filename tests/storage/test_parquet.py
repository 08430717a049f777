"""The results folder: every attempt is on disk the moment it is decided, and any tool can read it."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from specsearch.errors import StorageError
from specsearch.metrics import METRICS, TRIAL_FACTS
from specsearch.objective import Bound, Objective
from specsearch.search_space import UNSET
from specsearch.storage import ResultsFolder
from specsearch.storage.schema import SCHEMA_VERSION, VERSION_KEY, arrow_schema
from specsearch.study import settle
from specsearch.trial import Capture, Phase, TrialKind, TrialRequest, TrialResult, TrialStatus
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, baseline, origin_tree, repeats, stamp, trial

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder(tmp_path / "results")


def full_result() -> TrialResult:
    """A result in which nothing is left at its default."""
    return TrialResult(
        number=7,
        attempt=2,
        kind=TrialKind.SEED,
        point={**TREE_POINT, "cuda_graph_max_bs": 32, "mem_fraction_static": 0.85, "page_size": UNSET, "trust": True},
        status=TrialStatus.INVALID,
        reason="graphs_not_active",
        message="graphs were asked for and 0 % of the decode passes used one",
        detail="Decode batch, cuda graph: False",
        advice="raise cuda_graph_max_bs",
        phase=Phase.MEASURE,
        command="A=1 python -m sglang.launch_server --port 30000",
        log_path="logs/t0007-2.log",
        exit_code=-9,
        started_at=1764590000.125,
        ended_at=1764590100.5,
        phase_s={phase.value: float(index) for index, phase in enumerate(Phase)},
        gpu_count=8,
        node="node-1",
        host_facts={"driver": "580.1", "gpu": "RTX PRO 6000"},
        engine="sglang",
        engine_version="0.5.23",
        effective={"speculative_num_steps": "3"},
        effective_key="abc",
        overridden=("num_draft_tokens: asked 16, runs 4",),
        effective_env={"NCCL_ALGO": "Ring"},
        lesson="not custom_all_reduce",
        failure_facts={"rank": "TP3", "asked": "1.27 GiB"},
        pins={"attention_backend": "triton", "page_size": "1"},
        model_facts={"model.digest": "0a1b2c3d4e5f", "draft_model.revision": "main"},
        captures=(Capture("target verify", 3.5, 0.5, 3.1, (1, 2, 4)), Capture("draft decode")),
        queue_limited=True,
        draft_context_overridden=True,
        facts=dict.fromkeys(TRIAL_FACTS) | {"startup_s": 61.5},
        measurements=repeats((56.7, 57.0), accept=2.1, histogram=(5, 3, 2), ttft_p99_ms=400.0),
        warnings=("something odd",),
        node_unfit="GPU 3 still holds 2 GiB",
    )


def test_a_result_comes_back_exactly_as_it_was_written(folder: ResultsFolder) -> None:
    folder.write(full_result(), stamp())
    stored = folder.read()
    assert stored.results == [full_result()]
    assert stored.problems == []


def test_what_waits_for_its_commit_comes_back_and_is_no_row_before(folder: ResultsFolder) -> None:
    """The teardown after it may never end; then this is what is left of the trial."""
    request = TrialRequest(number=7, attempt=2, kind=TrialKind.SEED, point=full_result().point)
    folder.note_running(request)
    folder.note_measured(full_result(), stamp())
    assert folder.measured(request) == full_result()
    assert folder.read().results == []
    assert folder.running() == [request]
    folder.write(full_result(), stamp())
    folder.forget_running(request)
    assert folder.measured(request) is None
    assert folder.read().results == [full_result()]
    assert [path.name for path in folder.path.glob(".t*")] == []


@pytest.mark.parametrize("harm", ["half of the row", "no repeats"])
def test_what_waits_and_is_not_whole_counts_as_nothing(folder: ResultsFolder, harm: str) -> None:
    request = TrialRequest(number=7, attempt=2, kind=TrialKind.SEED, point=full_result().point)
    folder.note_measured(full_result(), stamp())
    (waiting,) = folder.path.glob(".t*.measured.parquet")
    if harm == "no repeats":
        next(folder.measurements_dir.iterdir()).unlink()
    else:
        waiting.write_bytes(waiting.read_bytes()[:500])
    assert folder.measured(request) is None


def test_values_of_a_point_keep_their_exact_types(folder: ResultsFolder) -> None:
    """A resumed study recognises a point by its text, so True must not come back as 1, nor 1 as 1.0."""
    folder.write(full_result(), stamp())
    point = folder.read().results[0].point
    assert [type(point[name]) for name in ("trust", "num_steps", "mem_fraction_static")] == [bool, int, float]


@pytest.mark.parametrize("status", list(TrialStatus))
def test_every_status_has_a_row_with_its_reason(folder: ResultsFolder, status: TrialStatus) -> None:
    """RS-09: what failed is kept with where and why."""
    result = replace(full_result(), status=status, measurements=())
    folder.write(result, stamp())
    (row,) = pq.read_table(folder.trials_dir).to_pylist()
    assert (row["status"], row["reason"], row["phase"]) == (status.value, "graphs_not_active", "measure")
    assert row["detail"] == "Decode batch, cuda graph: False"
    assert folder.read().results == [result]


def test_a_baseline_first_folder_is_read_by_plain_pyarrow(folder: ResultsFolder) -> None:
    """RS-01: the first part has neither accept length nor speculative knobs."""
    folder.write(baseline(), stamp())
    folder.write(origin_tree(), stamp())
    for table in (pq.read_table(folder.trials_dir), pyarrow.dataset.dataset(folder.trials_dir).to_table()):
        rows = sorted(table.to_pylist(), key=lambda row: row["trial"])
        assert [row["accept_length"] for row in rows] == [None, pytest.approx(2.1)]
        assert [row["num_steps"] for row in rows] == [None, 3]
    assert pq.read_table(folder.measurements_dir).num_rows == 6


def test_a_folder_is_read_by_pandas_duckdb_and_polars_as_one_table(folder: ResultsFolder) -> None:
    pandas, duckdb, polars = (
        pytest.importorskip(name, reason=f"{name} is not installed") for name in ("pandas", "duckdb", "polars")
    )
    folder.write(baseline(), stamp())
    folder.write(trial(1, TREE_POINT, repeats((56.7, 56.9), accept=2.1)), stamp())
    folder.note_running(TrialRequest(number=2, attempt=1, kind=TrialKind.SEARCH, point=TREE_POINT))
    (folder.path / ".trials-t0002-1.parquet.tmp").write_bytes(b"PAR1 half of")
    query = f"select max(accept_length), max(env['NCCL_ALGO']) from '{folder.trials_dir}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(pytest.approx(2.1), "Ring")]
    assert polars.read_parquet(folder.trials_dir)["num_steps"].to_list() == [None, 3]
    assert polars.read_parquet(folder.measurements_dir)["output_tokens_per_s"].len() == 5
    frame = pandas.read_parquet(folder.trials_dir).sort_values("trial")
    assert frame["output_tokens_per_s"].round(1).tolist() == [90.0, 56.8]


def test_the_objective_is_a_finite_number_for_ok_rows_and_null_for_all_others(folder: ResultsFolder) -> None:
    """RS-10: numbers of an invalid row live in raw_ columns."""
    folder.write(baseline(), stamp())
    folder.write(trial(1, TREE_POINT, repeats((400.0,), accept=4.0), status=TrialStatus.INVALID), stamp())
    folder.write(trial(2, TREE_POINT, status=TrialStatus.FAILED), stamp())
    rows = {row["trial"]: row for row in pq.read_table(folder.trials_dir).to_pylist()}
    assert [rows[n]["objective"] for n in (0, 1, 2)] == [pytest.approx(90.0), None, None]
    assert [rows[n]["output_tokens_per_s"] for n in (0, 1)] == [pytest.approx(90.0), None]
    assert [rows[n]["raw_output_tokens_per_s"] for n in (0, 1)] == [None, pytest.approx(400.0)]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused_in_an_ok_row(folder: ResultsFolder, odd: float) -> None:
    """RS-10: the writer refuses it, and a settled result is invalid, its finite numbers kept."""
    result = trial(1, TREE_POINT, repeats((odd, 95.0)))
    with pytest.raises(ValueError, match="only finite numbers"):
        folder.write(result, stamp())
    settled = settle(result, [])
    assert (settled.status, settled.reason) == (TrialStatus.INVALID, "not_finite")
    folder.write(settled, stamp())
    speeds = pq.read_table(folder.measurements_dir)["output_tokens_per_s"].to_pylist()
    assert speeds == [None, 95.0]


def test_a_bound_that_is_broken_is_a_number_and_not_a_status(folder: ResultsFolder) -> None:
    objective = Objective(subject_to=(Bound("ttft_p99_ms", "<=", 500.0),))
    folder.write(trial(0, PLAIN_POINT, repeats((90.0,), ttft_p99_ms=600.0)), stamp(objective=objective))
    (row,) = pq.read_table(folder.trials_dir).to_pylist()
    assert (row["status"], row["bounds_kept"]) == ("ok", False)
    assert row["objective_violation"] == pytest.approx(0.2)


def test_the_objective_can_be_had_from_the_rows_alone(folder: ResultsFolder) -> None:
    objective = Objective("ttft_p50_ms", ("chat@1",), "mean", (Bound("itl_p99_ms", "<=", 1e-7),))
    folder.write(baseline(), stamp(objective=objective))
    assert folder.read().objective == objective


def test_named_knobs_are_typed_and_all_others_are_text_in_maps(folder: ResultsFolder) -> None:
    folder.write(full_result(), stamp())
    (row,) = pq.read_table(folder.trials_dir, schema=arrow_schema("trials")).to_pylist()
    assert (row["cuda_graph"], row["cuda_graph_max_bs"], row["speculative_algorithm"]) == (True, 32, "EAGLE3")
    assert dict(row["flags"]) == {"mem_fraction_static": "0.85", "page_size": "unset", "trust": "true"}
    assert dict(row["env"]) == {"NCCL_ALGO": "Ring"}


def test_every_part_says_engine_and_whether_it_is_simulated(folder: ResultsFolder) -> None:
    folder.write(trial(0, PLAIN_POINT, repeats((90.0,)), engine="simulated"), stamp())
    for table in (folder.trials_dir, folder.measurements_dir):
        rows = pq.read_table(table).to_pylist()
        assert [(row["engine"], row["simulated"]) for row in rows] == [("simulated", True)]


def write_older(folder: ResultsFolder, without: str, version: bytes = b"1.0") -> None:
    """A trial as a version would have written it that lacked a column."""
    folder.write(baseline(), stamp())
    path = folder.trials_dir / "t0000-1.parquet"
    table = pq.ParquetFile(path).read().drop_columns([without])
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: version}), path)


def test_a_column_that_an_older_part_lacks_is_null_and_said(folder: ResultsFolder) -> None:
    """RS-02: nothing disappears because the first file does not have it."""
    write_older(folder, without="node")
    folder.write(replace(origin_tree(), node="node-1"), stamp())
    stored = folder.read()
    assert [result.node for result in stored.results] == [None, "node-1"]
    assert stored.problems == ["columns that trials of schema 1.0 lack, read as null: node"]


def test_a_column_of_a_newer_minor_version_is_named_and_the_rest_is_read(folder: ResultsFolder) -> None:
    folder.write(baseline(), stamp())
    path = folder.trials_dir / "t0000-1.parquet"
    table = pq.ParquetFile(path).read().append_column("colour", pa.array(["red"]))
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"1.9"}), path)
    stored = folder.read()
    assert stored.results == [baseline_as_read()]
    assert stored.problems == ["columns that trials of schema 1.9 have and this version does not know: colour"]


def test_rows_of_a_newer_major_schema_are_refused(folder: ResultsFolder) -> None:
    """RS-02: better no answer than a wrong one."""
    write_older(folder, without="node", version=b"2.0")
    with pytest.raises(StorageError, match=rf"has schema 2\.0, this specsearch reads up to {SCHEMA_VERSION}"):
        folder.read()


def test_unreadable_and_foreign_files_are_left_out_named_and_left_in_place(folder: ResultsFolder) -> None:
    """RS-04: one bad file costs only itself."""
    for number in range(4):
        folder.write(trial(number, TREE_POINT, repeats((90.0,))), stamp())
    truncated = folder.trials_dir / "t0001-1.parquet"
    truncated.write_bytes(truncated.read_bytes()[:-20])
    (folder.trials_dir / "t0002-1.parquet").write_bytes(b"")
    (folder.measurements_dir / "t0003-1.parquet").unlink()
    pq.write_table(pa.table({"a": [1]}), folder.trials_dir / "t0008-1.parquet")
    (folder.trials_dir / "notes.txt").write_text("mine")
    (folder.trials_dir / "t0009-1.parquet").write_bytes((folder.trials_dir / "t0000-1.parquet").read_bytes())
    stored = folder.read()
    assert [result.number for result in stored.results] == [0]
    said = {problem.split()[0].rpartition("/")[2]: problem for problem in stored.problems}
    assert "is not a part of this table" in said["notes.txt"]
    assert "cannot be read" in said["t0001-1.parquet"]
    assert "is empty" in said["t0002-1.parquet"]
    assert "measurements/t0003-1.parquet is absent" in said["t0003-1.parquet"]
    assert "not written by specsearch" in said["t0008-1.parquet"]
    assert "another trial than its name says" in said["t0009-1.parquet"]
    assert len(list(folder.trials_dir.iterdir())) == 7


def test_a_part_damaged_at_any_byte_is_read_exactly_or_left_out(folder: ResultsFolder) -> None:
    """RS-04: a flipped bit neither ends the read nor changes a number; pages carry checksums."""
    folder.write(full_result(), stamp())
    path = folder.trials_dir / "t0007-2.parquet"
    good = path.read_bytes()
    version = good.index(VERSION_KEY)  # another version may be refused as a whole
    for position in {*range(4, len(good), 149)} - {*range(version, version + 40)}:
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x55]) + good[position + 1 :])
        stored = folder.read()
        assert stored.results == [full_result()] or stored.problems


def test_a_trial_whose_part_is_damaged_can_be_measured_again(folder: ResultsFolder) -> None:
    """RS-04: the damaged file is kept under a hidden name, and plain readers get their folder back."""
    folder.write(baseline(), stamp())
    (folder.trials_dir / "t0000-1.parquet").write_bytes(b"")
    folder.write(baseline(), stamp())
    assert folder.read().results == [baseline_as_read()]
    assert (folder.path / ".unreadable-t0000-1.parquet").exists()
    assert pq.read_table(folder.trials_dir).num_rows == 1


def baseline_as_read() -> TrialResult:
    return replace(baseline(), facts=dict.fromkeys(TRIAL_FACTS))


def test_no_attempt_is_stored_twice(folder: ResultsFolder) -> None:
    folder.write(baseline(), stamp())
    with pytest.raises(StorageError, match="stored already"):
        folder.write(baseline((10.0,)), stamp())
    assert folder.read().results == [baseline_as_read()]


def test_measurements_without_a_committed_trial_do_not_count(folder: ResultsFolder) -> None:
    """The part in trials/ is the commit; a kill between the two writes leaves no half trial."""
    folder.write(baseline(), stamp())
    (folder.trials_dir / "t0000-1.parquet").unlink()
    assert folder.read().results == []
    folder.write(baseline((91.0,)), stamp())
    assert [len(result.measurements) for result in folder.read().results] == [1]


def test_an_empty_or_absent_folder_reads_as_no_rows_and_is_not_created(folder: ResultsFolder) -> None:
    stored = folder.read()
    assert (stored.results, stored.objective, stored.problems) == ([], None, [])
    assert not folder.path.exists()


def request(number: int) -> TrialRequest:
    return TrialRequest(number=number, attempt=1, kind=TrialKind.SEARCH, point=TREE_POINT)


def test_launches_without_a_row_are_known_after_a_kill(folder: ResultsFolder) -> None:
    """SR-05: a finished, a forgotten and a running trial; only the running one has no row."""
    for number in (0, 1, 2):
        folder.note_running(request(number))
    folder.write(trial(0, TREE_POINT, repeats((90.0,))), stamp())  # killed before the note was removed
    folder.forget_running(request(1))
    (folder.path / ".t0009-1.running.json").write_text("not ours")
    assert folder.running() == [request(2)]
    assert json.loads((folder.path / ".t0002-1.running.json").read_text())["point"] == TREE_POINT


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from specsearch.storage import ResultsFolder
from tests.storage.made_rows import TREE_POINT, repeats, stamp, trial

folder, first = ResultsFolder(Path(sys.argv[1])), int(sys.argv[2])
for number in range(first, first + 200):
    folder.write(trial(number, TREE_POINT, repeats((90.0, 91.0), accept=2.1)), stamp())
    print(number, flush=True)
"""


def python(*argv: str, **more: object) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", *argv],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("kill_after", [1, 17, 60])
def test_sigkill_at_any_moment_of_200_writes_leaves_a_readable_folder(folder: ResultsFolder, kill_after: int) -> None:
    """RS-04: everything that was said to be written is there, and plain readers see whole files only."""
    writer = python(WRITER, str(folder.path), "0")
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(kill_after)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.communicate(timeout=30)
    written = [int(line) for line in lines if line.endswith("\n")]
    stored = folder.read()
    assert stored.problems == []
    numbers = [result.number for result in stored.results]
    assert numbers in (written, [*written, len(written)])  # the last may be committed and not yet said
    assert len(written) < 200
    assert pq.read_table(folder.trials_dir).num_rows == len(numbers)
    assert pq.read_table(folder.measurements_dir).num_rows >= 2 * len(numbers)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from specsearch.errors import StorageError
from specsearch.storage import ResultsFolder
from tests.storage.made_rows import TREE_POINT, repeats, stamp, trial

folder = ResultsFolder(Path(sys.argv[1]))
folder.write(trial(0, TREE_POINT, repeats((90.0,))), stamp())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    folder.write(trial(1, TREE_POINT, repeats((90.0,))), stamp())
except StorageError as error:
    sys.exit(f"{error.exit_code} {error}")
"""


def test_a_write_that_the_disk_refuses_is_a_sentence_and_harms_no_earlier_row(folder: ResultsFolder) -> None:
    """SR-15: the limit on file size stands for a full disk; both fail in the middle of a write."""
    writer = python(FULL_DISK, str(folder.path))
    said = writer.communicate(timeout=30)[1]
    assert said.startswith("4 cannot write")
    assert "rows written before are untouched" in said
    assert [result.number for result in folder.read().results] == [0]
    assert sorted(path.name for path in folder.path.iterdir()) == ["logs", "measurements", "trials"]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot create .*Not a directory"):
        ResultsFolder(tmp_path / "file" / "results").create()


HOLDER = """
import sys, time
from pathlib import Path
from specsearch.storage import ResultsFolder

with ResultsFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_naming_its_holder_and_a_dead_holder_is_no_obstacle(folder: ResultsFolder) -> None:
    holder = python(HOLDER, str(folder.path), stdin=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(StorageError, match=f"in use by a live run: process {holder.pid} on .*, started 20"),
        folder.lock(),
    ):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=30)
    with folder.lock():
        assert str(os.getpid()) in (folder.path / ".lock").read_text()
    with folder.lock():
        pass


def test_both_tables_have_a_column_for_every_metric() -> None:
    for table in ("trials", "measurements"):
        assert METRICS.keys() <= set(arrow_schema(table).names)
