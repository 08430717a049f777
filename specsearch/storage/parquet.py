"""A results folder: one part per attempt and table, written the moment the attempt is decided."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specsearch.clock import Clock, SystemClock
from specsearch.errors import StorageError
from specsearch.objective import Objective
from specsearch.storage.fingerprint import Stamp
from specsearch.storage.paths import (
    locked,
    measured_path,
    note_path,
    part_name,
    saying,
    sync_folder,
    write_whole,
)
from specsearch.storage.reading import committed, read_measured
from specsearch.storage.rows import Row, measurement_rows, request_rows, trial_row
from specsearch.storage.schema import arrow_schema
from specsearch.trial import TrialKind, TrialRequest, TrialResult


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """Everything that a results folder says."""

    results: list[TrialResult] = field(default_factory=list)  # by number and attempt, measurements attached
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # fingerprint → its fields
    fingerprint_of: Mapping[tuple[int, int], str] = field(default_factory=dict)  # by trial number and attempt
    fingerprint: str | None = None  # of the row that ended last, as are study and objective; None without rows
    study: str | None = None
    objective: Objective | None = None
    problems: list[str] = field(default_factory=list)  # what was left out, and why; sentences


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """The rows of one study on disk; making one touches nothing."""

    path: Path
    clock: Clock = field(default_factory=SystemClock)

    @property
    def trials_dir(self) -> Path:
        return self.path / "trials"

    @property
    def measurements_dir(self) -> Path:
        return self.path / "measurements"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    def create(self) -> None:
        """Make the folder and its tables where they are absent."""
        with saying("create"):
            for folder in (self.trials_dir, self.measurements_dir, self.logs_dir):
                folder.mkdir(parents=True, exist_ok=True)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the folder for this run; StorageError names the live run that has it."""
        self.create()
        return locked(self.path, self.clock)

    def write(self, result: TrialResult, stamp: Stamp) -> None:
        """Store one attempt, whole or not at all; ValueError for an ok result with a number that is not finite."""
        row, repeats = trial_row(result, stamp), measurement_rows(result, stamp)
        requests = request_rows(result, stamp)
        self.create()
        name = part_name(result.number, result.attempt)
        self._set_aside_unreadable(name)
        if requests:
            self._write_part("requests", name, requests)
        if repeats:
            self._write_part("measurements", name, repeats)
        self._write_part("trials", name, [row])

    def read(self) -> StoredStudy:
        """Every committed attempt; what cannot be read is reported by name and left where it is.

        Raises StorageError for rows of a newer major schema.
        """
        problems: list[str] = []
        found = sorted(committed(self.path, problems), key=lambda attempt: attempt.key)
        newest = max(found, key=lambda attempt: (attempt.result.ended_at, attempt.key), default=None)
        return StoredStudy(
            results=[attempt.result for attempt in found],
            fingerprints={attempt.fingerprint: attempt.fingerprint_fields for attempt in found},
            fingerprint_of={attempt.key: attempt.fingerprint for attempt in found},
            fingerprint=newest.fingerprint if newest else None,
            study=newest.study if newest else None,
            objective=newest.objective if newest else None,
            problems=problems,
        )

    def note_running(self, request: TrialRequest) -> None:
        """Remember a launch that has no row yet, so that a killed run's unfinished trials are known."""
        self.create()
        note = {
            "number": request.number,
            "attempt": request.attempt,
            "kind": request.kind.value,
            "point": dict(request.point),
        }
        path = note_path(self.path, request.number, request.attempt)
        with saying("write"):
            write_whole(path, json.dumps(note).encode(), path.with_suffix(".tmp"))

    def note_measured(self, result: TrialResult, stamp: Stamp) -> None:
        """Keep what was measured before the teardown that may never end."""
        self.create()
        name = part_name(result.number, result.attempt)
        repeats = measurement_rows(result, stamp)
        if repeats:
            self._write_part("measurements", name, repeats)
        path = measured_path(self.path, result.number, result.attempt)
        with saying("write"):
            write_whole(path, _parquet("trials", [trial_row(result, stamp)]), path.with_suffix(".tmp"))

    def measured(self, request: TrialRequest) -> TrialResult | None:
        """What was measured of a launch that has no row; None when nothing was, or what there is cannot be read."""
        path = measured_path(self.path, request.number, request.attempt)
        return read_measured(self.path, path, part_name(request.number, request.attempt)) if path.exists() else None

    def forget_running(self, request: TrialRequest) -> None:
        """The launch has its row."""
        with saying("remove"):
            measured_path(self.path, request.number, request.attempt).unlink(missing_ok=True)
            note_path(self.path, request.number, request.attempt).unlink(missing_ok=True)

    def running(self) -> list[TrialRequest]:
        """Launches without a row: those of a live run, or what a killed one left unfinished."""
        notes = map(_read_note, sorted(self.path.glob(".t*.running.json")))
        return [note for note in notes if note and not self._is_committed(note)]

    def _is_committed(self, request: TrialRequest) -> bool:
        return (self.trials_dir / part_name(request.number, request.attempt)).exists()

    def _write_part(self, table: str, name: str, rows: list[Row]) -> None:
        content = _parquet(table, rows)
        with saying("write"):
            (self.path / table).mkdir(exist_ok=True)  # requests/ is there only where requests are kept
            write_whole(self.path / table / name, content, self.path / f".{table}-{name}.tmp")

    def _set_aside_unreadable(self, name: str) -> None:
        """A part of this name that a reader had to skip is kept under a hidden name; a good one is never replaced."""
        path = self.trials_dir / name
        if not path.exists():
            return
        if any(committed(self.path, [], only=name)):
            raise StorageError(f"{path} is stored already; no attempt is stored twice")
        with saying("rename"):
            path.rename(self.path / f".unreadable-{name}")
            sync_folder(self.trials_dir)


def _parquet(table: str, rows: list[Row]) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(table)), buffer, write_page_checksum=True)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def _read_note(path: Path) -> TrialRequest | None:
    try:
        note = json.loads(path.read_text())
        kind = TrialKind(note["kind"])
        return TrialRequest(number=int(note["number"]), attempt=int(note["attempt"]), kind=kind, point=note["point"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # written whole or not at all, so not ours
