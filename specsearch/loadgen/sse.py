"""Server-sent events, as far as a stream of `data:` lines needs them."""

from collections.abc import Iterator


class EventReader:
    """Bytes as they arrive → the payloads of the `data:` lines that are complete.

    Comments, other fields and blank lines are skipped. A line without its end is kept until the end comes;
    `head` keeps the first bytes of the stream, for the sentence about a body that was no event stream.
    """

    def __init__(self) -> None:
        self.head = b""
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that this piece of the stream completed."""
        if len(self.head) < _HEAD_BYTES:
            self.head = (self.head + data)[:_HEAD_BYTES]
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


_HEAD_BYTES = 200
