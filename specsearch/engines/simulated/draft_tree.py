"""Accept length from a draft tree.

At each depth the target's token is the drafter's r-th guess with a probability that falls with r and with depth. The
tree holds the `num_draft_tokens - 1` likeliest of the candidates that `num_steps` rounds of top-k produce, as in
EAGLE-2. A verify step accepts a node exactly when the target took the path to it, so the expected number of accepted
drafts is the sum of the nodes' path probabilities; for top-k 1 this is a chain.
"""

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

FADING = 0.94  # each depth is that much harder than the one before: the drafter feeds on its own states
SECOND_GUESS = (
    0.4  # the second guess catches this share of the misses, times the chance of the first: skill shows in all
)
LATER_GUESSES = 0.6  # each later guess catches that much of what the one before caught, so all together stay below 1
HEAT = 0.2  # share of the first guess's chance lost at temperature 1

# Chance that the first guess is right at depth 1 (drafter of skill 1, temperature 0). With 3 steps, top-k 4 and 16
# tokens, chat gives about the 2.1 to 2.5 of the origin story; text of random words hardly accepts anything.
FIRST_GUESS: Mapping[str, float] = {"chat": 0.54, "code": 0.72, "math": 0.66, "long": 0.48, "random": 0.06}

Path = tuple[int, ...]  # ranks from the root


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What the three speculative numbers of a launch say; `num_draft_tokens` counts the root."""

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int


def guess_chances(text_kind: str, skill: float, temperature: float, depth: int, topk: int) -> list[float]:
    """Chance of each of the drafter's guesses, best first, at a depth counted from 1."""
    first = FIRST_GUESS[text_kind] * skill * (1 - HEAT * min(temperature, 2.0))
    first = min(first, 0.95) * FADING ** (depth - 1)
    later = ((1 - first) * first * SECOND_GUESS * LATER_GUESSES**rank for rank in range(topk - 1))
    return [first, *later]


@dataclass(frozen=True)
class DraftTree:
    """One tree for one kind of text: which paths are verified and how often each is taken."""

    shape: TreeShape
    chances: tuple[tuple[float, ...], ...]  # per depth, per rank

    @classmethod
    def grow(cls, shape: TreeShape, text_kind: str, skill: float, temperature: float = 0.0) -> "DraftTree":
        """The tree for a text kind of FIRST_GUESS and a drafter's skill; skill 0 accepts nothing."""
        depths = range(1, shape.num_steps + 1)
        return cls(
            shape, tuple(tuple(guess_chances(text_kind, skill, temperature, d, shape.eagle_topk)) for d in depths)
        )

    def chance(self, path: Path) -> float:
        """Probability that the target's text begins with this path."""
        return math.prod(self.chances[depth][rank] for depth, rank in enumerate(path))

    @cached_property
    def nodes(self) -> frozenset[Path]:
        """The paths that are verified, the root left out."""
        best = heapq.nlargest(self.shape.num_draft_tokens - 1, self._candidates(), key=lambda path: self.chance(path))
        return frozenset(best)

    def _candidates(self) -> list[Path]:
        """All candidates: top-k at the first round, then top-k children of the top-k likeliest of the round before."""
        ranks = range(self.shape.eagle_topk)
        beam: Sequence[Path] = [()]
        found: list[Path] = []
        for _ in range(self.shape.num_steps):
            layer = [(*path, rank) for path in beam for rank in ranks]
            found += layer
            beam = heapq.nlargest(self.shape.eagle_topk, layer, key=self.chance)
        return found

    @cached_property
    def expected_accept_length(self) -> float:
        """Mean tokens per verify step, the bonus token counted."""
        return 1 + math.fsum(map(self.chance, self.nodes))

    def accepted_drafts(self, rng: random.Random) -> int:
        """How many drafts one verify step accepts."""
        path: Path = ()
        for chances in self.chances:
            path = (*path, _rank(rng.random(), chances))
            if path not in self.nodes:
                return len(path) - 1
        return len(path)


def _rank(draw: float, chances: Sequence[float]) -> int:
    """The guess that is right; one beyond the last when none is."""
    for rank, chance in enumerate(chances):
        draw -= chance
        if draw < 0:
            return rank
    return len(chances)
