"""Reading a stream of `data:` lines."""

import pytest

from specsearch.loadgen.sse import EventReader

STREAM = b': ping\n\ndata: {"a": 1}\n\nevent: x\r\ndata:{"b": 2}\r\n\r\ndata: [DONE]\n\n'
PAYLOADS = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_payloads_do_not_depend_on_where_tcp_cuts_the_stream(size: int) -> None:
    reader = EventReader()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [payload for piece in pieces for payload in reader.feed(piece)] == PAYLOADS


def test_a_line_without_its_end_is_not_a_payload() -> None:
    reader = EventReader()
    assert list(reader.feed(b'data: {"a": 1}\n\ndata: {"b"')) == [b'{"a": 1}']


def test_the_first_bytes_are_kept_for_a_sentence_about_them() -> None:
    reader = EventReader()
    for _ in range(100):
        list(reader.feed(b"<html>"))
    assert reader.head.startswith(b"<html><html>")
    assert len(reader.head) == 200
