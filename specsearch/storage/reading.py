"""Committed attempts from a results folder, part by part, so that one bad file costs only itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specsearch.errors import StorageError
from specsearch.objective import Objective
from specsearch.storage.paths import parse_part_name, saying
from specsearch.storage.rows import Row, result_of, text_map
from specsearch.storage.schema import SCHEMA_VERSION, TABLES, VERSION_KEY, arrow_schema
from specsearch.trial import TrialResult


@dataclass(frozen=True, slots=True)
class Committed:
    """One attempt as it was stored."""

    result: TrialResult
    study: str
    fingerprint: str
    fingerprint_fields: dict[str, str]
    objective: Objective

    @property
    def key(self) -> tuple[int, int]:
        return self.result.number, self.result.attempt


class _LeftOut(Exception):
    """Why a part cannot be used."""


def committed(folder: Path, problems: list[str], only: str | None = None) -> Iterator[Committed]:
    """Every attempt whose part in trials/ can be read, `only` that one part where it is named.

    What is left out, and columns that other versions have, go to `problems` as sentences. Raises StorageError for a
    newer major schema: it would be read wrongly, not partly.
    """
    for path in _parts(folder / "trials", only):
        try:
            yield _attempt(folder, path, problems)
        except _LeftOut as why:
            problems.append(f"{path.relative_to(folder)} {why}; it is left out and left in place")


def read_measured(folder: Path, path: Path, name: str) -> TrialResult | None:
    """A result that waits for its commit, its repeats in the part `name`; None where it is not whole."""
    try:
        rows = _read(path, "trials", [])
        return _committed(rows[0], _repeats(folder / "measurements" / name, rows[0], [])).result
    except (_LeftOut, IndexError, ValueError, TypeError, KeyError):
        return None


def _parts(table: Path, only: str | None) -> list[Path]:
    if not table.exists():
        return []
    with saying("read"):
        names = sorted(path.name for path in table.iterdir() if not path.name.startswith((".", "_")))
    return [table / name for name in names if only in (None, name)]


def _attempt(folder: Path, path: Path, problems: list[str]) -> Committed:
    key = parse_part_name(path.name)
    if key is None:
        raise _LeftOut("is not a part of this table")
    rows = _read(path, "trials", problems)
    if [(row["trial"], row["attempt"]) for row in rows] != [key]:
        raise _LeftOut("holds another trial than its name says")
    try:
        return _committed(rows[0], _repeats(folder / "measurements" / path.name, rows[0], problems))
    except (ValueError, TypeError, KeyError) as error:
        raise _LeftOut(f"holds a row that is not ours: {error}") from None


def _committed(row: Row, repeats: list[Row]) -> Committed:
    return Committed(
        result=result_of(row, repeats),
        study=str(row["study"]),
        fingerprint=str(row["fingerprint"]),
        fingerprint_fields=text_map(row, "fingerprint_fields") or {},
        objective=Objective.from_spec(str(row["objective_spec"])),
    )


def _repeats(path: Path, row: Row, problems: list[str]) -> list[Row]:
    expected = row["measurement_rows"]
    if not expected:
        return []
    try:
        rows = _read(path, "measurements", problems)
    except _LeftOut as why:
        raise _LeftOut(f"has measurements that cannot be had: measurements/{path.name} {why}") from None
    if len(rows) != expected:
        raise _LeftOut(f"should have {expected} rows in measurements/{path.name}, which has {len(rows)}")
    return rows


def _read(path: Path, table: str, problems: list[str]) -> list[Row]:
    if not path.is_file():
        raise _LeftOut("is absent")
    if not path.stat().st_size:
        raise _LeftOut("is empty")
    try:
        found = pq.ParquetFile(path, page_checksum_verification=True).read()
        names = found.column_names
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is no text
        raise _LeftOut(f"cannot be read ({_first_line(error)})") from None
    if len(set(names)) != len(names):
        raise _LeftOut("has two columns of one name")
    version = (found.schema.metadata or {}).get(VERSION_KEY, b"").decode(errors="replace")
    major = version.partition(".")[0]
    if not major.isdigit():
        raise _LeftOut("was not written by specsearch")
    if int(major) > int(SCHEMA_VERSION.partition(".")[0]):
        raise StorageError(
            f"{path} has schema {version}, this specsearch reads up to {SCHEMA_VERSION}: "
            "use the newer specsearch that wrote it"
        )
    return _with_todays_columns(found, table, version, problems)


def _with_todays_columns(found: pa.Table, table: str, version: str, problems: list[str]) -> list[Row]:
    schema = arrow_schema(table)
    names = set(found.column_names)
    absent = [column.name for column in TABLES[table] if column.name not in names]
    unknown = sorted(names - {column.name for column in TABLES[table]})
    for columns, what in ((absent, "lack, read as null:"), (unknown, "have and this version does not know:")):
        named = ", ".join(columns[:3]) + (f" and {len(columns) - 3} more" if len(columns) > 3 else "")
        problem = f"columns that {table} of schema {version} {what} {named}"
        if columns and problem not in problems:
            problems.append(problem)
    for name in absent:
        found = found.append_column(schema.field(name), pa.nulls(len(found), schema.field(name).type))
    try:
        same = found.schema.equals(schema)  # nearly always; a cast costs as much as the read
        rows: list[Row] = (found if same else found.select(schema.names).cast(schema)).to_pylist()
    except (pa.ArrowException, ValueError) as error:  # other types, or bytes that are no text
        raise _LeftOut(f"has columns that cannot be read ({_first_line(error)})") from None
    return rows


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
