"""Speculation that picks its number of steps by what is accepted, apart for ranges of batch sizes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# SGLang's own: the smallest batch of a range → the steps to choose from; 0 drafts nothing.
DEFAULT_CANDIDATES: Mapping[int, Sequence[int]] = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
_WEIGHT = 0.2  # of the latest step in the running mean
_INTERVAL = 5  # steps between two decisions
_WARM_UP = 10  # steps before the first
_SLACK = 0.75  # accepted drafts below the next smaller candidate that make it the better one


def candidates_of(config_path: str | None) -> dict[int, list[int]]:
    """The steps to choose from by smallest batch; raises ValueError for a configuration that names none."""
    if config_path is None:
        return {batch: list(steps) for batch, steps in DEFAULT_CANDIDATES.items()}
    entries = json.loads(Path(config_path).read_text())
    found = {int(key): sorted(set(entry["candidate_steps"])) for key, entry in entries.items() if key.isdecimal()}
    if not found:
        raise ValueError("speculative_adaptive_config must contain at least one integer-string BS key")
    return found


def all_steps(candidates: Mapping[int, Sequence[int]]) -> list[int]:
    """Every number of steps that may be run, ascending."""
    return sorted({steps for choice in candidates.values() for steps in choice})


@dataclass(slots=True)
class _Slot:
    """The choice for one range of batch sizes."""

    candidates: Sequence[int]
    current: int
    accepted: float = field(init=False)  # running mean of accepted drafts
    seen: int = 0

    def __post_init__(self) -> None:
        if self.current not in self.candidates:
            self.current = self.candidates[len(self.candidates) // 2]
        self.accepted = self.current - 1.0

    def learn(self, accepted: float) -> None:
        if self.current:
            self.accepted += _WEIGHT * (accepted - self.accepted)
        self.seen += 1
        if self.seen > _WARM_UP and (self.seen - _WARM_UP) % _INTERVAL == 0:
            self._decide()

    def _decide(self) -> None:
        index = self.candidates.index(self.current)
        smaller, larger = self.candidates[max(index - 1, 0)], self.candidates[min(index + 1, len(self.candidates) - 1)]
        if self.accepted <= max(smaller, 1) - _SLACK:
            self.current = smaller
        elif self.accepted > self.current - 0.5 or self.current == 0:
            self.current = larger


class AdaptiveSteps:
    """Learns from every verify step how many steps to draft next."""

    def __init__(self, candidates: Mapping[int, Sequence[int]], first: int) -> None:
        self.candidates = candidates
        self._slots = {batch: _Slot(list(steps), first) for batch, steps in sorted(candidates.items())}

    def steps_for(self, batch: int) -> int:
        """The steps that a batch of that size drafts now."""
        return self._slot(batch).current

    def learn(self, batch: int, accepted: float) -> None:
        """Take in the mean of accepted drafts of one step of a batch."""
        self._slot(batch).learn(accepted)

    def _slot(self, batch: int) -> _Slot:
        fitting = [start for start in self._slots if start <= batch]
        return self._slots[max(fitting, default=min(self._slots))]
