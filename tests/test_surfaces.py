"""Recorded surfaces are what their checksums say, read as any results folder, and belong to the space beside them."""

import hashlib
from pathlib import Path

import pytest

from specsearch.config import load_study
from specsearch.storage import ResultsFolder
from specsearch.trial import TrialStatus

SURFACES = sorted((Path(__file__).parents[1] / "results" / "surfaces").glob("*/"))


@pytest.fixture(params=SURFACES, ids=lambda path: path.name)
def surface(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_a_surface() -> None:
    assert SURFACES


def test_every_file_has_its_checksum_and_the_right_one(surface: Path) -> None:
    sums = dict(reversed(line.split("  ", 1)) for line in (surface / "SHA256SUMS").read_text().splitlines())
    files = {path.relative_to(surface).as_posix() for path in surface.rglob("*") if path.is_file()}
    assert sums.keys() == files - {"README.md", "SHA256SUMS"}
    for name, expected in sums.items():
        assert hashlib.sha256((surface / name).read_bytes()).hexdigest() == expected, name


def test_its_rows_are_whole_real_and_of_its_own_space(surface: Path) -> None:
    stored = ResultsFolder(surface).read()
    assert [problem for problem in stored.problems if not problem.startswith("columns that")] == []
    study = load_study(surface / "space.yaml")
    measured = [row for row in stored.results if row.status == TrialStatus.OK]
    assert len(measured) >= 8
    for row in measured:
        assert not row.simulated
        assert row.engine_version
        assert row.host_facts["gpu_names"]
        assert {m.load_point for m in row.measurements} == {point.name for point in study.load_points}
        assert all(name in study.space.by_name for name in row.point)
