"""The exceptions that a log holds, in the order in which they were written: what each says, of which rank it is,
which were raised one from another, and which of them ended a process.

Tracebacks of several ranks may be written into one another: a line that a logger wrote is no part of any, and the one
that was begun first is taken to end first.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specsearch.engines.sglang.logs.lines import Line, lines

_BEGIN = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# Before a traceback: the process ends with it.
_ENDS_A_PROCESS = re.compile(r"\b\w+ hit an exception: |\bwarmup error: |^Process \S+:$")
_WARM_UP = "warmup error: "
_IGNORED = "Exception ignored in"
_NATIVE = re.compile(r"terminate called after throwing an instance of|^Fatal Python error: ")
# Below a traceback any name will do that could be a class: `torch.AcceleratorError: …`, `queue.Empty`, `KeyError: 'x'`.
_ANY_EXCEPTION = re.compile(r"(?P<name>(?:\w+\.)+\w+|[A-Z]\w*[a-z]\w*)(?::\s|:?\s*$)")
_EXCEPTION = re.compile(
    r"(?:Exception: )?(?P<name>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Timeout|Exit|OutOfResources))(?::|\s*$)"
)
_MOST_LINES = 60  # of one message; compilers write more


@dataclass(slots=True)
class Raised:
    """One exception: its line, and the lines of its message below it."""

    line: Line
    message: list[str]
    frames: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.message)

    @property
    def name(self) -> str:
        """`ValueError` of `ValueError: no such thing`."""
        match = _EXCEPTION.match(self.message[0]) or _ANY_EXCEPTION.match(self.message[0])
        return match["name"].rpartition(".")[2] if match else ""


@dataclass(slots=True)
class Death:
    """Exceptions that were raised one from another; the first of them started it."""

    rank: str
    position: int
    is_certain: bool  # it ended a process; else it may have been caught and logged
    is_warm_up: bool = False
    raised: list[Raised] = field(default_factory=list)

    @property
    def first(self) -> Raised:
        return self.raised[0]

    @property
    def text(self) -> str:
        return "\n".join(one.text for one in self.raised)


@dataclass(slots=True)
class _Open:
    """A traceback whose exception was not met yet."""

    death: Death
    frames: list[str] = field(default_factory=list)


def deaths(text: str) -> list[Death]:
    """Every exception of the text, without colours, in the order in which the first of a chain was written."""
    return _Reader().read(lines(text))


class _Reader:
    def __init__(self) -> None:
        self._found: list[Death] = []
        self._open: list[_Open] = []
        self._message: list[str] | None = None  # of the exception whose message goes on
        self._chained: Death | None = None
        self._before = Line(0, "")

    def read(self, log: Iterator[Line]) -> list[Death]:
        for line in log:
            if line.is_logged and _BEGIN not in line.text:  # nearly all lines of a long log
                self._message = None
            else:
                self._read(line)
            self._before = line
        return [death for death in self._found if death.raised]

    def _read(self, line: Line) -> None:
        if _BEGIN in line.text:
            self._begin(line)
        elif line.text.startswith(_IGNORED):
            self._message = None
        elif self._open and line.text[0] in " \t":
            self._open[0].frames.append(line.text)
        elif self._open and _ANY_EXCEPTION.match(line.text):
            self._end(line)
        elif line.text.startswith(_CHAINED):
            self._message, self._chained = None, self._found_last()
        elif _NATIVE.match(line.text):
            self._alone(line, is_certain=True)
        elif self._message is not None and not line.is_uncaught and len(self._message) < _MOST_LINES:
            self._message.append(line.text)
        elif _EXCEPTION.match(line.text):
            self._alone(line, is_certain=line.is_uncaught)

    def _begin(self, line: Line) -> None:
        head, _, _ = line.text.partition(_BEGIN)
        self._message = None
        if self._chained is not None and not head.strip():
            death = self._chained
        else:
            before = "" if self._before.is_logged else self._before.text
            ends = line.is_uncaught or bool(_ENDS_A_PROCESS.search(head) or _ENDS_A_PROCESS.search(before))
            death = Death(line.rank, line.position, ends, is_warm_up=_WARM_UP in head)
            if not before.startswith(_IGNORED):
                self._found.append(death)
        self._chained = None
        self._open = [one for one in self._open if one.death.rank != death.rank]  # a process writes one after another
        self._open.append(_Open(death))

    def _end(self, line: Line) -> None:
        traceback = self._open.pop(0)
        self._message = [line.text]
        traceback.death.raised.append(Raised(line, self._message, traceback.frames))

    def _alone(self, line: Line, *, is_certain: bool) -> None:
        """An exception without a traceback; such lines in a row are one story."""
        self._message = [line.text]
        death = Death(line.rank, line.position, is_certain)
        death.raised.append(Raised(line, self._message, []))
        self._found.append(death)

    def _found_last(self) -> Death | None:
        told: Sequence[Death] = [death for death in self._found if death.raised]
        return max(told, key=lambda death: death.raised[-1].line.position, default=None)
