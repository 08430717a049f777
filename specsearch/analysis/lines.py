"""Words, tables and numbers as lines of plain text, at most 100 columns wide where words allow it."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 100
_SIMULATED = "simulated"


def joined(sections: Iterable[Iterable[str]]) -> list[str]:
    """Sections with an empty line between those that say anything."""
    lines: list[str] = []
    for section in sections:
        found = list(section)
        lines += [*([""] if lines and found else []), *found]
    return lines


def wrapped(text: str, *, indent: str = "", first: str | None = None) -> list[str]:
    """A paragraph; `first` stands before its first line, `indent` before the others."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def bullet(text: str) -> list[str]:
    """One point of a list."""
    return wrapped(text, indent="    ", first="  - ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int]) -> Iterator[str]:
    """Columns aligned to the right but for those in `left`; the last one is cut where the line ends."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = ("  " + "  ".join(cells)).rstrip()
        yield line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def marked(text: str, *, simulated: bool) -> str:
    """A title that says where its numbers come from."""
    return f"{text} ({_SIMULATED})" if simulated else text


def decimals(value: float | None, sign: str = "") -> str:
    """Two digits after the point; `–` when it is not known."""
    return "–" if value is None else f"{value:{sign}.2f}".replace("-", "−")


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def trials(numbers: Sequence[int], most: int = 3) -> str:
    """The names of a few trials, and that there are more."""
    return ", ".join(f"t{number:04d}" for number in numbers[:most]) + (", …" * (len(numbers) > most))


def wrap_command(command: str, width: int = WIDTH) -> list[str]:
    """A shell line in several, joined by backslashes; only between words, an option beside its values."""
    groups: list[str] = []
    for word in _SHELL_WORD.findall(command):
        is_value = groups and groups[-1].startswith("-") and not word.startswith("-")
        if is_value and " " not in groups[-1]:
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines, current = [], ""
    for group in groups:
        if current and len(current) + 1 + len(group) > width - 2:
            lines.append(f"{current} \\")
            current = "  " + group
        else:
            current = f"{current} {group}" if current else group
    return [*lines, current]


_SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|'[^']*'|"(?:\\.|[^"\\])*"|\\.)+""", re.DOTALL)
