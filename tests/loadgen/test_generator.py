"""Repeats and warm-ups against a real server that behaves well, crashes, hangs and drips."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from misbehaving_server import (
    Answer,
    Ask,
    GenerateServer,
    after,
    event,
    events,
    fixed,
    honest,
    payload,
    reset,
    send,
    serving,
    silent,
)

from specsearch.clock import SystemClock, wait_until
from specsearch.config import Limits
from specsearch.errors import AbortedTrial, FailedTrial
from specsearch.loadgen import Repeat, measure_repeat, warm_up
from specsearch.loadgen.generator import warm_up_prompts
from specsearch.metrics import summarise
from specsearch.trial import StopFlag
from specsearch.workload import LoadPoint, Workload

PROMPTS = tuple(f"Prompt {number} asks for a story about lighthouse {number}." for number in range(12))
LIMITS = Limits(request_s=20, stall_s=20)


def load_point(*, concurrency: int = 3, requests: int | None = None, tokens: int = 8, repeats: int = 1) -> LoadPoint:
    workload = Workload("lighthouses", PROMPTS)
    return LoadPoint(workload, concurrency, output_tokens=tokens, requests=requests, repeats=repeats)


def measure(answer: Answer, point: LoadPoint, **options: Any) -> tuple[Repeat, GenerateServer]:
    with serving(answer) as server:
        arguments = {"limits": LIMITS, "stop": StopFlag(), "alive": lambda: None, "death_s": 0.0} | options
        return measure_repeat(point, server.base_url, **arguments), server


def ending(answer: Answer, point: LoadPoint, **options: Any) -> FailedTrial | AbortedTrial:
    """The error that a repeat ends with."""
    with pytest.raises((FailedTrial, AbortedTrial)) as caught:
        measure(answer, point, **options)
    assert isinstance(caught.value, FailedTrial | AbortedTrial)
    return caught.value


@pytest.mark.parametrize("concurrency", [1, 3, 12])
def test_exactly_the_asked_concurrency_is_in_flight_until_the_prompts_run_out(concurrency: int) -> None:
    """The server lets one request go at a time, and only while all places are taken: fewer would be a hang."""
    point = load_point(concurrency=concurrency)
    turn = asyncio.Lock()

    async def answer(ask: Ask) -> web.StreamResponse:
        async with turn:
            while server.in_flight < concurrency and len(server.asks) < point.requests_per_repeat:
                await asyncio.sleep(0.001)
            return await honest(per_chunk=8)(ask)

    with serving(answer) as server:
        repeat = measure_repeat(point, server.base_url, limits=LIMITS, stop=StopFlag(), alive=lambda: None)
    assert all(record.ok for record in repeat.records)
    assert len(server.asks) == point.requests_per_repeat
    assert server.most_in_flight == concurrency


def test_more_places_than_prompts_are_no_harm() -> None:
    repeat, server = measure(honest(), load_point(concurrency=12, requests=5))
    assert len(repeat.records) == 5
    assert server.most_in_flight <= 5


def test_every_prompt_is_sent_once_in_its_order_and_the_records_keep_it() -> None:
    async def answer(ask: Ask) -> web.StreamResponse:
        slow = 0.03 if ask.number % 3 == 0 else 0.001  # so that requests overtake each other
        return await send(ask, events(8, prompt_tokens=ask.number), pause_s=slow)

    repeat, server = measure(answer, load_point())
    assert [ask.body["text"] for ask in server.asks] == list(PROMPTS)
    assert [record.prompt_tokens for record in repeat.records] == list(range(12))


def test_ids_carry_the_trials_token_and_are_never_used_twice() -> None:
    with serving(honest()) as server:
        for _ in range(2):
            measure_repeat(
                load_point(), server.base_url, limits=LIMITS, stop=StopFlag(), alive=lambda: None, rid_prefix="tok7"
            )
    rids = [str(ask.body["rid"]) for ask in server.asks]
    assert len(set(rids)) == 24
    assert all(rid.startswith("tok7-lighthouses@3-") for rid in rids)


def test_throughput_is_that_of_the_servers_pace() -> None:
    """Three streams of 8 chunks at 10 ms each make about 300 tokens/s, whatever the load generator adds."""
    repeat, _ = measure(honest(pause_s=0.01), load_point(requests=6))
    summary = summarise(repeat.records, repeat.duration_s)
    speed = summary.values["output_tokens_per_s"]
    assert speed is not None
    assert speed <= 3 / 0.01 * 8 / 9 * 1.01  # 8 tokens in 9 pauses: the last is before [DONE]
    assert summary.values["requests_ok"] == 6
    assert repeat.duration_s >= 2 * 9 * 0.01
    assert abs(repeat.started_at - time.time()) < 60


def test_progress_tells_requests_and_speed() -> None:
    told: list[tuple[int, float]] = []
    measure(honest(pause_s=0.05), load_point(requests=6), on_progress=lambda done, speed: told.append((done, speed)))
    assert told[-1][0] == 6
    assert all(speed > 0 for _, speed in told)


def test_a_failed_request_is_counted_and_the_rest_goes_on() -> None:
    """ME-06: requests_total, ok and failed are known."""

    async def answer(ask: Ask) -> web.StreamResponse:
        if ask.number == 4:
            return web.Response(status=500, text="boom")
        return await honest()(ask)

    repeat, _ = measure(answer, load_point(), limits=replace(LIMITS, failed_request_share=0.1))
    values = summarise(repeat.records, repeat.duration_s).values
    assert (values["requests_total"], values["requests_ok"], values["requests_failed"]) == (12, 11, 1)
    assert repeat.records[4].error == "the server answered 500: boom"


def test_a_load_point_that_cannot_pass_any_more_is_not_carried_on() -> None:
    """Four of 1000 × 3 requests may fail at a share of 0.001; the fourth is the last one that matters."""

    async def answer(ask: Ask) -> web.StreamResponse:
        return web.Response(status=500)

    point = load_point(concurrency=1, requests=1000, repeats=3)
    repeat, server = measure(answer, point, limits=replace(LIMITS, failed_request_share=0.001))
    assert len(server.asks) == 4
    assert len(repeat.records) == 4


def test_a_request_has_its_own_time_limit() -> None:
    """ME-11: one that hangs while others bring tokens is timed out by itself."""

    async def answer(ask: Ask) -> web.StreamResponse:
        return await (silent if ask.number == 0 else honest(pause_s=0.002))(ask)

    limits = replace(LIMITS, request_s=2.0, failed_request_share=0.5)
    repeat, _ = measure(answer, load_point(), limits=limits)
    assert repeat.records[0].timed_out
    assert sum(record.ok for record in repeat.records) == 11


def test_a_server_that_stops_bringing_tokens_is_a_hang() -> None:
    """ME-11: answers 3 requests, then never again."""
    error = ending(after(3, honest(), silent), load_point(), limits=replace(LIMITS, stall_s=1.5))
    assert error.reason == "hang_after_ready"
    assert "requests_ok=3" in str(error)
    assert "no token from any request for" in str(error)


def test_a_stream_that_stops_in_the_middle_is_a_hang() -> None:
    async def answer(ask: Ask) -> web.StreamResponse:
        await send(ask, events(8)[:3])
        return await silent(ask)

    assert ending(answer, load_point(), limits=replace(LIMITS, stall_s=1.5)).reason == "hang_after_ready"


def test_a_slow_drip_is_no_hang() -> None:
    repeat, _ = measure(honest(pause_s=0.1), load_point(requests=3, tokens=12), limits=replace(LIMITS, stall_s=1.0))
    assert all(record.ok for record in repeat.records)
    assert repeat.duration_s > 1.0


def dying(server: Callable[[], int], at: int) -> Callable[[], str | None]:
    return lambda: "scheduler 2 of 8 ended with exit code -9" if server() >= at else None


def test_a_server_that_crashes_under_load_ends_the_repeat_at_once() -> None:
    """LF-18: the good part of the requests never becomes a result."""
    seen = 0

    async def answer(ask: Ask) -> web.StreamResponse:
        nonlocal seen
        seen += 1
        if ask.number < 5:
            return await honest()(ask)
        reset(ask)
        raise ConnectionResetError

    error = ending(answer, load_point(), alive=dying(lambda: seen, 6), death_s=5.0)
    assert error.reason == "engine_died"
    assert "scheduler 2 of 8 ended with exit code -9" in str(error)
    assert "requests_ok=5" in str(error)


def test_a_server_that_dies_a_while_after_its_connections_is_still_seen_dead() -> None:
    """LF-18: SGLang diagnoses for seconds before it ends, and the prompts would be used up by then."""
    asked = 0

    def alive() -> str | None:
        nonlocal asked
        asked += 1
        return "the server ended with exit code -9" if asked > 2 else None

    async def answer(ask: Ask) -> web.StreamResponse:
        reset(ask)
        raise ConnectionResetError

    assert ending(answer, load_point(), alive=alive, death_s=5.0).reason == "engine_died"


def test_a_server_that_fails_and_lives_gives_a_repeat_of_failures() -> None:
    async def answer(ask: Ask) -> web.StreamResponse:
        reset(ask)
        raise ConnectionResetError

    repeat, _ = measure(answer, load_point())
    assert repeat.records
    assert not any(record.ok for record in repeat.records)


def test_a_server_found_dead_after_the_last_good_answer_is_dead() -> None:
    """LF-18: any exit before the end of the measurement counts."""
    point = load_point(concurrency=1, requests=1)
    assert ending(honest(), point, alive=lambda: "gone").reason == "engine_died"


def test_a_hanging_server_found_dead_is_dead_and_not_hanging() -> None:
    error = ending(silent, load_point(), limits=replace(LIMITS, stall_s=0.1), alive=lambda: "gone")
    assert error.reason == "engine_died"


@pytest.mark.parametrize("reason", ["user", "budget"])
def test_a_stop_ends_the_repeat_within_a_second_or_two(reason: str) -> None:
    stop = StopFlag()
    began = time.monotonic()

    def alive() -> str | None:
        stop.reason = reason
        return None

    error = ending(honest(pause_s=0.1), load_point(tokens=1000), stop=stop, alive=alive)
    assert isinstance(error, AbortedTrial)
    assert error.reason == reason
    assert time.monotonic() - began < 10


def test_requests_left_over_are_given_up_when_the_repeat_ends_early() -> None:
    """The connections close, so that the server may end its requests, too."""
    with serving(silent) as server:
        with pytest.raises(FailedTrial):
            measure_repeat(load_point(), server.base_url, limits=LIMITS, stop=StopFlag(), alive=lambda: "gone")
        assert server.most_in_flight == 3
        assert wait_until(lambda: server.in_flight == 0, timeout_s=10, poll_s=0.01, clock=SystemClock())


def test_degenerate_replies_are_marked() -> None:
    """ME-04: every measured reply is screened."""

    async def answer(ask: Ask) -> web.StreamResponse:
        text = "data-" * 40 if ask.number == 1 else "A lamp burns on the rock and the keeper sleeps below it."
        last = event(payload(8, text=text, finish={"type": "length"}))
        return await fixed([last, event("[DONE]")])(ask)

    repeat, _ = measure(answer, load_point(concurrency=1))
    assert [record.degenerate for record in repeat.records] == [False, True] + [False] * 10


def test_a_failed_request_is_not_called_degenerate() -> None:
    repeat, _ = measure(honest(finish={"type": "abort"}), load_point())
    assert not any(record.degenerate for record in repeat.records)


def test_warm_up_runs_at_the_concurrency_and_never_sends_a_measured_prompt() -> None:
    """ME-07.2."""
    with serving(honest(pause_s=0.004)) as server:
        warm_up(load_point(tokens=500), server.base_url, limits=LIMITS, stop=StopFlag(), alive=lambda: None)
    sent = [str(ask.body["text"]) for ask in server.asks]
    assert server.most_in_flight == 3
    assert len(sent) == len(set(sent)) == 6
    assert not set(sent) & set(PROMPTS)
    assert {ask.tokens for ask in server.asks} == {64}


def test_warm_up_prompts_are_as_long_as_the_measured_ones_and_share_no_beginning() -> None:
    point = load_point(concurrency=8)
    for index, prompt in enumerate(warm_up_prompts(point)):
        assert len(prompt.split()) == len(PROMPTS[index % 12].split()) + 2
        assert prompt.split()[0] not in {measured.split()[0] for measured in PROMPTS}


def test_a_server_that_hangs_in_the_warm_up_is_a_hang() -> None:
    limits = replace(LIMITS, stall_s=0.1)
    with serving(silent) as server, pytest.raises(FailedTrial) as caught:
        warm_up(load_point(), server.base_url, limits=limits, stop=StopFlag(), alive=lambda: None)
    assert caught.value.reason == "hang_after_ready"
