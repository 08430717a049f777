"""A fixed number of requests in flight until the prompts run out: one repeat of a load point, and its warm-up."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from specsearch.clock import SystemClock
from specsearch.config import Limits
from specsearch.errors import AbortedTrial, FailedTrial
from specsearch.loadgen.client import GenerateRequest, generate
from specsearch.loadgen.degenerate import is_degenerate
from specsearch.metrics import RequestRecord
from specsearch.trial import StopFlag
from specsearch.workload import LoadPoint

Alive = Callable[[], str | None]  # why the server is gone, as a sentence; None while it lives
OnProgress = Callable[[int, float], None]  # requests answered, tokens/s so far


@dataclass(frozen=True, slots=True)
class Repeat:
    """The requests of one repeat in the order of their prompts."""

    records: tuple[RequestRecord, ...]
    duration_s: float  # first request sent to last one ended
    started_at: float  # seconds since the epoch


def measure_repeat(
    load_point: LoadPoint,
    base_url: str,
    *,
    limits: Limits,
    stop: StopFlag,
    alive: Alive,
    on_progress: OnProgress | None = None,
    rid_prefix: str = "specsearch",
    death_s: float = 8.0,
) -> Repeat:
    """Send the prompts of one repeat, `concurrency` at a time, and wait for the last one.

    Raises FailedTrial when the server died (`engine_died`) or brought no token for `limits.stall_s`
    (`hang_after_ready`), AbortedTrial when `stop` was set. Single failures are records with an error; once they
    are more than the load point may have, no further prompt is sent, and the server gets `death_s` to be seen
    dead: SGLang sleeps 5 s before its crash diagnostics and only then ends. `alive` is asked about twice a second
    between the chunks, so it has to be quick.
    """
    prompts = list(load_point.prompts())
    plan = _Plan(load_point, base_url, prompts, load_point.output_tokens, rid_prefix)
    failures_allowed = limits.failed_request_share * len(prompts) * load_point.repeats
    repeat = _perform(_Run(plan, limits, stop, alive, on_progress, failures_allowed, death_s))
    # Screened here and not as they arrive: the screen would delay the chunks of other requests.
    return replace(repeat, records=tuple(map(_screened, repeat.records)))


def warm_up(
    load_point: LoadPoint,
    base_url: str,
    *,
    limits: Limits,
    stop: StopFlag,
    alive: Alive,
    rid_prefix: str = "specsearch-warm-up",
) -> Repeat:
    """Two rounds at the load point's concurrency, with prompts as long as the measured ones and never those.

    Raises as `measure_repeat` does.
    """
    prompts = list(warm_up_prompts(load_point))
    plan = _Plan(load_point, base_url, prompts, min(load_point.output_tokens, _WARM_UP_TOKENS), rid_prefix)
    return _perform(_Run(plan, limits, stop, alive, None, failures_allowed=len(prompts), death_s=0.0))


def warm_up_prompts(load_point: LoadPoint) -> Iterator[str]:
    """The words of measured prompts backwards: the same lengths, no common beginning, no common phrase.

    A measured prompt would leave its prefix in the cache, and a drafter that learns n-grams would know its text.
    """
    measured = load_point.workload.prompts
    for index in range(2 * load_point.concurrency):
        words = measured[index % len(measured)].split()
        yield f"Warm-up {index + 1}: {' '.join(reversed(words))}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is sent where."""

    load_point: LoadPoint
    base_url: str
    prompts: Sequence[str]
    output_tokens: int
    rid_prefix: str

    def requests(self, started_at: float) -> Iterator[tuple[int, GenerateRequest]]:
        """The requests in their fixed order; the start time keeps the ids of repeats apart."""
        for index, prompt in enumerate(self.prompts):
            yield (
                index,
                GenerateRequest(
                    prompt=prompt,
                    output_tokens=self.output_tokens,
                    temperature=self.load_point.workload.temperature,
                    rid=f"{self.rid_prefix}-{self.load_point.name}-{started_at:.3f}-{index:05d}",
                ),
            )


@dataclass(slots=True)
class _Run:
    """The state of one repeat while it runs."""

    plan: _Plan
    limits: Limits
    stop: StopFlag
    alive: Alive
    on_progress: OnProgress | None
    failures_allowed: float
    death_s: float
    records: dict[int, RequestRecord] = field(default_factory=dict)
    failures: int = 0
    tokens: int = 0
    started_s: float = 0.0
    last_token_s: float = 0.0

    @property
    def is_hopeless(self) -> bool:
        """More requests have failed than the load point may have."""
        return self.failures > self.failures_allowed

    @property
    def counts(self) -> str:
        """What had come when the run ended, for the sentence of an error."""
        ok = len(self.records) - self.failures
        return f"requests_ok={ok}, requests_failed={self.failures} of {len(self.plan.prompts)}, {self.tokens} tokens"

    def take(self, index: int, record: RequestRecord) -> None:
        self.records[index] = record
        self.failures += not record.ok

    def take_tokens(self, tokens: int) -> None:
        self.tokens += tokens
        self.last_token_s = _now()

    def tell_progress(self) -> None:
        elapsed_s = _now() - self.started_s
        if self.on_progress is not None and elapsed_s > 0:
            self.on_progress(len(self.records), self.tokens / elapsed_s)

    def check(self) -> None:
        """Raise when there is no point in going on."""
        self.check_stop()
        self.check_alive()
        silent_s = _now() - self.last_token_s
        if silent_s > self.limits.stall_s:
            raise FailedTrial(
                "hang_after_ready",
                f"no token from any request for {silent_s:.1f} s at {self.plan.load_point.name}, allowed are "
                f"{self.limits.stall_s:g} s; {self.counts}",
                advice="see the end of the engine's log; raise limits.stall if a prefill here really takes so long",
            )

    def check_awake(self, since_look_s: float) -> None:
        """Raise when this process itself did not run for a while: what it timed meanwhile is its own sleep."""
        asleep_s = since_look_s - _POLL_S
        if asleep_s > _LONGEST_SLEEP_S:
            raise FailedTrial(
                "stood_still",
                f"specsearch itself stood still for {asleep_s:.1f} s while measuring {self.plan.load_point.name}, so "
                "what it measured is not the server's speed",
                advice="was it stopped (Ctrl-Z), suspended with its machine or container, or is the host overloaded?",
            )

    def check_stop(self) -> None:
        if self.stop.reason is not None:
            raise AbortedTrial(self.stop.reason, f"stopped while measuring {self.plan.load_point.name}; {self.counts}")

    def check_alive(self) -> None:
        if (sentence := self.alive()) is not None:
            raise FailedTrial("engine_died", f"{sentence}; {self.counts}")


_POLL_S = 0.5
_LONGEST_SLEEP_S = 1.0  # a busy host delays a process by some 0.1 s
_WARM_UP_TOKENS = 64


def _now() -> float:
    return asyncio.get_running_loop().time()


def _screened(record: RequestRecord) -> RequestRecord:
    return replace(record, degenerate=record.ok and is_degenerate(record.text))


def _perform(run: _Run) -> Repeat:
    return asyncio.run(_run(run))


async def _run(run: _Run) -> Repeat:
    started_at = SystemClock().time()
    requests = run.plan.requests(started_at)
    run.started_s = run.last_token_s = _now()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a kept connection may be closed as it is reused
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        concurrency = min(run.plan.load_point.concurrency, len(run.plan.prompts))
        workers = {asyncio.create_task(_work(run, session, requests)) for _ in range(concurrency)}
        try:
            await _watch(run, workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    await _require_alive(run)
    records = tuple(record for _, record in sorted(run.records.items()))
    return Repeat(records, max(record.finished_s for record in records) - run.started_s, started_at)


async def _work(run: _Run, session: aiohttp.ClientSession, requests: Iterator[tuple[int, GenerateRequest]]) -> None:
    """One of the `concurrency` places: a request after the other until none is left or none is of use."""
    for index, request in requests:
        record = await generate(
            session, run.plan.base_url, request, timeout_s=run.limits.request_s, on_tokens=run.take_tokens
        )
        run.take(index, record)
        if run.is_hopeless:
            return


async def _watch(run: _Run, workers: set["asyncio.Task[None]"]) -> None:
    pending, looked_s = workers, _now()
    while pending:
        done, pending = await asyncio.wait(pending, timeout=_POLL_S)
        run.check_awake(_now() - looked_s)
        looked_s = _now()
        for worker in done:
            worker.result()  # raises what only a bug can raise
        run.tell_progress()
        if pending:
            run.check()


async def _require_alive(run: _Run) -> None:
    """Raise for a server that is gone after the last request; one that fails its requests gets the time to die.

    That it died is the better thing to say, and its log the better thing to read.
    """
    deadline_s = _now() + (run.death_s if run.is_hopeless else 0.0)
    run.check_alive()
    while _now() < deadline_s:
        await asyncio.sleep(_POLL_S)
        run.check_stop()
        run.check_alive()
