"""Time as an argument: nothing outside this module sleeps or reads the time."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def time(self) -> float:
        """Seconds since the epoch, UTC."""

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""


class SystemClock:
    """The computer's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def wait_until(condition: Callable[[], bool], *, timeout_s: float, poll_s: float, clock: Clock) -> bool:
    """Poll until the condition holds; False when the time ran out first."""
    deadline = clock.monotonic() + timeout_s
    while not condition():
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(poll_s)
    return True
