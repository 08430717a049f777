"""What an accident must not have done, as five figures, and two more that are about words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

FIGURES = ("rows_lost", "rows_doubled", "servers_left", "strangers_harmed", "driver_hung")
MORE = ("verdict_changed", "badly_said")

_NEVER_SAID = (
    "Traceback (most recent call last)",
    "this is a bug of specsearch",
    "Trials did not complete",
    "--- Logging error ---",
)


@dataclass(slots=True)
class Findings:
    """Each figure's sentences; an accident is survived when there is none."""

    said: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in (*FIGURES, *MORE)})

    def add(self, figure: str, *sentences: str) -> None:
        self.said[figure] += sentences

    @property
    def counts(self) -> dict[str, int]:
        return {figure: len(sentences) for figure, sentences in self.said.items()}

    @property
    def survived(self) -> bool:
        return not any(self.said.values())

    def sentences(self) -> list[str]:
        return [f"{figure}: {sentence}" for figure, sentences in self.said.items() for sentence in sentences]


Row = Mapping[str, object]


def read_rows(results: Path) -> list[Row]:
    """The table of trials as anybody would read it."""
    if not any((results / "trials").glob("t*.parquet")):
        return []
    rows: list[Row] = pq.read_table(results / "trials").to_pylist()
    return sorted(rows, key=lambda row: (row["trial"], row["attempt"]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a finished study says: what it measured, and what is best."""

    measured: frozenset[str]
    best: str

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Verdict":
        ok = [row for row in rows if row["status"] == "ok"]
        best = max(ok, key=lambda row: float(str(row["objective"])), default=None)
        return cls(frozenset(str(row["point"]) for row in ok), str(best["point"]) if best else "")


def judge_rows(before: Mapping[str, str], after: Mapping[str, str], rows: Sequence[Row], findings: Findings) -> None:
    """No stored row is gone or changed, and nothing was measured twice."""
    findings.add("rows_lost", *(f"{name} is gone" for name in before if name not in after))
    findings.add(
        "rows_lost", *(f"{name} has changed" for name in before if after.get(name, before[name]) != before[name])
    )
    keys = Counter((row["trial"], row["attempt"]) for row in rows)
    findings.add("rows_doubled", *(f"trial and attempt {key} stand in {n} rows" for key, n in keys.items() if n > 1))
    for column in ("point", "effective_key"):
        measured = Counter(row[column] for row in rows if row["status"] == "ok" and row[column])
        twice = [f"{column} {value} was measured {n} times" for value, n in measured.items() if n > 1]
        findings.add("rows_doubled", *twice)


def judge_verdict(rows: Sequence[Row], undisturbed: Verdict, findings: Findings) -> None:
    """The study ends where it would have ended without the accident."""
    verdict = Verdict.of(rows)
    missing, more = undisturbed.measured - verdict.measured, verdict.measured - undisturbed.measured
    findings.add("verdict_changed", *(f"{point} was never measured" for point in sorted(missing)))
    findings.add("verdict_changed", *(f"{point} was measured besides" for point in sorted(more)))
    if not missing and verdict.best != undisturbed.best:
        findings.add("verdict_changed", f"the best is {verdict.best} instead of {undisturbed.best}")


def judge_words(code: int, error: str, findings: Findings, *, killed: bool, expected: set[int]) -> None:
    """A documented exit code, and sentences instead of traces."""
    if not killed and code not in expected:
        findings.add("badly_said", f"exit code {code}; {sorted(expected)} would be right")
    findings.add("badly_said", *(f"stderr says {words!r}" for words in _NEVER_SAID if words in error))
