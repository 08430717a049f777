"""The chaos suite itself: its schedule repeats, and each of its figures can be other than zero."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.judge import FIGURES, Findings, Verdict, judge_rows, judge_verdict, judge_words
from tests.chaos.scene import MARK, Scene, wait_until
from tests.chaos.schedule import IN_PROCESS, RAY, Accident, pool, schedule

ROWS = [
    {"trial": 0, "attempt": 1, "status": "ok", "point": "plain", "effective_key": "a", "objective": 50.0},
    {"trial": 1, "attempt": 1, "status": "ok", "point": "chain", "effective_key": "b", "objective": 70.0},
]


def test_the_same_seed_brings_the_same_accidents_and_another_seed_others() -> None:
    assert schedule(200, 1) == schedule(200, 1)
    assert set(schedule(200, 1)) != set(schedule(200, 2))
    assert len(set(schedule(200, 1))) == 200


def test_a_schedule_of_two_hundred_has_every_kind_of_accident() -> None:
    kinds = {accident.kind for accident in pool()}
    assert {accident.kind for accident in schedule(200, 3)} == kinds
    assert sum(accident.executor == RAY for accident in schedule(200, 3)) == 50


def test_an_accident_is_found_again_by_its_name() -> None:
    accident = schedule(1, 5)[0]
    assert Accident.named(accident.name) == accident
    with pytest.raises(ValueError, match="no accident"):
        Accident.named("in-process/measure/nobody/kill/1")


def test_rows_that_are_gone_or_have_changed_are_lost() -> None:
    findings = Findings()
    judge_rows({"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "other"}, ROWS, findings)
    assert findings.counts == {**dict.fromkeys(findings.said, 0), "rows_lost": 2}


def test_a_configuration_measured_twice_is_doubled() -> None:
    findings = Findings()
    judge_rows({}, {}, [*ROWS, {**ROWS[1], "trial": 2}], findings)
    assert findings.counts["rows_doubled"] == 2  # its point, and what it resolved to
    assert not findings.survived


def test_another_best_or_a_missing_configuration_changes_the_verdict() -> None:
    undisturbed = Verdict.of(ROWS)
    findings = Findings()
    judge_verdict(ROWS, undisturbed, findings)
    assert findings.survived
    judge_verdict([ROWS[0], {**ROWS[1], "objective": 40.0}], undisturbed, findings)
    judge_verdict(ROWS[:1], undisturbed, findings)
    assert findings.counts["verdict_changed"] == 2


def test_a_traceback_or_an_undocumented_code_is_badly_said() -> None:
    findings = Findings()
    judge_words(0, "", findings, killed=False, expected={0})
    assert findings.survived
    judge_words(70, "Traceback (most recent call last):\n", findings, killed=False, expected={0})
    assert findings.counts["badly_said"] == 2
    assert "badly_said" not in FIGURES


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Scene]:
    """A scene with a server of it still there, which has left its parents and its group."""
    scene = Scene(tmp_path / "scene", IN_PROCESS)
    env = {**os.environ, MARK: scene.mark, "SPECSEARCH_LAUNCH": "x", "SPECSEARCH_TRIAL": "3-1-abc"}
    server = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], env=env, start_new_session=True
    )
    try:
        yield scene
    finally:
        server.kill()
        server.wait()


def test_a_server_that_is_left_is_seen_and_cleaned(left: Scene) -> None:
    assert wait_until(lambda: [seen.trial for seen in left.processes()] == [3], 10)
    left.clean()
    assert wait_until(lambda: not left.processes(), 10)
