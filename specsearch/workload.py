"""What is asked of the engine: prompts, lengths, concurrency, repeats."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

TEXT = "text"
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Workload:
    """A named list of prompts.

    `kind` is `text`, or `random` for prompts of random words, whose acceptance says nothing about real traffic.
    """

    name: str
    prompts: tuple[str, ...]
    kind: str = TEXT
    temperature: float = 0.0

    @property
    def digest(self) -> str:
        """Twelve hex digits that change with any prompt or sampling setting."""
        text = json.dumps([self.prompts, self.kind, self.temperature])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One workload at one fixed concurrency; every trial of a study measures all load points."""

    workload: Workload
    concurrency: int
    output_tokens: int = 256
    requests: int | None = None  # per repeat; None: every prompt once, and at least twice the concurrency
    repeats: int = 3

    @property
    def name(self) -> str:
        return f"{self.workload.name}@{self.concurrency}"

    @property
    def requests_per_repeat(self) -> int:
        return self.requests or max(len(self.workload.prompts), 2 * self.concurrency)

    def prompts(self) -> Iterator[str]:
        """The prompts of one repeat.

        A prompt that comes round again starts with the number of its request, so that no cached prefix answers it.
        """
        prompts = self.workload.prompts
        for index in range(self.requests_per_repeat):
            prompt = prompts[index % len(prompts)]
            yield prompt if index < len(prompts) else f"({index + 1}) {prompt}"
