"""What tests use in place of the real thing."""

from dataclasses import dataclass


@dataclass
class FakeClock:
    """Time that passes only when somebody sleeps; `now` is both the monotonic time and the time of day."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
