"""One request against a real server that behaves well, badly and strangely."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from misbehaving_server import (
    DONE,
    Answer,
    Ask,
    event,
    events,
    fixed,
    honest,
    open_stream,
    payload,
    reset,
    send,
    serving,
    silent,
    steps,
    words,
)

from specsearch.loadgen.client import GenerateRequest, generate, tokens_so_far
from specsearch.metrics import RequestRecord

TOKENS = 12
SPEC = {
    "spec_verify_ct": 4,
    "spec_num_correct_drafts": 7,
    "spec_num_proposed_drafts": 12,
    "spec_correct_drafts_histogram": [1, 0, 2, 1],
}


def ask(answer: Answer, *, timeout_s: float = 20.0, tokens: int = TOKENS) -> RequestRecord:
    """The record of one request to a server that answers so."""

    async def one(base_url: str) -> RequestRecord:
        async with aiohttp.ClientSession() as session:
            request = GenerateRequest(prompt="Tell me of the harbour.", output_tokens=tokens, rid="t0001-a")
            return await generate(session, base_url, request, timeout_s=timeout_s)

    with serving(answer) as server:
        return asyncio.run(one(server.base_url))


def test_a_good_stream_becomes_a_good_record() -> None:
    record = ask(honest(pause_s=0.003, cached_tokens=3, **SPEC))
    assert record.ok, record.error
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (20, 3, TOKENS)
    assert (record.verify_steps, record.correct_drafts, record.proposed_drafts) == (4, 7, 12)
    assert record.accepted_histogram == (1, 0, 2, 1)
    assert record.text == words(TOKENS)
    assert not record.timed_out


def test_times_are_ordered_and_token_counts_grow() -> None:
    record = ask(honest(pause_s=0.005))
    times = [record.started_s, *(time for time, _ in record.chunks), record.finished_s]
    counts = [count for _, count in record.chunks]
    assert times == sorted(times)
    assert counts == sorted(set(counts))
    assert counts[-1] == TOKENS
    assert len(counts) > 1
    assert record.finished_s - record.started_s >= 0.005 * TOKENS


def test_what_is_asked_is_sglangs_own_request() -> None:
    with serving(honest()) as server:

        async def one() -> None:
            async with aiohttp.ClientSession() as session:
                request = GenerateRequest(prompt="Hello", output_tokens=5, temperature=0.7, rid="t0003-1")
                await generate(session, server.base_url, request, timeout_s=20)

        asyncio.run(one())
    assert server.asks[0].body == {
        "text": "Hello",
        "sampling_params": {"max_new_tokens": 5, "temperature": 0.7, "ignore_eos": True},
        "stream": True,
        "rid": "t0003-1",
    }


@pytest.mark.parametrize("size", [1, 5, 64])
def test_a_chunk_split_over_tcp_is_one_chunk(size: int) -> None:
    stream = b"".join(events(3, **SPEC))

    async def answer(ask: Ask) -> web.StreamResponse:
        return await send(ask, [stream[start : start + size] for start in range(0, len(stream), size)])

    record = ask(answer, tokens=3)
    assert record.ok, record.error
    assert record.completion_tokens == 3
    assert record.correct_drafts == 7


def test_several_tokens_in_a_chunk_are_counted_by_the_growth_of_the_count() -> None:
    record = ask(honest(per_chunk=5, pause_s=0.02))
    assert record.ok, record.error
    counts = [count for _, count in record.chunks]
    assert set(counts) <= {1, 6, 11, TOKENS}
    assert counts[-1] == TOKENS


def test_chunks_that_arrive_in_one_read_are_one_arrival() -> None:
    record = ask(fixed([b"".join(events(TOKENS))]))
    assert record.ok, record.error
    assert [count for _, count in record.chunks] == [TOKENS]


def deltas(tokens: int, per_chunk: int = 1, *, whole_text: bool = False, **last: Any) -> list[bytes]:
    """A stream as with --incremental-streaming-output: new text and new ids, counts of everything so far.

    `whole_text` as 0.5.9 does it with --stream-output: new ids under the whole text.
    """
    pieces, before = [], 0
    for count in steps(tokens, per_chunk):
        finish = {"type": "length", "length": tokens} if count == tokens else None
        chunk = payload(count, finish=finish, **(last if finish else {}))
        chunk["output_ids"] = chunk["output_ids"][before:]
        if not whole_text:
            chunk["text"] = chunk["text"][len(words(before)) :]
        pieces.append(event(chunk))
        before = count
    return [*pieces, DONE]


@pytest.mark.parametrize("per_chunk", [1, 3, 5])
@pytest.mark.parametrize("whole_text", [False, True], ids=["0.5.10 and later", "0.5.9"])
@pytest.mark.parametrize("pause_s", [0.0, 0.004], ids=["at once", "one by one"])
def test_an_incremental_stream_is_read_like_a_whole_one(per_chunk: int, whole_text: bool, pause_s: float) -> None:
    record = ask(fixed(deltas(TOKENS, per_chunk, whole_text=whole_text, **SPEC), pause_s=pause_s))
    assert record.ok, record.error
    assert record.text == words(TOKENS)
    assert record.completion_tokens == record.chunks[-1][1] == TOKENS
    assert (record.verify_steps, record.correct_drafts, record.accepted_histogram) == (4, 7, (1, 0, 2, 1))


def test_a_repetitive_reply_in_pieces_is_not_taken_for_a_whole_one() -> None:
    """ME-04: each piece begins like the one before, and only all of them show the loop."""
    pieces = deltas(TOKENS)
    repeated = [re.sub(rb'"text": "[^"]*"', b'"text": " data"', piece) for piece in pieces]
    assert ask(fixed(repeated)).text == " data" * TOKENS


def test_a_chunk_that_brings_no_token_is_no_chunk() -> None:
    good = events(2)
    record = ask(fixed([good[0], good[0], *good[1:]], pause_s=0.02), tokens=2)
    assert record.ok, record.error
    assert [count for _, count in record.chunks] in ([1, 2], [2])


def test_a_text_that_speaks_of_completion_tokens_is_not_counted() -> None:
    spoken = '{"completion_tokens": 999, "meta_info": {"completion_tokens":999}}'
    pieces = events(3, text=lambda count: spoken[: 20 * count])
    record = ask(fixed(pieces, pause_s=0.01), tokens=3)
    assert record.ok, record.error
    assert record.completion_tokens == 3


@pytest.mark.parametrize(
    ("meta", "counts"),
    [
        (SPEC, (4, 7, 12, (1, 0, 2, 1))),
        (
            {
                "spec_verify_ct": 4,
                "spec_accept_token_num": 7,
                "spec_draft_token_num": 12,
                "spec_accept_histogram": [1, 0, 2, 1],
            },
            (4, 7, 12, (1, 0, 2, 1)),
        ),
        ({"spec_verify_ct": 4, "spec_accepted_drafts": 7, "spec_proposed_drafts": 12}, (4, 7, 12, None)),
        ({"spec_verify_ct": 4}, (4, None, None, None)),
        ({}, (None, None, None, None)),
        ({"spec_verify_ct": float("nan"), "spec_num_correct_drafts": None}, (None, None, None, None)),
        ({"spec_verify_ct": "4", "spec_correct_drafts_histogram": [1, "x"]}, (None, None, None, None)),
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": -1}, (4, None, None, None)),
    ],
    ids=["0.5.17", "0.5.9", "recorded", "no counts", "plain", "nan", "strings", "negative"],
)
def test_speculation_counts_are_read_in_each_versions_spelling_and_never_made_up(
    meta: dict[str, Any], counts: tuple[Any, ...]
) -> None:
    """ME-02: what is missing is None, not 0 and not 1."""
    record = ask(honest(**meta))
    assert record.ok, record.error
    found = (record.verify_steps, record.correct_drafts, record.proposed_drafts, record.accepted_histogram)
    assert found == counts


def test_a_recorded_last_chunk_of_a_real_server_is_read() -> None:
    """SGLang 0.5.17 on an H200, EAGLE3 3/4/16, one reply's meta_info as it came."""
    meta = json.loads((Path(__file__).parent / "meta_info_0_5_17.json").read_text())
    last = event({"text": words(256), "output_ids": [], "meta_info": meta})
    record = ask(fixed([event(payload(1)), last, DONE]), tokens=256)
    assert record.ok, record.error
    assert (record.verify_steps, record.correct_drafts, record.proposed_drafts) == (78, 180, 1170)
    assert record.accepted_histogram == (12, 6, 6, 54)
    assert (record.prompt_tokens, record.cached_tokens) == (89, 0)


def with_last(**changes: Any) -> Answer:
    return fixed([*events(TOKENS)[:-2], event(payload(TOKENS, **changes)), DONE])


async def resets_midway(ask: Ask) -> web.StreamResponse:
    response = await send(ask, events(TOKENS)[:5], pause_s=0.005)
    reset(ask)
    return response


async def resets_at_once(ask: Ask) -> web.StreamResponse:
    reset(ask)
    raise ConnectionResetError


async def refuses(ask: Ask) -> web.StreamResponse:
    return web.Response(status=503, text="the scheduler is\nshutting down")


async def is_no_stream(ask: Ask) -> web.StreamResponse:
    return web.Response(text="<html>Welcome to the proxy</html>", content_type="text/html")


async def is_binary(ask: Ask) -> web.StreamResponse:
    response = await open_stream(ask)
    await response.write(bytes(range(256)) * 40)
    return response


async def is_empty(ask: Ask) -> web.StreamResponse:
    return web.Response(text="")


NAN_COUNT = {"text": "a", "meta_info": {"completion_tokens": float("nan")}}
BAD = {
    "error inside the stream": (
        fixed([*events(TOKENS)[:4], event({"error": {"message": "out of pages"}}), DONE]),
        "an error inside the stream: out of pages; 4 of 12",
    ),
    "error as a word": (fixed([event({"error": "overloaded"})]), "overloaded; 0 of 12"),
    "abort": (
        with_last(finish={"type": "abort", "message": "by the operator"}),
        "aborted the request: by the operator",
    ),
    "abort without message": (with_last(finish={"type": "abort"}), "no reason given"),
    "too few": (fixed(events(TOKENS - 3)), "ended early.*9 of 12"),
    "too many": (fixed(events(TOKENS + 1)), "counts 13 tokens where 12"),
    "no tokens": (fixed([DONE]), "without a token"),
    "broken off without finish": (fixed(events(TOKENS)[:5]), "broke off; 5 of 12"),
    "broken off with all tokens": (fixed([event(payload(TOKENS))]), "broke off; 12 of 12"),
    "cut in a line": (fixed([*events(TOKENS)[:5], event(payload(TOKENS))[:40]]), "broke off; 5 of 12"),
    "reset midway": (resets_midway, "the connection failed.*of 12 tokens had come"),
    "reset at once": (resets_at_once, "the connection failed.*0 of 12"),
    "not 200": (refuses, "answered 503: the scheduler is shutting down"),
    "html": (is_no_stream, "no event stream: <html>Welcome"),
    "binary": (is_binary, "no event stream"),
    "empty": (is_empty, "an empty body"),
    "not json": (fixed([event("{oops"), DONE]), "counts no tokens.*oops"),
    "json list": (fixed([event("[1, 2]"), DONE]), "counts no tokens"),
    "no meta_info": (fixed([event({"text": "hello"}), DONE]), "completion_tokens is missing"),
    "nan count": (fixed([event(NAN_COUNT), DONE]), "counts no tokens"),
    "nan count at the end": (fixed([*events(TOKENS)[:4], event(NAN_COUNT), DONE]), "ended early.*4 of 12"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_a_failed_record_that_says_what_came(name: str) -> None:
    """ME-06: stopped early, aborted, empty or broken off is failed; nothing raises."""
    answer, sentence = BAD[name]
    record = ask(answer)
    assert record.error is not None
    assert not record.timed_out
    assert re.search(sentence, record.error), record.error


def test_a_silent_server_times_out() -> None:
    record = ask(silent, timeout_s=0.2)
    assert record.timed_out
    assert record.error == "no complete answer within 0.2 s; 0 of 12 tokens had come"


def test_a_slow_drip_times_out_although_tokens_keep_coming() -> None:
    record = ask(honest(pause_s=0.02), tokens=1000, timeout_s=1.5)
    assert record.timed_out
    assert 0 < record.completion_tokens < 1000
    assert record.chunks


def test_a_server_that_is_not_there_is_a_failed_record() -> None:
    async def one() -> RequestRecord:
        async with aiohttp.ClientSession() as session:
            request = GenerateRequest(prompt="x", output_tokens=1)
            return await generate(session, base_url, request, timeout_s=5)

    with serving(honest()) as server:
        base_url = server.base_url
    record = asyncio.run(one())
    assert record.error is not None
    assert "the connection failed" in record.error


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b'{"meta_info":{"completion_tokens":17,"x":1}}', 17),
        (b'{"meta_info": {"completion_tokens": 17}}', 17),
        (b'{"meta_info": {"completion_tokens": 17.5}}', None),
        (b'{"meta_info": {"completion_tokens": -1}}', None),
        (b'{"meta_info": {"completion_tokens": NaN}}', None),
        (b'{"meta_info": {"completion_tokens": "17"}}', None),
        (b'{"meta_info": {"completion_tokens": 1', None),
        (b"", None),
    ],
)
def test_the_count_is_found_without_parsing(text: bytes, count: int | None) -> None:
    assert tokens_so_far(text) == count
