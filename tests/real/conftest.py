"""The studies that the tests of this folder look at; each runs once."""

from collections.abc import Iterator

import pytest

from tests.real.studies import HERE, Study, study_of


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """Every algorithm and every way to fail."""
    with study_of(HERE / "all-algorithms.yaml", tmp_path_factory.mktemp("all")) as made:
        yield made


@pytest.fixture(scope="session")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """The EAGLE-3 head under names of another algorithm, with the check of drafters off."""
    with study_of(HERE / "wrong-algorithm.yaml", tmp_path_factory.mktemp("unchecked")) as made:
        yield made
