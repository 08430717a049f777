"""Whether a reply has collapsed into a tight loop, from its text alone.

A broken configuration gives itself away by one token, word, phrase or line without end. Its drafts are all
accepted, so it would win every comparison. Two screens look for stretches of that kind:

* loops: the last dozen units (words and marks) stood in the same order at most 16 units earlier, or a
  line comes three times in a row;
* poverty: 48 units in a row that know hardly any different ones, which is a loop that stumbles.

A reply is degenerate when such stretches make up two fifths of it, so that a loop which begins halfway counts.
Where the figures come from: a dozen units in common leave out rows of tables and JSON, where one value in a
row differs; a loop of more than 16 units or of several lines is left alone, because small models and models
that must write past their end do that in plain decoding too, without anything being broken. A reply that is
nothing but a matrix of zeros and ones is called degenerate, which a share of all replies has to bear.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby


def is_degenerate(text: str) -> bool:
    """Whether the text is mostly a tight loop; a reply of fewer than 24 units never is, a blank one always."""
    return not text.strip() or collapsed_share(text) >= COLLAPSED_SHARE


def collapsed_share(text: str) -> float:
    """The share of the text, by units or by lines, that lies in collapsed stretches."""
    units = _units(text)
    if len(units) < _FEWEST_UNITS:
        return 0.0
    collapsed = [loop or poor for loop, poor in zip(_in_loop(units), _in_poor_span(units), strict=True)]
    return max(sum(collapsed) / len(units), _repeated_line_share(text))


COLLAPSED_SHARE = 0.4  # a loop from the middle on is a half; the rest is room for how it begins
_FEWEST_UNITS = 24  # "no, no, no, no!" is an answer
_LONGEST_PERIOD = 16  # units; the longest loop that counts as tight
_IN_COMMON = 12  # units that have to agree
_SPAN = 48  # units looked at for poverty
_FEWEST_DIFFERENT = 4  # a table of yes and no has as many marks beside its two words
_FEWEST_EQUAL_LINES = 3
_LONGEST_WORD = 40  # letters; what is longer is no word, so its letters are looked at

# A rule drawn in a table or under a heading is one unit up to a line's width. Chinese, Japanese and Korean
# are taken character by character. Blank space is no unit, a new line is.
_UNIT = re.compile(r"([-=_*#~.+─═|])\1{3,119}(?!\1)|[぀-ヿ㐀-鿿가-힯]|\w+|\n|[^\w\s]")


def _units(text: str) -> list[str]:
    units: list[str] = []
    for match in _UNIT.finditer(text):
        unit = match[0]
        is_rule = match[1] is not None
        units += unit if len(unit) > _LONGEST_WORD and not is_rule else [unit]
    return units


def _in_loop(units: Sequence[str]) -> list[bool]:
    """For each unit, whether it lies in an exact repetition with a short period."""
    inside = [False] * len(units)
    last_seen: dict[tuple[str, ...], int] = {}
    for start in range(len(units) - _IN_COMMON + 1):
        phrase = tuple(units[start : start + _IN_COMMON])
        before = last_seen.get(phrase)
        last_seen[phrase] = start
        if before is not None and start - before <= _LONGEST_PERIOD:
            end = start + _IN_COMMON
            inside[before:end] = [True] * (end - before)
    return inside


def _in_poor_span(units: Sequence[str]) -> list[bool]:
    """For each unit, whether it lies in a span that is made of hardly any different units."""
    inside = [False] * len(units)
    counts = Counter(units[:_SPAN])
    for end in range(_SPAN, len(units) + 1):
        if len(counts) <= _FEWEST_DIFFERENT:
            inside[end - _SPAN : end] = [True] * _SPAN
        if end < len(units):
            counts[units[end]] += 1
            leaving = units[end - _SPAN]
            counts[leaving] -= 1
            if not counts[leaving]:
                del counts[leaving]
    return inside


def _repeated_line_share(text: str) -> float:
    """The share of the characters that stand in a line which comes several times in a row; blank lines aside."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    runs = [list(run) for _, run in groupby(lines)]
    repeated = sum(len(line) for run in runs if len(run) >= _FEWEST_EQUAL_LINES for line in run)
    return repeated / max(1, sum(map(len, lines)))
