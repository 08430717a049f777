"""Batches requests and lets time pass: every step advances all running requests by what they accept."""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specsearch.engines.simulated.adaptive import AdaptiveSteps
from specsearch.engines.simulated.draft_tree import DraftTree, TreeShape
from specsearch.engines.simulated.logs import Log
from specsearch.engines.simulated.model import Machine
from specsearch.engines.simulated.ngram import NgramDraft
from specsearch.engines.simulated.requests import Draft, Request

CHUNK_S = 0.002  # steps shorter than this are joined into one chunk: no event loop wakes up more often
MOST_RESERVED = 4096  # tokens of a reply that a request is kept room for before it starts
BEYOND_CONTEXT = 0.3  # what is left of a drafter's skill beyond the context it was made for
MOST_LAG_S = 0.5  # a server that was held up longer goes on from now instead of racing to catch up


@dataclass(slots=True)
class Window:
    """Decode counts since the last log line."""

    steps: int = 0
    tokens: int = 0
    verify_steps: int = 0
    correct_drafts: int = 0
    proposed_drafts: int = 0
    in_graph: bool = False


@dataclass(slots=True)
class Counters:
    """Monotonic counts, as Prometheus shows them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    verify_calls: int = 0
    requests: int = 0
    aborted: int = 0
    decode_tokens: int = 0
    passes_in_graph: int = 0
    passes_eager: int = 0
    prefills: int = 0


class PrefixCache:
    """Which beginnings of prompts were computed since the last flush."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._known: set[int] = set()

    def cached_tokens(self, ids: tuple[str, ...]) -> int:
        """How many leading tokens are known; the last one is always computed. Learns the prompt."""
        if not self._enabled:
            return 0
        prefixes = list(_prefixes(ids))
        known = next((i for i, prefix in enumerate(prefixes) if prefix not in self._known), len(prefixes))
        self._known.update(prefixes)
        return min(known, len(ids) - 1) if ids else 0

    def clear(self) -> None:
        self._known.clear()


def _reserved_tokens(request: Request) -> int:
    return len(request.prompt_ids) + min(request.last_token, MOST_RESERVED)


def _prefixes(ids: tuple[str, ...]) -> Iterator[int]:
    prefix = 0
    for word in ids:
        prefix = hash((prefix, word))
        yield prefix


@dataclass(slots=True)
class Pace:
    """How this launch deviates from the model: a factor of its own and noise on every step."""

    rng: random.Random
    noise: float
    factor: float = field(init=False)

    def __post_init__(self) -> None:
        self.factor = max(0.5, 1 + self.rng.gauss(0, self.noise))

    def seconds(self, milliseconds: float) -> float:
        """A modelled time as this launch takes it now."""
        return milliseconds / 1e3 * self.factor * max(0.5, 1 + self.rng.gauss(0, self.noise))


@dataclass(slots=True)
class Limits:
    """Sizes that the launch settled."""

    running_requests: int
    kv_tokens: int
    prefill_tokens: int
    log_interval: int


@dataclass(frozen=True, slots=True)
class Drafting:
    """How well is guessed, and what is odd about this launch."""

    skill: float = 1.0
    context_length: int | None = None  # beyond which the drafter guesses badly
    adaptive: AdaptiveSteps | None = None  # who picks the steps; None: they stay


class Scheduler:
    """The decode loop; `run` never returns."""

    def __init__(
        self,
        machine: Machine,
        pace: Pace,
        limits: Limits,
        log: Log,
        drafting: Drafting,
        *,
        radix_cache: bool = True,
        flushes: bool = True,
        decode_line: str = "Decode batch",
    ) -> None:
        self.machine = machine
        self.limits = limits
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.window = Window()
        self.counters = Counters()
        self.accepted_tokens = self.verify_steps = 0  # of the server's life since the last flush; grow with log lines
        self.last_throughput = 0.0
        self.last_accept = (0.0, 0.0)  # length and rate of the last log line
        self.step_times_s: defaultdict[int, list[float]] = defaultdict(list)  # by batch size, one per log line
        self.frozen = False
        self._decode_line = decode_line
        self._drafting = drafting
        self._pace = pace
        self._log = log
        self._flushes = flushes
        self._cache = PrefixCache(radix_cache)
        self._arrival = asyncio.Event()
        self._due = self._logged = 0.0
        self._drafts: dict[tuple[TreeShape, str, float, bool], Draft] = {}

    def submit(self, request: Request) -> None:
        """Queue a request; it starts with the next step."""
        request.received_s = asyncio.get_running_loop().time()
        self.waiting.append(request)
        self._arrival.set()

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def abort(self, rid: str | None) -> None:
        """Abort the request of that id, or all; a frozen scheduler does not even notice."""
        if self.frozen:
            return
        for request in [*self.running, *self.waiting]:
            if rid is None or request.rid.startswith(rid):
                request.abort()
                self._finish(request)

    def forget(self, request: Request) -> None:
        """Drop a request whose client has gone."""
        if request.finish is None and not self.frozen:
            request.abort("Client disconnected")
            self._finish(request)

    def flush(self) -> bool:
        """Empty the prefix cache and reset the counters of speculation; refused while requests run."""
        if self.busy:
            return False
        if self._flushes:
            self._cache.clear()
        self.window = Window()
        self.accepted_tokens = self.verify_steps = 0
        return True

    @property
    def lifetime_accept_length(self) -> float | None:
        """What the server info calls the average accept length; None before the first log line."""
        return self.accepted_tokens / self.verify_steps if self.verify_steps else None

    @property
    def held_tokens(self) -> int:
        return sum(request.held_tokens for request in self.running)

    @property
    def usage(self) -> float:
        return self.held_tokens / max(self.limits.kv_tokens, 1)

    async def run(self) -> None:
        """Serve for ever."""
        loop = asyncio.get_running_loop()
        self._logged = loop.time()
        while True:
            if not self.busy or self.frozen:
                self._arrival.clear()
                await self._arrival.wait()
                self._due = loop.time()
                continue
            changed = self._prefill() if self._can_start() else self._decode(loop.time())
            self._due = max(self._due, loop.time() - MOST_LAG_S)
            await asyncio.sleep(max(0.0, self._due - loop.time()))
            for request in changed:
                self._show(request)

    def _can_start(self) -> bool:
        if not self.waiting or len(self.running) >= self.limits.running_requests:
            return False
        reserved = sum(map(_reserved_tokens, (*self.running, self.waiting[0])))
        return not self.running or reserved <= self.limits.kv_tokens

    def _prefill(self) -> list[Request]:
        """Start waiting requests, as many as a chunk and the batch hold; each gets its first token."""
        started: list[Request] = []
        tokens = 0
        while self._can_start() and (not started or tokens < self.limits.prefill_tokens):
            request = self.waiting.popleft()
            request.cached_tokens = self._cache.cached_tokens(request.prompt_ids)
            tokens += len(request.prompt_ids) - request.cached_tokens
            self.running.append(request)
            started.append(request)
        seconds = self._pace.seconds(self.machine.prefill_ms(tokens))
        self._due += seconds
        self.counters.prefills += 1
        self._log_prefill(started, tokens, seconds)
        for request in started:
            request.add_tokens(1)
        return started

    def _decode(self, now: float) -> list[Request]:
        """One step, or as many as fit into a chunk or are overdue; ends early when somebody is finished."""
        batch = list(self.running)
        chunk_end = max(self._due, now) + CHUNK_S
        while True:
            self._adapt(len(batch))
            in_graph = self.machine.in_graph(len(batch))
            self._due += self._pace.seconds(self.machine.step_ms(len(batch), self.held_tokens))
            self._count(batch, in_graph)
            if any(request.finish for request in batch) or self._due >= chunk_end:
                return batch

    def _count(self, batch: list[Request], in_graph: bool) -> None:
        for request in batch:
            request.draft = self._draft_of(request)
        correct = sum(request.advance() for request in batch)
        window = self.window
        window.steps += 1
        window.tokens += correct + len(batch)
        window.in_graph = in_graph
        if self.machine.tree is not None:
            window.verify_steps += len(batch)
            window.correct_drafts += correct
            window.proposed_drafts += len(batch) * (self.machine.width - 1)
        if self._drafting.adaptive is not None:
            self._drafting.adaptive.learn(len(batch), correct / len(batch))
        self.counters.decode_tokens += correct + len(batch)
        if in_graph:
            self.counters.passes_in_graph += 1
        else:
            self.counters.passes_eager += 1
        if window.steps >= self.limits.log_interval:
            self._log_decode(len(batch))

    def _show(self, request: Request) -> None:
        if request.finish:
            self._finish(request)
        else:
            request.publish()

    def _finish(self, request: Request) -> None:
        if request.seen_finish is not None:
            return  # aborted while its last step ran
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.finished_s = asyncio.get_running_loop().time()
        if not request.internal:
            counters = self.counters
            counters.requests += 1
            counters.aborted += bool(request.finish and request.finish["type"] == "abort")
            counters.prompt_tokens += len(request.prompt_ids)
            counters.cached_tokens += request.cached_tokens
            counters.generation_tokens += request.completion_tokens
            counters.verify_calls += request.verify_steps
        request.publish()

    def _adapt(self, batch: int) -> None:
        """Go over to the steps that are picked for a batch of that size."""
        tree, adaptive = self.machine.tree, self._drafting.adaptive
        if adaptive is None or tree is None or (steps := adaptive.steps_for(batch)) == tree.num_steps:
            return
        self._log.rank(
            f"Switch adaptive runtime state: steps {tree.num_steps} -> {steps}, "
            f"draft_tokens {tree.num_draft_tokens} -> {steps + 1}"
        )
        self.machine = replace(self.machine, tree=TreeShape(steps, 1, steps + 1))

    def _draft_of(self, request: Request) -> Draft | None:
        """What is guessed for the request's next step."""
        shape, drafting = self.machine.tree, self._drafting
        if shape is None:
            return None
        beyond = drafting.context_length is not None and request.held_tokens > drafting.context_length
        key = (shape, request.kind, request.temperature, beyond)
        if key not in self._drafts:
            skill = drafting.skill * (BEYOND_CONTEXT if beyond else 1.0)
            self._drafts[key] = (
                NgramDraft.of(shape, request.kind, request.temperature)
                if self.machine.is_ngram
                else DraftTree.grow(shape, request.kind, skill, request.temperature)
            )
        return self._drafts[key]

    def _log_prefill(self, started: list[Request], tokens: int, seconds: float) -> None:
        cached = sum(request.cached_tokens for request in started)
        self._log.rank(
            f"Prefill batch, #new-seq: {len(started)}, #new-token: {tokens}, #cached-token: {cached}, "
            f"token usage: {self.usage:.2f}, #running-req: {len(self.running) - len(started)}, "
            f"#queue-req: {len(self.waiting)}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {tokens / seconds:.2f}"
        )

    def _log_decode(self, running: int) -> None:
        """The line that SGLang writes every so many steps; the lifetime sums move only here."""
        window, self.window = self.window, Window()
        gap_s = max(self._due - self._logged, 1e-9)  # the idle time since the last line is in it, as in SGLang
        self.last_throughput = window.tokens / gap_s
        self.step_times_s[running].append(gap_s / window.steps)
        self._logged = self._due
        accept = ""
        if self.machine.tree is not None:
            self.accepted_tokens += window.tokens
            self.verify_steps += window.verify_steps
            rate = window.correct_drafts / max(window.proposed_drafts, 1)
            self.last_accept = (window.tokens / window.verify_steps, rate)
            accept = f"accept len: {self.last_accept[0]:.2f}, accept rate: {self.last_accept[1]:.2f}, "
        self._log.rank(
            f"{self._decode_line}, #running-req: {running}, #token: {self.held_tokens}, token usage: {self.usage:.2f}, "
            f"{accept}cuda graph: {window.in_graph}, gen throughput (token/s): {self.last_throughput:.2f}, "
            f"#queue-req: {len(self.waiting)}"
        )
