"""A real HTTP server with SGLang's `/generate`, in a thread of its own, that answers as a test wants it to."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SENTENCE = "The harbour lay quiet while a late ferry turned and the last gulls settled on warm stone beside nets"
WORDS = SENTENCE.split()


@dataclass
class Ask:
    """One request as it reached the server."""

    number: int  # from 0, in the order of arrival
    body: Mapping[str, Any]
    http: web.Request

    @property
    def tokens(self) -> int:
        return int(self.body["sampling_params"]["max_new_tokens"])


Answer = Callable[[Ask], Awaitable[web.StreamResponse]]


@dataclass
class GenerateServer:
    """What the test sees of the running server."""

    answer: Answer
    base_url: str = ""
    asks: list[Ask] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        ask = Ask(len(self.asks), await request.json(), request)
        self.asks.append(ask)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.answer(ask)
        finally:
            self.in_flight -= 1


@contextmanager
def serving(answer: Answer) -> Iterator[GenerateServer]:
    """Yield a server that answers on a free port; gone when the context ends."""
    server = GenerateServer(answer)
    started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/generate", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await ended.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        assert not thread.is_alive()


def words(count: int) -> str:
    return " ".join(f"{WORDS[i % len(WORDS)]}{i // len(WORDS) or ''}" for i in range(count))


def payload(tokens: int, *, text: str | None = None, finish: Any = None, **meta: Any) -> dict[str, Any]:
    """One chunk in the shape of SGLang's: whole text so far, then ids, then meta_info."""
    counts = {"prompt_tokens": 20, "completion_tokens": tokens, "cached_tokens": 0, "finish_reason": finish}
    return {
        "text": words(tokens) if text is None else text,
        "output_ids": list(range(tokens)),
        "meta_info": {"id": "x", **counts, **meta},
    }


def event(content: Mapping[str, Any] | str) -> bytes:
    return f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n".encode()


DONE = event("[DONE]")


def steps(tokens: int, per_chunk: int) -> list[int]:
    """Token counts of the chunks: one token from prefill, then so many per chunk."""
    return [*range(1, tokens, per_chunk), tokens]


def events(tokens: int, *, per_chunk: int = 1, text: Callable[[int], str] = words, **last: Any) -> list[bytes]:
    """A good stream of so many tokens, `last` being further fields of the last chunk's meta_info."""
    *early, end = steps(tokens, per_chunk)
    finish = {"type": "length", "length": tokens}
    pieces = [event(payload(count, text=text(count))) for count in early]
    return [*pieces, event(payload(end, text=text(end), **{"finish": finish, **last})), DONE]


async def open_stream(ask: Ask, content_type: str = "text/event-stream") -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(ask.http)
    return response


async def send(ask: Ask, pieces: Sequence[bytes], *, pause_s: float = 0.0) -> web.StreamResponse:
    """Write each piece by itself, with a pause before each."""
    response = await open_stream(ask)
    async for piece in paced(pieces, pause_s):
        await response.write(piece)
    return response


async def paced(pieces: Sequence[bytes], pause_s: float) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(pause_s)
        yield piece


def reset(ask: Ask) -> None:
    """Cut the connection as a crashed process does."""
    assert ask.http.transport is not None
    ask.http.transport.abort()


def honest(*, per_chunk: int = 1, pause_s: float = 0.0, **last: Any) -> Answer:
    """A server that does what it is asked."""

    async def answer(ask: Ask) -> web.StreamResponse:
        return await send(ask, events(ask.tokens, per_chunk=per_chunk, **last), pause_s=pause_s)

    return answer


def fixed(pieces: Sequence[bytes], *, pause_s: float = 0.0) -> Answer:
    """A server that sends these pieces, whatever it is asked."""

    async def answer(ask: Ask) -> web.StreamResponse:
        return await send(ask, pieces, pause_s=pause_s)

    return answer


async def silent(ask: Ask) -> web.StreamResponse:
    """Accepts and never answers."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def after(count: int, first: Answer, then: Answer) -> Answer:
    """The first `count` requests are answered one way, the rest another."""

    async def answer(ask: Ask) -> web.StreamResponse:
        return await (first if ask.number < count else then)(ask)

    return answer
