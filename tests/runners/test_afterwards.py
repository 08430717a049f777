"""What is made of the server's own figures after the measurement, without a server."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from specsearch.engines import Identity
from specsearch.metrics import METRICS
from specsearch.runners._afterwards import accept_length_warnings
from specsearch.runners._record import TrialRecord
from specsearch.trial import Measurement, StopFlag, TrialKind, TrialRequest
from tests.fakes import FakeClock

IDENTITY = Identity("0.5.23", {}, "key", (), None, log_interval=10)
LAST: Mapping[str, float | None] = {
    **dict.fromkeys(METRICS),
    "accept_length": 2.06,
    "verify_steps": 299,
    "requests_total": 2,
}


def record(counted: float | None, *, identity: Identity | None = IDENTITY, flushed: bool = True) -> TrialRecord:
    """A trial whose requests accepted 2.06 tokens per verify step, 3 drafts at most, and whose server counted so."""
    request = TrialRequest(number=0, attempt=1, kind=TrialKind.SEED, point={})
    made = TrialRecord(request, FakeClock(), StopFlag(), lambda progress: None, identity=identity, flushed=flushed)
    made.facts["server_accept_length"] = counted
    made.measurements.append(
        Measurement(
            workload="chat",
            workload_digest="0",
            workload_kind="text",
            concurrency=1,
            repeat=0,
            values=LAST,
            accepted_histogram=(100, 100, 60, 39),
        )
    )
    return made


def test_a_server_that_counts_something_else_is_said_with_both_figures() -> None:
    """ME-02: 2.90 by the server, (618 − 2)/299 = 2.06 by the requests."""
    (sentence,) = accept_length_warnings(record(2.90))
    assert "2.90" in sentence
    assert "2.06" in sentence


@pytest.mark.parametrize("counted", [2.00, 2.06, 2.15])
def test_what_the_steps_since_the_last_log_line_explain_is_no_difference(counted: float) -> None:
    """ME-02: 9 steps and one more for each request, of 299, of 3 drafts each."""
    assert not list(accept_length_warnings(record(counted)))


def test_figures_that_cannot_be_compared_are_not() -> None:
    """ME-02: not told, counted since before the repeat, or moved nobody knows how often."""
    assert not list(accept_length_warnings(record(None)))
    assert not list(accept_length_warnings(record(2.90, flushed=False)))
    assert not list(accept_length_warnings(record(2.90, identity=None)))
    assert not list(accept_length_warnings(record(2.90, identity=replace(IDENTITY, log_interval=None))))
    plain = record(2.90)
    plain.measurements[-1] = replace(plain.measurements[-1], values=dict.fromkeys(METRICS), accepted_histogram=None)
    assert not list(accept_length_warnings(plain))
