"""The words around a launch: `engine.command_prefix` and `engine.stop_command`."""

import re
from collections.abc import Iterator, Sequence

from specsearch._search_space_file.document import Document, Place, did_you_mean, shown
from specsearch._search_space_file.models import EngineSection
from specsearch._search_space_file.values import absolute
from specsearch.launch import PLACEHOLDERS, placeholders_of

_PREFIX: Place = ("engine", "command_prefix")
_STOP: Place = ("engine", "stop_command")
_WHOLE_NAME = re.compile(r"(--[a-z][a-z-]*=)?\{name\}")  # in a longer word it would be another container's


def read_command_prefix(document: Document, section: EngineSection) -> tuple[str, ...]:
    """The words before a launch, their placeholders still in them."""
    _check_words(document, _PREFIX, section.command_prefix, PLACEHOLDERS)
    for index, word in enumerate(section.command_prefix):
        if word != "{env}" and "env" in _names([word]):
            document.problem((*_PREFIX, index), "{env} becomes several words: it is an item of its own")
    if section.command_prefix.count("{env}") > 1:
        document.problem(_PREFIX, "{env} stands there twice; once is enough")
    return tuple(absolute(document.folder, word) for word in section.command_prefix)


def read_stop_command(document: Document, section: EngineSection) -> tuple[str, ...]:
    """The command that ends the container of a launch; it must say which, so that it can end no other."""
    _check_words(document, _STOP, section.stop_command, ("name",))
    if section.stop_command and not document.has_problem(_STOP):
        if "name" not in _names(section.stop_command):
            document.problem(_STOP, "needs {name}: without the name of the container it would end something else")
        elif not all(map(_WHOLE_NAME.fullmatch, (word for word in section.stop_command if _names([word])))):
            document.problem(_STOP, "{name} is a word of its own, or the whole value of an option as in --name={name}")
        elif "name" not in _names(section.command_prefix):
            document.problem(
                _STOP,
                "nothing bears the {name}: engine.command_prefix must give it to the container, as in --name {name}",
            )
    return tuple(absolute(document.folder, word) for word in section.stop_command)


def _check_words(document: Document, place: Place, words: Sequence[str], allowed: Sequence[str]) -> None:
    for index, word in enumerate(words):
        for problem in _problems(word, allowed):
            document.problem((*place, index), problem)


def _problems(word: str, allowed: Sequence[str]) -> Iterator[str]:
    there = [f"{{{name}}}" for name in allowed]
    listed = ", ".join(there)
    try:
        unknown = [f"{{{name}}}" for name in placeholders_of([word]) if name not in allowed]
    except ValueError as error:
        yield f"{error}; placeholders are {listed}"
        return
    for name in unknown:
        near = did_you_mean(name, there)
        and_all = f"{near} There" if near else "; there"
        yield f"{shown(name)} is no placeholder{and_all} are {listed}; a literal brace is written {{{{"


def _names(words: Sequence[str]) -> list[str]:
    try:
        return placeholders_of(words)
    except ValueError:  # said where the word is checked
        return []
