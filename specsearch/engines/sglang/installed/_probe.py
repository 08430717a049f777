"""What an installed SGLang declares and reads, found out by the interpreter that has it.

Its text is run as `python -c TEXT NEEDLES`, so that it also works in a container whose files this process cannot
see: standard library only, Python 3.10 or later. SGLang is never imported, which would take 10 s and need torch.
"""

import ast
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

MARK = "specsearch-probe "  # what a container prints before or after the answer does not begin like this

_NOT_SERVED = ("test", "bench", "auto_bench")  # beginnings of folders and files that no server runs
_READ_LAST = ("layers", "models", "kernels", "jit_kernel", "multimodal_gen")  # large, and few flags are read there
_LONG_LIST = 100  # a longer list of names, such as the order of all fields, is no use of any of them
_PLAIN_ACTIONS = ("store", "store_true", "store_false", "append")


class Flag(NamedTuple):
    """One way to write an option on the command line."""

    spelling: str
    field: str | None  # where its value is kept; None where code of its own decides that


def report(needles: Sequence[str]) -> dict[str, object]:
    """All that can be said of the SGLang of this interpreter; `needles` are explained at `read_package`."""
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        version = None
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = {"version": version, "package": folders[0] if folders else None}
    return {**found, **(read_package(Path(folders[0]), needles) if folders else {})}


def read_package(package: Path, needles: Sequence[str] = ()) -> dict[str, object]:
    """The server's flags (`--model-path`), the fields of flags that nothing reads, and the needles that are absent.

    A needle is a flag, a file of the package (`launch_server.py`) or a text that some source holds. Where the source
    of the flags is not there, all three are None.
    """
    trees = {path: tree for path in _argument_files(package) if (tree := _parsed(path)) is not None}
    flags = [flag for tree in trees.values() for flag in flags_of(tree)]
    if not flags:
        return {"flags": None, "unread": None, "absent": None}
    spellings = {flag.spelling for flag in flags}
    absent = {needle for needle in needles if needle not in spellings and not (package / needle).is_file()}
    unread = {flag.field for flag in flags if flag.field is not None}
    for path in _sources(package):
        text = path.read_bytes()
        absent -= {needle for needle in absent if _is_text(needle) and needle.encode() in text}
        if path in trees:
            text = _without_declarations(text, trees[path])
        unread -= {field for field in unread if _is_word_of(field, text)}
    return {"flags": sorted(spellings), "unread": sorted(unread), "absent": sorted(absent)}


def _is_text(needle: str) -> bool:
    return not needle.startswith("--") and not needle.endswith(".py")


def _argument_files(package: Path) -> list[Path]:
    return [package / "srt" / "server_args.py", *sorted((package / "srt" / "arg_groups").rglob("*.py"))]


def _sources(package: Path) -> list[Path]:
    """What a server may run, the sources that read most flags first, so that the rest is searched for few."""
    tops = [path for path in package.iterdir() if not path.name.startswith(_NOT_SERVED)]
    paths = [path for top in tops for path in (top.rglob("*.py") if top.is_dir() else [top]) if path.suffix == ".py"]
    return sorted(paths, key=lambda path: ([name in path.parts for name in reversed(_READ_LAST)], str(path)))


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _is_word_of(word: str, text: bytes) -> bool:
    # The plain search rules out most, and is many times as fast as the pattern.
    return word.encode() in text and re.search(rb"\b%s\b" % word.encode(), text) is not None


def _without_declarations(text: bytes, tree: ast.Module) -> bytes:
    """The source without the fields of classes, options added to a parser and long lists of names."""
    lines = text.split(b"\n")
    for node in _declarations(tree):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        lines[first:last] = [b""] * (last - first)
    return b"\n".join(lines)


def _declarations(tree: ast.Module) -> Iterator[ast.stmt | ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (statement for statement in node.body if isinstance(statement, ast.AnnAssign))
        elif _is_option(node) or (isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) > _LONG_LIST):
            yield node


def _is_option(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


def flags_of(tree: ast.Module) -> Iterator[Flag]:
    """Options added to a parser by hand, and those of fields written `name: A[type, "help" or Arg(…)]`."""
    for node in ast.walk(tree):
        if _is_option(node):
            yield from _flags_of_option(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _flags_of_field(node.target.id, node.annotation)


def _flags_of_option(call: ast.Call) -> Iterator[Flag]:
    settings = {keyword.arg: keyword.value for keyword in call.keywords}
    spellings = list(_spellings(call.args))
    is_plain = "action" not in settings or _text(settings["action"]) in _PLAIN_ACTIONS
    for spelling in spellings:
        field = _text(settings["dest"]) if "dest" in settings else spellings[0].lstrip("-").replace("-", "_")
        yield Flag(spelling, field if is_plain else None)


def _flags_of_field(name: str, annotation: ast.expr) -> Iterator[Flag]:
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)):
        return
    if not (isinstance(annotation.value, ast.Name) and annotation.value.id in ("A", "Annotated")):
        return
    for item in annotation.slice.elts[1:]:
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == "Arg":
            yield from _flags_of_arg(name, {keyword.arg: keyword.value for keyword in item.keywords})
            return
        if not isinstance(item, ast.Call):  # a bare help text makes a flag as well
            yield Flag("--" + name.replace("_", "-"), name)
            return


def _flags_of_arg(name: str, settings: Mapping[str | None, ast.expr]) -> Iterator[Flag]:
    if isinstance(settings.get("no_cli"), ast.Constant) and ast.literal_eval(settings["no_cli"]):
        return
    own = list(_spellings([settings["cli_name"]])) if "cli_name" in settings else ["--" + name.replace("_", "-")]
    action = getattr(settings.get("action"), "attr", None)
    negated = [flag.replace("--", "--no-", 1) for flag in own] if action == "BooleanOptionalAction" else []
    field = name if "action" not in settings or negated else None
    for spelling in [*own, *_spellings(getattr(settings.get("aliases"), "elts", ())), *negated]:
        yield Flag(spelling, field)


def _spellings(nodes: Iterable[ast.expr]) -> Iterator[str]:
    yield from (text for text in map(_text, nodes) if text is not None and text.startswith("--"))


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


if __name__ == "__main__":
    sys.stdout.write(f"\n{MARK}{json.dumps(report(json.loads(sys.argv[1])))}\n")
