"""Single values: what a knob, a flag or an environment variable may be set to, and relative paths made absolute."""

import os
from pathlib import Path

from specsearch._search_space_file.document import Document, Place, shown
from specsearch._search_space_file.names import ENV, KNOBS, LISTS, SMALLEST
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Value

_TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
_KINDS = {bool: "true or false", int: "an integer", str: "a text"}
_RELATIVE = ("./", "../", "~/")


def absolute(folder: Path, text: str) -> str:
    """A path that begins with ./, ../ or ~/ made absolute from the file's folder; any other text as it is."""
    if text.startswith("~/"):
        return os.path.normpath(os.path.expanduser(text))  # noqa: PTH111 - unlike Path it never raises
    if text.startswith(_RELATIVE) or text in (".", ".."):
        return os.path.normpath(folder / text)
    return text


def absolute_program(folder: Path, text: str) -> str:
    """Like `absolute`, but anything with a slash is a path; a bare name is looked up by the system."""
    return absolute(folder, text if text.startswith(("/", *_RELATIVE)) or "/" not in text else f"./{text}")


def absolute_list(folder: Path, text: str) -> str:
    """Like `absolute`, for a list such as PYTHONPATH: each path in it."""
    return os.pathsep.join(absolute(folder, part) for part in text.split(os.pathsep))


def read_value(document: Document, place: Place, name: str) -> Value | None:
    """The value at a place as a setting of `name`; None when it cannot be one, which is then noted."""
    given = document.section(place)
    if given is None:
        document.problem(place, f"null is no value; write {UNSET} to leave it out, or {PLAIN} for plain decoding")
        return None
    if name.startswith(ENV):
        return _environment_text(document, place, given)
    if isinstance(given, list):
        return _batch_sizes(document, place, name, given)
    if not isinstance(given, str | bool | int | float):
        document.problem(place, f"expected a single value, saw {shown(given)}")
        return None
    if place in document.ambiguous:
        document.problem(place, f"{given} is true or false to some readers and a text to others; write true or false")
        return None
    problem = _knob_problem(name, given)
    if problem:
        document.problem(place, problem)
        return None
    if isinstance(given, str):
        return _algorithm(given) if name == ALGORITHM else absolute(document.folder, given)
    return given


def _environment_text(document: Document, place: Place, given: object) -> Value | None:
    if isinstance(given, list | dict):
        document.problem(place, f"expected the text of an environment variable, saw {shown(given)}")
        return None
    return absolute_list(document.folder, document.raw[place])


def _batch_sizes(document: Document, place: Place, name: str, given: list[object]) -> Value | None:
    if name not in LISTS:
        document.problem(place, f"expected a single value, saw a list; only {' and '.join(LISTS)} take lists")
        return None
    sizes = [size for size in given if isinstance(size, int) and not isinstance(size, bool) and size > 0]
    if len(sizes) < len(given) or not sizes or sizes != sorted(set(sizes)):
        document.problem(place, "expected batch sizes from small to large, such as [1, 2, 4, 8]")
        return None
    return " ".join(map(str, sizes))


def _knob_problem(name: str, given: Value) -> str | None:
    if given == UNSET:
        needed = name in (*_TRIPLE, ALGORITHM)
        return f"{name} cannot be {UNSET}: steps, top-k and draft tokens go to the server together" if needed else None
    kind = KNOBS.get(name)
    if kind and type(given) is not kind:
        return f"{name} is {_KINDS[kind]}, saw {shown(given)}"
    if isinstance(given, int) and given < SMALLEST.get(name, given):
        return f"{name} is at least {SMALLEST[name]}, saw {given}"
    return "is empty" if given == "" else None


def _algorithm(text: str) -> str:
    """SGLang reads the algorithm in capitals; plain decoding is `none` however it is written."""
    return PLAIN if text.lower() == PLAIN else text.upper()


def one_type(values: list[Value]) -> list[Value] | None:
    """The values as one type, integers beside fractions as fractions; None when they are of several types."""
    typed = [value for value in values if value not in (UNSET, PLAIN)]
    kinds = {type(value) for value in typed}
    if kinds == {int, float}:
        return [float(value) if isinstance(value, int) else value for value in values]
    return values if len(kinds) <= 1 else None
