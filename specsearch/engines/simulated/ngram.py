"""Accept length without a drafter: guesses are what followed the last words when they stood in the text before."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from specsearch.engines.simulated.draft_tree import HEAT, TreeShape

# Chance that the last words have been seen with what follows them, by kind of text; code repeats itself most.
FOUND: Mapping[str, float] = {"chat": 0.2, "code": 0.45, "math": 0.35, "long": 0.3, "random": 0.01}
GOES_ON = 0.8  # chance of each further word of a phrase that was found


@dataclass(frozen=True, slots=True)
class NgramDraft:
    """The guesses for one kind of text."""

    shape: TreeShape
    found: float

    @classmethod
    def of(cls, shape: TreeShape, text_kind: str, temperature: float = 0.0) -> "NgramDraft":
        """The guesses for a text kind of FOUND."""
        return cls(shape, FOUND[text_kind] * (1 - HEAT * min(temperature, 2.0)))

    @property
    def expected_accept_length(self) -> float:
        """Mean tokens per verify step, the bonus token counted."""
        return 1 + self.found * (1 - GOES_ON ** (self.shape.num_draft_tokens - 1)) / (1 - GOES_ON)

    def accepted_drafts(self, rng: random.Random) -> int:
        """How many drafts one verify step accepts."""
        accepted = int(rng.random() < self.found)
        while 0 < accepted < self.shape.num_draft_tokens - 1 and rng.random() < GOES_ON:
            accepted += 1
        return accepted
