"""Watching over Ray from outside: its end, its silence, and that of single trials. Nothing here ever waits for Ray."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Protocol

from specsearch.clock import Clock

# The command does without Python's own end when one of these still runs (cli.run_command).
TUNE_THREAD, GOODBYE_THREAD = "specsearch-tune", "specsearch-goodbye"
LOOK_S = 0.2
DEAF_S = 45.0  # after 60 s without its control service Ray ends the whole process


class Turning(Protocol):
    """A loop that goes round as long as Ray answers."""

    turns: int

    @property
    def is_with_driver(self) -> bool:
        """Whether it is at work for the study just now, rather than for Ray."""


def never_lost() -> str | None:
    """Of a Ray that somebody else owns nobody tells us."""
    return None


def in_tune_thread(work: Callable[[], None]) -> "Future[None]":
    """Run what calls Ray in a thread that does not keep the process alive."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks the future
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name=TUNE_THREAD, daemon=True).start()
    return future


def wait_for_end(
    ended: "Future[None]", loop: Turning, lost: Callable[[], str | None], *, deaf_s: float = DEAF_S
) -> str | None:
    """Wait for the thread, and raise what it raised; a sentence where its end cannot be waited for any more.

    Silence is counted in looks, so that a study that was suspended does not blame Ray for it.
    """
    silent_s, turns = 0.0, 0
    while not wait([ended], timeout=LOOK_S).done:
        why = lost()
        if why is not None:
            return why
        is_silent = loop.turns == turns and turns > 0 and not loop.is_with_driver
        silent_s = silent_s + LOOK_S if is_silent else 0.0
        turns = loop.turns
        if silent_s > deaf_s:
            return f"Ray has not answered for {deaf_s:g} s"
    ended.result()
    return None


class Silences:
    """How long trials have reported nothing, counted in short steps: a study that was suspended blames none of them."""

    def __init__(self, clock: Clock) -> None:
        self.ended: dict[str, str] = {}  # trial → why its process was ended, a sentence
        self._clock = clock
        self._looked_at_s = clock.monotonic()
        self._silent_s: dict[str, float] = {}

    def begin(self, trial_id: str) -> None:
        """It was heard of just now."""
        self._silent_s[trial_id] = 0.0

    def look(self, trial_ids: Sequence[str], limit_s: float) -> list[str]:
        """Those that have just been silent for too long."""
        now = self._clock.monotonic()
        passed_s = min(now - self._looked_at_s, 1.0)
        self._looked_at_s = now
        found = []
        for trial_id in trial_ids:
            before_s = self._silent_s.get(trial_id, 0.0)
            self._silent_s[trial_id] = before_s + passed_s
            if before_s <= limit_s < before_s + passed_s:
                self.ended[trial_id] = f"the trial's process reported nothing for {limit_s:g} s and was ended"
                found.append(trial_id)
        return found
