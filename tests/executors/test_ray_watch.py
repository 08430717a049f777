"""Watching over Ray without waiting for it."""

from dataclasses import dataclass
from functools import partial
from threading import Event

import pytest

from specsearch.executors.ray_watch import Silences, in_tune_thread, never_lost, wait_for_end
from tests.fakes import FakeClock


@dataclass
class Loop:
    """A loop that hangs, in Ray or in the study's own work."""

    turns: int = 1
    is_with_driver: bool = False


def waiting(hang: Event) -> None:
    hang.wait(60)


def broken() -> None:
    raise ZeroDivisionError


def test_what_the_thread_raises_is_raised_and_its_end_is_the_end() -> None:
    assert wait_for_end(in_tune_thread(lambda: None), Loop(), never_lost) is None
    with pytest.raises(ZeroDivisionError):
        wait_for_end(in_tune_thread(broken), Loop(), never_lost)


def test_a_lost_ray_ends_the_wait_while_the_thread_hangs() -> None:
    hang = Event()
    try:
        assert wait_for_end(in_tune_thread(partial(waiting, hang)), Loop(), lambda: "gone") == "gone"
    finally:
        hang.set()


def test_a_deaf_ray_ends_the_wait_and_slow_work_of_the_study_does_not() -> None:
    hang = Event()
    ended = in_tune_thread(partial(waiting, hang))
    assert wait_for_end(ended, Loop(), never_lost, deaf_s=0.5) == "Ray has not answered for 0.5 s"
    at_work = Loop(is_with_driver=True)
    looks = iter(range(6))
    assert (
        wait_for_end(ended, at_work, lambda: None if next(looks, None) is not None else "enough", deaf_s=0.5)
        == "enough"
    )
    hang.set()


def test_a_silent_trial_is_named_once_and_one_that_is_heard_is_not() -> None:
    clock = FakeClock()
    silences = Silences(clock)
    found = []
    for _ in range(200):
        clock.sleep(0.5)
        silences.begin("talks")
        found += silences.look(["talks", "silent"], 60)
    assert found == ["silent"]
    assert "nothing for 60 s" in silences.ended["silent"]


def test_a_study_that_was_suspended_blames_no_trial() -> None:
    clock = FakeClock()
    silences = Silences(clock)
    for _ in range(10):
        clock.sleep(3600)
        assert silences.look(["t"], 60) == []
