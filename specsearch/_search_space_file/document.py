"""A search-space file as plain values that know their lines.

YAML is data here: no tags, no merge keys, few aliases, bounded size, depth and length. Plain scalars follow the
JSON-like core of YAML 1.2, so that `on` and `8h` stay texts, `1e-3` is a number and `512` is not octal.
"""

import difflib
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from specsearch.errors import ConfigError

Place = tuple[str | int, ...]  # keys and positions from the top of the file

MOST_BYTES = 1 << 20
MOST_NODES = 20_000  # about one second of reading; the shipped files have fewer than 500
MOST_ALIASES = 100
DEEPEST = 16  # the grammar needs 6
MOST_PROBLEMS = 50  # more are counted and not shown
# The last line of every list: what the engine knows needs a space that can be read.
FOLLOWING = "further checks (engine, drafters) follow when these are repaired"

_TABS = "indent with spaces, not tabs"
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {text: text[0] in "tT" for text in ("true", "True", "TRUE", "false", "False", "FALSE")}
_OTHER_BOOLEANS = ("yes", "no", "on", "off", "y", "n")  # booleans of YAML 1.1, texts of YAML 1.2
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_MOST_DIGITS = 18
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass
class Document:
    """What a file says, where it says it, and what is wrong with it so far."""

    path: Path
    data: dict[str, object] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)
    raw: dict[Place, str] = field(default_factory=dict)  # scalars as they are written
    ambiguous: set[Place] = field(default_factory=set)  # plain `on`, `off`, `yes`, `no`
    warnings: list[str] = field(default_factory=list)
    _problems: dict[Place, tuple[int, str]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the file lies; relative paths in it start here."""
        return self.path.absolute().parent

    def line(self, place: Place) -> int:
        """The line of a place, or of the nearest thing around it that is in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, place: Place, text: str, *, line: int | None = None) -> None:
        """Note a mistake; the first one at a place is the one that is shown."""
        line = self.line(place) if line is None else line
        named = f"{dotted(place)}: " if place else ""
        self._problems.setdefault(place, (line, f"line {line}: {named}{text}"))

    def has_problem(self, place: Place) -> bool:
        """Whether a mistake is noted at a place or inside it."""
        return any(found[: len(place)] == place for found in self._problems)

    def raise_problems(self) -> None:
        """Raise everything that is wrong as one ConfigError, in the order of the lines; nothing when all is well."""
        if self._problems:
            ordered = sorted(self._problems.values(), key=lambda problem: problem[0])
            texts = [text for _, text in ordered[:MOST_PROBLEMS]]
            more = len(ordered) - MOST_PROBLEMS
            rest = [f"and {more} more"] if more > 0 else []
            raise ConfigError(str(self.path), [*texts, *rest, FOLLOWING])

    def section(self, place: Place) -> object:
        """The value at a place, None where there is none."""
        value: object = self.data
        for part in place:
            if isinstance(value, list):
                value = dict(enumerate(value))
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value


def dotted(place: Place) -> str:
    """A place as text, such as `load_points[0].concurrency`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_shortened(part)}" for part in place)
    return text.removeprefix(".")


def shown(value: object) -> str:
    """A value of the file as an error names it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"'{_shortened(value)}'"
    return _shortened(str(value))


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The nearest right spelling as the end of a sentence; empty when nothing is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def _shortened(text: str) -> str:
    text = text.replace("\n", " ")
    return text if len(text) <= 60 else text[:59] + "…"


def read_document(path: Path) -> Document:
    """Read a file; raises ConfigError when it is not readable YAML data, notes smaller mistakes in the document."""
    document = Document(path)
    text = _text(path)
    try:
        events = list(_bounded_events(path, text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = " ".join(filter(None, (error.context, error.problem)))
        raise _fatal(path, line, _TABS if _is_indented_by_a_tab(text, mark) else f"not valid YAML: {what}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _fatal(path, line, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # escapes and directives with impossible numbers
        raise _fatal(path, 1, f"not valid YAML: {_shortened(str(error))}") from None
    _Reader(document, events).read()
    return document


def _is_indented_by_a_tab(text: str, mark: yaml.Mark | None) -> bool:
    """Whether a tab stands between the beginning of the line and the place of an error."""
    if mark is None:
        return False
    before = text[mark.index - mark.column : mark.index + 1]
    return "\t" in before[: len(before) - len(before.lstrip())]


def _fatal(path: Path, line: int, text: str) -> ConfigError:
    return ConfigError(str(path), [f"line {line}: {text}"])


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(str(path), ["is a folder; give the search-space file itself"])
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(str(path), ["is not a regular file"])
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        siblings = [sibling.name for sibling in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise ConfigError(str(path), [f"does not exist{did_you_mean(path.name, siblings)}"]) from None
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror or error}"]) from None
    except ValueError as error:  # a NUL in the name
        raise ConfigError(str(path), [f"is no file name: {error}"]) from None
    if len(content) > MOST_BYTES:
        raise ConfigError(str(path), [f"is larger than {MOST_BYTES >> 20} MiB; a search-space file has a few kB"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _fatal(path, line, "not UTF-8 text; save the file as UTF-8") from None


def _bounded_events(path: Path, text: str) -> Iterator[yaml.Event]:
    """The events of a file, until it is longer or deeper than any search space."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = _line(event)
        if depth > DEEPEST:
            raise _fatal(path, line, f"nested deeper than {DEEPEST} levels")
        if number > MOST_NODES:
            raise _fatal(path, line, f"more than {MOST_NODES} values")
        yield event


class _Reader:
    """Events → plain values; an alias is read again where its anchor stands."""

    def __init__(self, document: Document, events: Sequence[yaml.Event]) -> None:
        self.document = document
        self.events = [event for event in events if not isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent)]
        self.position = 0
        self.nodes = self.aliases = 0
        self.anchors: dict[str, int] = {}
        self.open: set[str] = set()

    def read(self) -> None:
        starts = [event for event in self.events if isinstance(event, yaml.DocumentStartEvent)]
        if not starts:
            raise ConfigError(str(self.document.path), ["is empty; see docs/search-spaces.md for a first example"])
        if len(starts) > 1:
            raise self._stop(starts[1], "a second document begins; one file is one search space")
        self.position = 1
        top = self._value((), 0)
        if top is None:
            raise ConfigError(str(self.document.path), ["is empty; see docs/search-spaces.md for a first example"])
        if not isinstance(top, dict):
            seen = shown(top)
            raise _fatal(self.document.path, 1, f"expected sections such as `engine:` and `parameters:`, saw {seen}")
        self.document.data = top

    def _stop(self, event: yaml.Event, text: str) -> ConfigError:
        return _fatal(self.document.path, _line(event), text)

    def _value(self, place: Place, depth: int) -> object:
        event = self.events[self.position]
        self.position += 1
        self.nodes += 1
        self.document.lines.setdefault(place, _line(event))
        if self.nodes > MOST_NODES or depth > DEEPEST:
            raise self._stop(event, "its aliases unfold to more than a search space can hold; write the values out")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place, depth)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            self.document.problem(place, f"the tag {shown(event.tag)} is not allowed; a search space is plain data")
        if event.anchor is None:
            return self._untagged(event, place, depth)
        self.anchors[event.anchor] = self.position - 1
        self.open.add(event.anchor)
        value = self._untagged(event, place, depth)
        self.open.discard(event.anchor)
        return value

    def _alias(self, event: yaml.AliasEvent, place: Place, depth: int) -> object:
        self.aliases += 1
        if self.aliases > MOST_ALIASES:
            raise self._stop(event, f"more than {MOST_ALIASES} aliases; write the values out")
        name = str(event.anchor)
        if name not in self.anchors:
            raise self._stop(event, f"the alias *{_shortened(name)} has no anchor before it")
        if name in self.open:
            raise self._stop(event, f"the alias *{_shortened(name)} stands inside its own anchor")
        back, self.position = self.position, self.anchors[name]
        value = self._value(place, depth)
        self.position = back
        return value

    def _untagged(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, place: Place, depth: int) -> object:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, place)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(place, depth)
        return self._mapping(place, depth)

    def _list(self, place: Place, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(self.events[self.position], yaml.SequenceEndEvent):
            items.append(self._value((*place, len(items)), depth + 1))
        self.position += 1
        return items

    def _mapping(self, place: Place, depth: int) -> dict[str, object]:
        entries: dict[str, object] = {}
        while not isinstance(self.events[self.position], yaml.MappingEndEvent):
            key = self._key(place, entries)
            if key is None:
                self._skip()
                continue
            entries[key] = self._value((*place, key), depth + 1)
        self.position += 1
        return entries

    def _key(self, place: Place, entries: dict[str, object]) -> str | None:
        """The next key as text, None when its value is not to be read."""
        event = self.events[self.position]
        line = _line(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._skip()
            self.document.problem((*place, "?"), "a key must be a single word, saw a list, mapping or alias", line=line)
            return None
        self.position += 1
        if event.value == "<<" or _UNPRINTABLE.search(event.value):
            why = "merge keys are not supported; write the entries out" if event.value == "<<" else "unprintable key"
            self.document.problem((*place, "<<"), why, line=line)
            return None
        if event.value in entries:
            first = self.document.lines[*place, event.value]
            self.document.problem((*place, event.value), f"given twice, first in line {first}; keep one", line=line)
            return None
        self.document.lines[*place, event.value] = line
        return event.value

    def _skip(self) -> None:
        """Go past a value that is of no use."""
        depth = 0
        while True:
            event = self.events[self.position]
            self.position += 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return

    def _scalar(self, event: yaml.ScalarEvent, place: Place) -> object:
        text = str(event.value)
        if _UNPRINTABLE.search(text):
            self.document.problem(place, "holds an unprintable character")
            return ""
        self.document.raw[place] = text
        if not event.implicit[0] or event.style:  # quoted, or a block of text
            return text
        if text.lower() in _OTHER_BOOLEANS:
            self.document.ambiguous.add(place)
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return self._integer(text, place)
        return self._number(text, place) if _NUMBER.fullmatch(text) else text

    def _integer(self, text: str, place: Place) -> int | None:
        if len(text.lstrip("+-")) > _MOST_DIGITS:
            self.document.problem(place, f"an integer has at most {_MOST_DIGITS} digits, this one has {len(text)}")
            return None
        return int(text)

    def _number(self, text: str, place: Place) -> float | None:
        if abs(float(text)) == float("inf"):
            self.document.problem(place, f"{_shortened(text)} is too large for a number")
            return None
        return float(text)
