"""One request in the simulated server, and what its answers say."""

import asyncio
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from specsearch.engines.simulated.draft_tree import TreeShape
from specsearch.engines.simulated.texts import Reply, kind_of, seed_of

DEFAULT_NEW_TOKENS = 128  # SGLang's own
_NATURAL_END = (48, 400)  # tokens after which a reply ends where the end of text is obeyed


class Draft(Protocol):
    """Guesses for one kind of text, verified in one step."""

    @property
    def shape(self) -> TreeShape: ...

    def accepted_drafts(self, rng: random.Random) -> int:
        """How many of them one verify step accepts."""


@dataclass(slots=True, eq=False)
class Request:
    """What was asked, how far it is, and what of that may be seen already."""

    prompt: str
    prompt_ids: tuple[str, ...]  # words, or the ids as text
    max_new_tokens: int
    ignore_eos: bool
    temperature: float
    vocabulary: int
    internal: bool = False  # warm-up and health checks: no faults, no counters
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    weight_version: str = "default"
    seed: str = ""
    reply_word: str | None = None  # a reply that repeats this word
    draft: Draft | None = None  # of the next step; None: plain decoding

    completion_tokens: int = 0
    cached_tokens: int = 0
    verify_steps: int = 0
    correct_drafts: int = 0
    proposed_drafts: int = 0
    histogram: list[int] = field(default_factory=list)
    finish: Mapping[str, object] | None = None
    error: str | None = None

    seen_tokens: int = 0  # published
    seen_finish: Mapping[str, object] | None = None
    received_s: float = 0.0
    finished_s: float = 0.0
    published: asyncio.Event = field(default_factory=asyncio.Event)
    last_token: int = 0  # after so many it is finished
    kind: str = field(init=False)  # of its text
    reply: Reply = field(init=False)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.kind = kind_of(self.prompt)
        self.reply = Reply(self.prompt, self.vocabulary, repeat=self.reply_word)
        # Greedy decoding accepts the same drafts every time; sampling differs from launch to launch.
        self.rng = seed_of("accept", self.prompt, self.seed if self.temperature > 0 else "")
        natural = seed_of("end", self.prompt).randint(*_NATURAL_END)
        self.last_token = self.max_new_tokens if self.ignore_eos else min(self.max_new_tokens, natural)

    @property
    def held_tokens(self) -> int:
        """Tokens in the KV cache."""
        return len(self.prompt_ids) + self.completion_tokens

    def advance(self) -> int:
        """One decode step; returns the drafts accepted. Tokens beyond the end are cut, the counts are not."""
        accepted = 0
        if self.draft is not None:
            accepted = self.draft.accepted_drafts(self.rng)
            self.verify_steps += 1
            self.proposed_drafts += self.draft.shape.num_draft_tokens - 1
            self.correct_drafts += accepted
            self.histogram += [0] * (accepted + 1 - len(self.histogram))
            self.histogram[accepted] += 1
        self.add_tokens(accepted + 1)
        return accepted

    def add_tokens(self, tokens: int) -> None:
        """Append tokens; the request finishes when it has all."""
        self.completion_tokens = min(self.completion_tokens + tokens, self.last_token)
        if self.completion_tokens >= self.last_token:
            by_length = self.completion_tokens >= self.max_new_tokens
            self.finish = (
                {"type": "length", "length": self.max_new_tokens} if by_length else {"type": "stop", "matched": 2}
            )

    def abort(self, message: str = "Abort by user request") -> None:
        """End it as SGLang ends an aborted request."""
        self.finish = {"type": "abort", "message": message, "status_code": 500, "err_type": "BadRequestError"}

    def publish(self) -> None:
        """Let the client see what was computed so far."""
        self.seen_tokens, self.seen_finish = self.completion_tokens, self.finish
        self.published.set()

    async def news(self) -> None:
        """Wait for what was published since the last call."""
        await self.published.wait()
        self.published.clear()

    def answer(self, after: int = 0) -> dict[str, object]:
        """The body of a whole answer or of one chunk: everything so far, or what came after so many tokens."""
        return {
            "text": self.reply.text(self.seen_tokens)[len(self.reply.text(after)) :],
            "output_ids": self.reply.ids(self.seen_tokens)[after:],
            "meta_info": self.meta_info(),
        }

    def meta_info(self) -> dict[str, object]:
        """SGLang's description of the answer; speculation and latency only once it is finished."""
        meta: dict[str, object] = {
            "id": self.rid,
            "finish_reason": self.seen_finish,
            "prompt_tokens": len(self.prompt_ids),
            "weight_version": self.weight_version,
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": self.seen_tokens,
            "cached_tokens": self.cached_tokens,
        }
        if self.seen_finish is not None:
            meta |= self._speculation() | {"e2e_latency": self.finished_s - self.received_s}
        return meta

    def _speculation(self) -> dict[str, object]:
        if not self.verify_steps:
            return {}
        return {
            "spec_accept_rate": self.correct_drafts / max(self.proposed_drafts, 1),
            "spec_accept_length": self.completion_tokens / self.verify_steps,
            "spec_num_correct_drafts": self.correct_drafts,
            "spec_num_proposed_drafts": self.proposed_drafts,
            "spec_verify_ct": self.verify_steps,
            "spec_correct_drafts_histogram": self.histogram,
        }
