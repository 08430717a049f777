"""Stored requests tell equal replies from different ones without their text."""

from dataclasses import replace

from specsearch.metrics import RequestRecord
from specsearch.storage.rows import request_rows
from tests.storage.made_rows import PLAIN_POINT, repeats, stamp, trial


def digests(*replies: str) -> list[object]:
    records = tuple(RequestRecord(started_s=0.0, finished_s=1.0, text=text) for text in replies)
    measured = replace(repeats([100.0])[0], records=records)
    return [row["text_digest"] for row in request_rows(trial(0, PLAIN_POINT, [measured]), stamp())]


def test_equal_replies_have_equal_digests_and_others_do_not() -> None:
    first, again, other = digests("the old cat", "the old cat", "the old cat ")
    assert first == again != other
    assert isinstance(first, str)
    assert len(first) == 16


def test_a_request_without_a_reply_has_no_digest() -> None:
    assert digests("") == [None]
