"""What the documents say can be done: links lead somewhere, commands parse, targets, statuses and codes exist."""

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from specsearch import cli, errors
from specsearch.trial import TrialStatus

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "search_spaces/*.md",
        "results/*.md",
        "tests/*/*.md",
        "benchmarks/*.md",
        ".github/*.md",
    )
    for path in ROOT.glob(pattern)
)

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n(.*?)^ {0,3}\1", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
_MAKE = re.compile(r"(?:^|[`&;]\s*|\s)make ((?:[a-z][\w-]*)(?: [a-z][\w-]*)*)")


def without_fences(text: str) -> str:
    return _FENCE.sub("", text)


def links(text: str) -> Iterator[str]:
    """Every link target of a page that is not an address of the web."""
    for match in _LINK.finditer(without_fences(text)):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6}\s+(.+?)\s*#*\s*$", without_fences(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", known) is not None for known in found)
        found.add(f"{anchor}-{count}" if count else anchor)
    return found


def link_problem(page: Path, target: str) -> str | None:
    """Why a link leads nowhere, or None."""
    name, _, anchor = target.partition("#")
    goal = (page.parent / name).resolve() if name else page
    if not goal.exists():
        return f"{target}: no such file"
    if anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text()):
        return f"{target}: no such heading"
    return None


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every specsearch command in the fenced blocks, the options of a wrapped line included."""
    for _, block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|;|\s\|\s", line.strip().removeprefix("$ ")):
                words = _words(part)
                while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
                    words = words[1:]
                if words[1:2] == ["-m"] and re.fullmatch(r"python[\d.]*", words[0]):
                    words = words[2:]
                if words and re.fullmatch(r"specsearch(\.\w+)?", words[0]):
                    yield words


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # prose or program output with an apostrophe in it
        return []


def command_problem(words: list[str]) -> str | None:
    """Why a command line of a page would be refused, or None."""
    program, *arguments = words
    command = program.partition(".")[2] or (arguments.pop(0) if arguments else "")
    if command in ("", "--help", "--version"):
        return None
    if command.partition(".")[0] not in cli.COMMANDS:
        return f"{command} is no command"
    for word in arguments:
        if word.startswith("search_spaces/") and not (ROOT / word).is_file():
            return f"{word} does not exist"
    said = StringIO()
    with redirect_stderr(said):
        try:
            import_module(f"specsearch.{command}").build_parser().parse_args([w for w in arguments if w != "--help"])
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
    return None


def make_targets(text: str) -> set[str]:
    """The targets that a page tells its reader to make, in blocks of shell and in `code`."""
    code = "\n".join(_SHELL.findall(text) + re.findall(r"`[^`\n]+`", without_fences(text)))
    return {target for targets in _MAKE.findall(code) for target in targets.split()}


def reasons_in_the_code() -> set[str]:
    """Every reason in the package: a lone word in a call that makes, or is about, a TrialError or a TrialStatus."""
    return {
        word
        for path in (ROOT / "specsearch").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for word in _reasons(call)
    }


def _reasons(call: ast.Call) -> Iterator[str]:
    kinds = {kind.__name__ for kind in _subclasses(errors.TrialError)}
    words = [call.func, *call.args, *(word.value for word in call.keywords)]
    is_about_trials = ast.unparse(call.func).endswith(".lost") or any(
        (isinstance(word, ast.Name) and word.id in kinds) or ast.unparse(word).startswith("TrialStatus.")
        for word in words
    )
    said = [word.value for word in call.keywords if word.arg == "reason"] + (call.args if is_about_trials else [])
    for word in said:
        for value in [word.body, word.orelse] if isinstance(word, ast.IfExp) else [word]:
            if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z]+)*", str(value.value)):
                yield str(value.value)


def _subclasses(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_or_heading(page: Path) -> None:
    problems = [problem for target in links(page.read_text()) if (problem := link_problem(page, target))]
    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_is_one_that_the_command_accepts(page: Path) -> None:
    lines = list(command_lines(page.read_text()))
    problems = [f"{shlex.join(words)}: {problem}" for words in lines if (problem := command_problem(words))]
    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_make_target_of_a_page_exists(page: Path) -> None:
    existing = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert make_targets(page.read_text()) <= existing


def test_the_pages_that_people_start_from_show_commands() -> None:
    """The reading of commands can fail: it must find those that are certainly there."""
    shown = [words[0] for words in command_lines((ROOT / "README.md").read_text())]
    assert "specsearch.tune" in shown
    assert "specsearch.report" in shown


def test_every_page_of_docs_is_listed_in_its_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in links(index.read_text())}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index} <= listed


@pytest.mark.parametrize("page", ["architecture.md", "errors.md"])
def test_every_status_has_a_row_in_the_table_of(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert {str(status) for status in TrialStatus} <= set(rows)


def test_every_reason_that_the_code_gives_is_explained_and_no_other() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))
    reasons = reasons_in_the_code()
    assert "hang" in reasons  # the reading can fail: this one is certainly raised
    assert reasons - explained == set()
    given_from_outside = {"user", "budget"}  # why a study was stopped
    assert explained - reasons - given_from_outside - {str(status) for status in TrialStatus} == set()


def test_every_exit_code_is_explained_and_is_the_one_that_help_states() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    raised = {kind.exit_code for kind in [errors.SpecSearchError, *_subclasses(errors.SpecSearchError)]}
    helped = {int(code) for code in re.findall(r"(?:^|[:·\s])(\d+) ", cli.EXIT_CODES)}
    assert raised <= explained
    assert helped == explained


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("python -m specsearch.tune --no-such-option", "unrecognized arguments: --no-such-option"),
        ("FOO=1 python -m specsearch.tune search_spaces/no-such.yaml", "search_spaces/no-such.yaml does not exist"),
        ("$ specsearch tun SPACE.yaml", "tun is no command"),
        ("pip install -e . && python -m specsearch.check", "the following arguments are required: SPACE.yaml"),
        ("python -m specsearch.tune SPACE.yaml \\\n    --trials many", "invalid int value: 'many'"),
    ],
)
def test_a_command_that_would_be_refused_is_found(line: str, problem: str) -> None:
    (words,) = command_lines(f"text\n\n```bash\n{line}   # comment\n```\n")
    assert problem in (command_problem(words) or "")


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` title\n[a](other.md) [b](#a-b-title) [c](#nothing) [d](https://x.y)\n```\n[e](f)\n```\n")
    problems = {target: link_problem(page, target) for target in links(page.read_text())}
    assert problems == {
        "other.md": "other.md: no such file",
        "#a-b-title": None,
        "#nothing": "#nothing: no such heading",
    }


def test_the_targets_of_a_page_are_found() -> None:
    assert make_targets(
        "Run `make check`, or make sense.\n\n```bash\nmake lint test\n```\n```text\nmake haste\n```\n"
    ) == {
        "check",
        "lint",
        "test",
    }
