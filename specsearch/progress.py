"""What a person sees while a study runs: one line for each trial that ends, and where the running ones are."""

import sys
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specsearch.clock import Clock
from specsearch.executors.driver import Event, StudyDriver, StudyEnded, TrialEnded, TrialMoved, TrialStarted
from specsearch.metrics import METRICS, duration
from specsearch.study import count_searched, lessons, ranked, typical_seconds
from specsearch.trial import Progress, TrialResult, TrialStatus

HEARTBEAT_S = 30.0  # a line at least so often where no line can be rewritten


class ProgressDisplay:
    """An observer of the driver that writes to a stream, usually stderr."""

    def __init__(self, clock: Clock, stream: TextIO | None = None) -> None:
        self._clock = clock
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True, auto_refresh=False)
        self._moved: dict[int, tuple[str, Progress]] = {}
        self._said_at = clock.monotonic()
        self.driver: StudyDriver | None = None

    def __call__(self, event: Event) -> None:
        with suppress(OSError):  # a study outlives the terminal that watched it
            self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case TrialStarted(request):
                again = f" (attempt {request.attempt})" if request.attempt > 1 else ""
                self._line(f"{self._place()} {request.name}{again} starts", quiet=self._console.is_terminal)
            case TrialMoved(request, progress):
                self._moved[request.number] = (request.name, progress)
                self._show_running()
            case TrialEnded(result):
                self._moved.pop(result.number, None)
                self._line(f"{self._place()} {_ended(result)}{self._outlook()}")
                if lessons([result]):
                    self._line(f'        from now on "{result.lesson}" holds for every trial')
            case StudyEnded(why):
                self._live.stop()
                self._line(f"search ended: {why}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        with suppress(OSError):
            self._live.stop()

    def _show_running(self) -> None:
        if self._console.is_terminal:
            if not self._live.is_started:
                self._live.start()
            lines = [_running(name, progress) for name, progress in self._moved.values()]
            self._live.update(Text("\n".join([*lines, f"{self._place()}{self._outlook()}"])), refresh=True)
        elif self._clock.monotonic() - self._said_at >= HEARTBEAT_S:
            for name, progress in self._moved.values():
                self._line(f"        {_running(name, progress)}")

    def _line(self, text: str, *, quiet: bool = False) -> None:
        if not quiet:
            self._said_at = self._clock.monotonic()
            self._console.print(text, markup=False)

    def _place(self) -> str:
        if self.driver is None:
            return ""
        budget = self.driver.study.budget.trials
        done = count_searched(self.driver.results)
        return f"[{done}/{budget}]" if budget is not None else f"[{done}]"

    def _outlook(self) -> str:
        """Best so far, and how long the rest may take."""
        driver = self.driver
        if driver is None:
            return ""
        best = next(iter(ranked(driver.results, driver.study.objective)), None)
        words = [f"best so far t{best.number:04d} {_score(best, driver)}"] if best else []
        left = seconds_left(driver)
        words += [f"about {duration(left)} left"] if left else []
        return "".join(f" · {word}" for word in words)


def _ended(result: TrialResult) -> str:
    took = duration(result.ended_at - result.started_at)
    if result.status != TrialStatus.OK:
        return f"{result.name}: {result.status} ({result.reason}) after {took}"
    speeds = ", ".join(dict.fromkeys(_speed(result)))
    return f"{result.name}: {speeds} in {took}"


def _speed(result: TrialResult) -> list[str]:
    by_point: dict[str, list[float]] = {}
    for measurement in result.measurements:
        value = measurement.values.get("output_tokens_per_s")
        if value is not None:
            by_point.setdefault(measurement.load_point, []).append(value)
    return [f"{sum(v) / len(v):,.1f} tokens/s at {name}" for name, v in by_point.items()]


def _score(result: TrialResult, driver: StudyDriver) -> str:
    objective = driver.study.objective
    score = objective.score(result.measurements)
    metric = METRICS[objective.metric]
    return metric.format(score if metric.better >= 0 or not score else 1 / score)


def _running(name: str, progress: Progress) -> str:
    speed = f"{progress.output_tokens_per_s:,.1f} tokens/s" if progress.output_tokens_per_s else ""
    accept = f"accept length {progress.accept_length:.2f}" if progress.accept_length else ""
    return " · ".join(filter(None, (name, progress.phase, progress.note, speed, accept)))


def seconds_left(driver: StudyDriver) -> float | None:
    """How long the rest of the budget may take; None where nothing is known yet or nothing limits it."""
    budget, typical = driver.study.budget, typical_seconds(driver.results)
    limits: list[float] = []
    if budget.trials is not None and typical:
        slots = max(1, len(driver.nodes - driver.unfit.keys()))
        limits.append(max(0, budget.trials - count_searched(driver.results)) * typical / slots)
    if budget.wall_time_s is not None:
        limits.append(max(0.0, budget.wall_time_s - driver.elapsed_s))
    return min(limits, default=None)
