"""A choice of accidents that every test run plays: each victim and each kind of phase once. `make chaos` plays all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.bystanders import Bystanders, bystanders
from tests.chaos.judge import Verdict
from tests.chaos.play import play, undisturbed_study
from tests.chaos.schedule import PHASES, RAY, Accident

CHOSEN = (
    "in-process/launch/guard/kill/1",
    "in-process/load/guard+driver/kill/1",
    "in-process/capture/rank/kill/1",
    "in-process/verify/everything/kill/1",
    "in-process/warm_up/helper/kill/1",
    "in-process/measure/leader/stop/1",
    "in-process/measure/group/term/1",
    "in-process/gpus_free/driver/kill/1",
    "in-process/teardown/driver/kill/1",
    "in-process/memory_free/driver/term/0",
    "in-process/row_write/driver/kill/1",
    "in-process/trials/disk/too_large/1",
    "ray/measure/group/term/1",
    "ray/measure/worker/kill/1",
    "ray/claim/gcs/kill/1",
)


def _parameters() -> Iterator[object]:
    for name in CHOSEN:
        accident = Accident.named(name)
        yield pytest.param(accident, id=name, marks=[pytest.mark.ray] if accident.executor == RAY else [])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """What the study says when nothing happens."""
    return undisturbed_study(tmp_path_factory.mktemp("undisturbed"), small=True)


@pytest.fixture(scope="module")
def standing_by(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bystanders]:
    with bystanders(tmp_path_factory.mktemp("bystanders")) as made:
        yield made


@pytest.mark.parametrize("accident", list(_parameters()))
def test_no_row_and_no_server_is_left_behind_by(
    accident: Accident, tmp_path: Path, undisturbed: Verdict, standing_by: Bystanders
) -> None:
    """RC-02 to RC-04, SR-01, SR-05, SR-15: and the same command goes on to the same verdict."""
    outcome = play(accident, tmp_path / "scene", undisturbed, standing_by, small=True)
    assert not outcome.missed, "the moment passed unseen, twice"
    assert outcome.findings.sentences() == [], outcome.last_words


def test_the_choice_strikes_in_every_phase_but_those_too_short_to_tell() -> None:
    chosen = [Accident.named(name) for name in CHOSEN]
    assert {accident.phase for accident in chosen} >= {*PHASES} - {"ready"}
    assert len(chosen) >= 12
