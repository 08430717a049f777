"""The lines of a log without what a terminal, a logger or another rank put around them."""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINE = re.compile(r"[^\n]+")
# A line of another rank may begin where that of the first has not ended.
_WITHIN = re.compile(r"(?<=[^\n])(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
# `[2026-12-01 15:00:00 DP0 TP3] `, and what a logging configuration of one's own may make of it:
# `2026-12-01 15:00:02 INFO 3131 [DP0 TP0 scheduler.py:757] `
_RANKS = r"(?P<ranks{0}>(?:[A-Z][A-Z_]*\d+ ?)*)"
_STAMP = re.compile(
    rf"\[(?:\d{{4}}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)? ?{_RANKS.format(1)}\] ?"
    rf"|\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? [A-Z]+ (?:\d+ )?\[{_RANKS.format(2)}[\w./]*(?::\d+)?\] ?"
)
# What torch puts before each line of an exception that nobody caught, and before its own warnings.
_TORCH_RANK = re.compile(r"\[rank(?P<rank>\d+)\]:(?: (?!\[)|(?=\[))")
_LONGEST_PREFIX = 300  # characters between a prefix and what is looked for


class Line(NamedTuple):
    """One line; `rank` as its prefix names it (`DP0 TP3`, or torch's number), empty where it does not."""

    position: int
    text: str
    rank: str = ""
    is_logged: bool = False  # by a logger, hence no part of a traceback
    is_uncaught: bool = False  # by torch, for an exception that ends its process


def without_colours(text: str) -> str:
    """The text without terminal colour codes."""
    return _COLOUR.sub("", text).replace("\r", "\n")


def lines(text: str) -> Iterator[Line]:
    """Every line that is not empty, two of them where two ranks wrote into one."""
    for match in _LINE.finditer(text):
        whole, start = match.group(), match.start()
        if whole.find("[20", 1) > 0:  # rare, and the exact look is dear
            cuts = [0, *(cut.start() for cut in _WITHIN.finditer(whole)), len(whole)]
            for begin, end in itertools.pairwise(cuts):
                yield _line(whole[begin:end], start + begin)
        else:
            yield _line(whole, start)


def _line(text: str, position: int) -> Line:
    if stamp := _STAMP.match(text):
        ranks = stamp["ranks1"] or stamp["ranks2"] or ""
        return Line(position, text[stamp.end() :], ranks.strip(), is_logged=True)
    if torch := _TORCH_RANK.match(text):
        rest = text[torch.end() :]
        return Line(position, rest, torch["rank"], rest.startswith("["), not rest.startswith("["))
    return Line(position, text)


def line_with(text: str, position: int) -> str:
    """The line that holds a position of the text."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()


def rank_at(text: str, position: int) -> str:
    """The rank that wrote what stands at a position, as the nearest prefix before it on its line names it."""
    near = max(position - _LONGEST_PREFIX, 0)
    before = text[max(text.rfind("\n", near, position) + 1, near) : position]
    stamps = list(_STAMP.finditer(before))
    return (stamps[-1]["ranks1"] or stamps[-1]["ranks2"] or "").strip() if stamps else ""
