"""One streaming request to SGLang's `POST /generate`, from the moment it is sent to its record."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from specsearch.loadgen.sse import EventReader
from specsearch.metrics import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What is asked of the server; the end of text is ignored, so that every request brings the same work."""

    prompt: str
    output_tokens: int
    temperature: float = 0.0
    rid: str = ""

    def body(self) -> Mapping[str, object]:
        sampling = {"max_new_tokens": self.output_tokens, "temperature": self.temperature, "ignore_eos": True}
        rid = {"rid": self.rid} if self.rid else {}
        return {"text": self.prompt, "sampling_params": sampling, "stream": True, **rid}


async def generate(
    session: aiohttp.ClientSession,
    base_url: str,
    request: GenerateRequest,
    *,
    timeout_s: float,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> RequestRecord:
    """Send one request and read its stream to the end; whatever goes wrong on the wire is a record with an error.

    `on_tokens` hears of new tokens as they arrive.
    """
    clock = asyncio.get_running_loop().time
    stream = _Stream(request.output_tokens, clock, on_tokens)
    started_s = clock()
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            problem = await _exchange(session, base_url, request, stream)
    except TimeoutError:
        timed_out = True
        problem = f"no complete answer within {timeout_s:g} s; {stream.progress}"
    except (aiohttp.ClientError, OSError) as error:
        problem = f"the connection failed ({type(error).__name__}: {error}); {stream.progress}"
    return stream.record(started_s, clock(), problem, timed_out)


async def _exchange(
    session: aiohttp.ClientSession, base_url: str, request: GenerateRequest, stream: "_Stream"
) -> str | None:
    """Read the answer into the stream; what is wrong with it as a whole, or None."""
    async with session.post(f"{base_url}/generate", json=request.body()) as response:
        if response.status != 200:
            start = _shown(await response.content.read(_SHOWN_BYTES))
            return f"the server answered {response.status}: {start}"
        async for data in response.content.iter_any():
            stream.feed(data)
    return stream.problem()


@dataclass(slots=True)
class _Stream:
    """What a stream has brought so far."""

    asked: int
    clock: Callable[[], float]
    on_tokens: Callable[[int], None]
    reader: EventReader = field(default_factory=EventReader)
    chunks: list[tuple[float, int]] = field(default_factory=list)
    tokens: int = 0
    last: bytes = b""  # the latest payload that counts tokens
    text: "_Text" = field(default_factory=lambda: _Text())
    odd: bytes = b""  # the first payload that does not
    error: str | None = None
    complete: bool = False  # [DONE] came

    @property
    def progress(self) -> str:
        return f"{self.tokens} of {self.asked} tokens had come"

    def feed(self, data: bytes) -> None:
        """Take what one read brought; its tokens arrived together, so they are one chunk.

        Only the count is read of a payload that holds the whole text so far: parsing each of those costs a multiple of
        everything else that the client does.
        """
        arrived_s, tokens = self.clock(), self.tokens
        for payload in self.reader.feed(data):
            if payload == b"[DONE]":
                self.complete = True
            elif (count := tokens_so_far(payload)) is not None:
                self.last = payload
                self.text.take(payload, count)
                tokens = max(tokens, count)
            else:
                self._take_odd(payload)
        if tokens > self.tokens:
            self.chunks.append((arrived_s, tokens))
            self.on_tokens(tokens - self.tokens)
            self.tokens = tokens

    def _take_odd(self, payload: bytes) -> None:
        error = _object(payload).get("error")
        if error and not self.error:
            message = error.get("message") if isinstance(error, dict) else None
            self.error = str(message or error)
        self.odd = self.odd or payload

    def problem(self) -> str | None:
        """Why the stream as a whole is not what was asked for, or None; call it at the end of the stream."""
        if self.error:
            return f"the server reported an error inside the stream: {self.error}; {self.progress}"
        if not self.last:
            return self._nothing_counted()
        reason = _finish_reason(_meta(_object(self.last)))
        kind = reason.get("type")
        if kind == "abort":
            return f"the server aborted the request: {reason.get('message') or 'no reason given'}; {self.progress}"
        if kind is None and not self.complete:
            return f"the stream broke off; {self.progress}"
        if self.tokens < self.asked:
            return f"the answer ended early, although the end of text was to be ignored; {self.progress}"
        if self.tokens > self.asked:
            return f"the server counts {self.tokens} tokens where {self.asked} were asked for"
        return None

    def _nothing_counted(self) -> str:
        if self.odd:
            return f"the stream counts no tokens (meta_info.completion_tokens is missing): {_shown(self.odd)}"
        if self.complete:
            return "the stream ended without a token"
        return f"the answer is no event stream: {_shown(self.reader.head) or 'an empty body'}"

    def record(self, started_s: float, finished_s: float, problem: str | None, timed_out: bool) -> RequestRecord:
        """Everything of use to a metric; a count that the server does not tell stays None."""
        payload = _object(self.last)
        meta = _meta(payload)
        return RequestRecord(
            started_s=started_s,
            finished_s=finished_s,
            chunks=tuple(self.chunks),
            prompt_tokens=_count(meta, "prompt_tokens"),
            cached_tokens=_count(meta, "cached_tokens"),
            completion_tokens=self.tokens,
            verify_steps=_count(meta, "spec_verify_ct"),
            correct_drafts=_count(meta, *_CORRECT_DRAFTS),
            proposed_drafts=_count(meta, *_PROPOSED_DRAFTS),
            accepted_histogram=_histogram(meta),
            text=self.text.whole(payload),
            error=problem,
            timed_out=timed_out,
        )


@dataclass(slots=True)
class _Text:
    """The reply of a stream whose payloads hold the whole text so far, as by default, or only what is new.

    `output_ids` tells which: as many ids as tokens so far, or fewer.
    """

    pieces: list[str] = field(default_factory=list)
    is_whole: bool = False  # known to be whole in each payload: the last one will do

    def take(self, payload: bytes, tokens: int) -> None:
        """Keep the text of a payload as long as it may be a part only."""
        if self.is_whole:
            return
        parsed = _object(payload)
        ids, text = parsed.get("output_ids"), parsed.get("text")
        # The first payload is both.
        self.is_whole = bool(self.pieces) and isinstance(ids, list) and len(ids) == tokens
        self.pieces.append(text if isinstance(text, str) else "")

    def whole(self, last: Mapping[str, object]) -> str:
        """The whole text, `last` being the last payload."""
        text = last.get("text")
        if self.is_whole or self._each_goes_on():
            return text if isinstance(text, str) else ""
        return "".join(self.pieces)

    def _each_goes_on(self) -> bool:
        """Whether each piece is the one before and more, as 0.5.9 can send the whole text over new ids.

        The pieces of a loop begin alike as well, but they do not grow.
        """
        pairs = list(itertools.pairwise(self.pieces))
        grown = sum(len(later) > len(sooner) for sooner, later in pairs)
        return 2 * grown >= len(pairs) and all(later.startswith(sooner) for sooner, later in pairs)


# Newest spelling first; 0.5.9 has the last of each, 0.5.17 and later all but that.
_CORRECT_DRAFTS = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED_DRAFTS = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")

# Inside a JSON string the quotes would be escaped, so this key is never the generated text's.
_COMPLETION_TOKENS = b'"completion_tokens":'
_DIGITS = re.compile(rb"\s*(\d+)\s*[,}]")
_SHOWN_BYTES = 200


def tokens_so_far(payload: bytes) -> int | None:
    """`meta_info.completion_tokens` of a payload without parsing it; None where there is no such whole number."""
    position = payload.rfind(_COMPLETION_TOKENS)  # meta_info stands behind text and ids
    match = _DIGITS.match(payload, position + len(_COMPLETION_TOKENS)) if position >= 0 else None
    return int(match[1]) if match else None


def _object(payload: bytes) -> Mapping[str, object]:
    try:
        parsed = json.loads(payload)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _meta(payload: Mapping[str, object]) -> Mapping[str, object]:
    meta = payload.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def _finish_reason(meta: Mapping[str, object]) -> Mapping[str, object]:
    reason = meta.get("finish_reason")
    return reason if isinstance(reason, dict) else {"type": reason}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(meta: Mapping[str, object], *names: str) -> int | None:
    """The first of the names that holds a whole number."""
    values = (meta.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and _is_count(value)), None)


def _histogram(meta: Mapping[str, object]) -> tuple[int, ...] | None:
    values = (meta.get(name) for name in _HISTOGRAMS)
    counts = next((value for value in values if isinstance(value, list)), None)
    return tuple(counts) if counts and all(map(_is_count, counts)) else None


def _shown(data: bytes) -> str:
    return " ".join(data[:_SHOWN_BYTES].decode(errors="replace").split())
