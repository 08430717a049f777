"""What trials were pinned to beyond their points, and what the server changed of what it was asked."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specsearch.search_space import Value
from specsearch.trial import TrialResult


@dataclass(frozen=True, slots=True)
class Pin:
    """A value of the baseline that later trials were given."""

    name: str
    value: str
    trials: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """A setting that the server changed, in the same way in all these trials."""

    name: str
    asked: str | None  # None where the server's words were of another form; `name` is then the whole sentence
    runs: str | None
    trials: tuple[int, ...]


def pins(rows: Sequence[TrialResult]) -> tuple[Pin, ...]:
    """Every pinned value with the trials that had it, by name."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for name, value in row.pins.items():
            found.setdefault((name, _spelled(value)), []).append(row.number)
    return tuple(Pin(name, value, tuple(numbers)) for (name, value), numbers in sorted(found.items()))


def overrides(rows: Iterable[TrialResult]) -> tuple[Override, ...]:
    """Every change that servers made, with the trials it was made in, by name."""
    found: dict[str, list[int]] = {}
    for row in rows:
        for sentence in dict.fromkeys(row.overridden):
            found.setdefault(sentence, []).append(row.number)
    made = (_override(sentence, tuple(numbers)) for sentence, numbers in found.items())
    return tuple(sorted(made, key=lambda override: (override.name, override.trials)))


def _override(sentence: str, trials: tuple[int, ...]) -> Override:
    match = _CHANGE.fullmatch(sentence)
    return (
        Override(match["name"], match["asked"], match["runs"], trials)
        if match
        else Override(sentence, None, None, trials)
    )


_CHANGE = re.compile(r"(?P<name>[^:]+): asked (?P<asked>.*), runs (?P<runs>.*)")


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
