"""The shape of the package: who may import whom, where third parties live, where time passes, how long a file is.

The two lists that are held here stand in docs/architecture.md, so the page cannot go stale.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "specsearch"
COMPANIONS = {"_search_space_file": "config"}  # the grammar of the YAML file, read by config.py alone
PRINTS = {"cli", "tune", "check", "report", "plan_text", "run_study"}  # the commands and what they are made of
STANDARD_LIBRARY_UP_TO = "study"
MOST_LINES = 400

TIME = {
    *("time.sleep", "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
    *("time.perf_counter_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
# Who may tell the time beside clock.py, and why.
TELLS_THE_TIME = {
    "clock.py": "the one place",
    "loadgen/": "request times are taken inside the event loop, where a sleeping clock would stop every request",
    "engines/simulated/": "a process of its own: the pace at which it answers is what it simulates",
    "host/guard.py": "a process of its own that outlives the study and has no one to give it a clock",
}
KILLS_BY_NAME = re.compile(r"\b(pkill|killall|pgrep|process_iter)\b")


@dataclass(frozen=True)
class Layout:
    """What docs/architecture.md promises."""

    layers: tuple[frozenset[str], ...]  # low to high
    homes: Mapping[str, frozenset[str]]  # third-party module → units that may import it

    def height(self, unit: str) -> int | None:
        return next((height for height, layer in enumerate(self.layers) if unit in layer), None)


def read_layout(page: str) -> Layout:
    """The layers and the third-party homes as the architecture page lists them."""
    blocks = dict(re.findall(r"^```text (layers|third parties)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    layers = tuple(frozenset(line.split()) for line in blocks["layers"].splitlines())
    rows = (line.split(maxsplit=1) for line in blocks["third parties"].splitlines())
    return Layout(layers, {module: frozenset(units.split()) for module, units in rows})


def layout_problems(sources: Mapping[str, str], layout: Layout) -> list[str]:
    """Everything in the sources (path inside the package → text) that breaks the layout, as sentences."""
    problems = []
    for path, source in sorted(sources.items()):
        tree = ast.parse(source)
        unit = unit_of(path)
        if layout.height(unit) is None and path != "__init__.py":
            problems.append(f"{path}: {unit} is in no layer")
            continue
        problems += [f"{path}: {problem}" for problem in _import_problems(unit, path, tree, layout)]
        problems += [f"{path}: {problem}" for problem in _body_problems(unit, path, tree)]
        if (length := len(source.splitlines())) > MOST_LINES:
            problems.append(f"{path}: {length} lines, {MOST_LINES} are the most")
    return problems


def unit_of(path: str) -> str:
    """The folder or module that a file belongs to: `engines/sglang/arguments/flags.py` → engines."""
    name = path.split("/")[0].removesuffix(".py")
    return COMPANIONS.get(name, name)


def _import_problems(unit: str, path: str, tree: ast.AST, layout: Layout) -> Iterator[str]:
    if path == "__init__.py":
        own_height: float = -1
    else:
        own_height = layout.height(unit) or 0
    highest_pure = layout.height(STANDARD_LIBRARY_UP_TO) or 0
    for module in imported_modules(tree, path):
        top, _, rest = module.partition(".")
        if top == PACKAGE:
            other = unit_of(rest.split(".")[0]) if rest else "__init__"
            other_height = layout.height(other)
            if other in (unit, "__init__"):
                continue
            if other_height is None or other_height >= own_height:
                yield f"imports {module}, which does not stand lower"
        elif top not in sys.stdlib_module_names:
            if own_height <= highest_pure:
                yield f"imports {module}; up to {STANDARD_LIBRARY_UP_TO} the standard library is enough"
            elif unit not in layout.homes.get(top, frozenset()):
                yield f"imports {module}, whose home is {', '.join(sorted(layout.homes.get(top, ['nowhere'])))}"


def imported_modules(tree: ast.AST, path: str) -> Iterator[str]:
    """Every module that is imported anywhere in a file, in functions and by `import_module("…")` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, path)
            names = [alias.name for alias in node.names if not alias.name.startswith("__")]
            yield from (f"{base}.{name}" if base == PACKAGE else base for name in names)
        elif isinstance(node, ast.Call) and _dotted(node.func).endswith("import_module"):
            yield from (str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant))


def _absolute(node: ast.ImportFrom, path: str) -> str:
    if not node.level:
        return node.module or ""
    folders = [PACKAGE, *path.split("/")[:-1]]
    parents = folders[: len(folders) - node.level + 1]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _body_problems(unit: str, path: str, tree: ast.AST) -> Iterator[str]:
    names = _full_names(tree)
    prose = {id(text) for text in _docstrings(tree)}
    may_tell_the_time = any(path.startswith(place) for place in TELLS_THE_TIME)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            dotted = _resolved(node, names)
            if KILLS_BY_NAME.search(dotted):
                yield f"line {node.lineno}: {dotted} finds processes by name"
            if not may_tell_the_time and ".".join(dotted.split(".")[-2:]) in TIME:
                yield f"line {node.lineno}: {dotted} outside clock.py"
            if dotted.startswith("random.") and dotted != "random.Random":
                yield f"line {node.lineno}: {dotted} is not seeded by an argument"
        elif isinstance(node, ast.Call):
            called = _resolved(node.func, names)
            if called == "print" and unit not in PRINTS:
                yield f"line {node.lineno}: print outside the commands"
            if called == "random.Random" and not node.args:
                yield f"line {node.lineno}: random.Random without a seed"
        elif isinstance(node, ast.Constant) and id(node) not in prose and KILLS_BY_NAME.search(str(node.value)):
            yield f"line {node.lineno}: {node.value!r} finds processes by name"


def _full_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: after `from time import sleep as s`, s → time.sleep."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return names


def _resolved(node: ast.AST, names: Mapping[str, str]) -> str:
    first, dot, rest = _dotted(node).partition(".")
    return names.get(first, first) + dot + rest


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


@pytest.fixture(scope="module")
def layout() -> Layout:
    return read_layout((ROOT / "docs" / "architecture.md").read_text())


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    folder = ROOT / PACKAGE
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}


def test_the_package_keeps_to_its_layout(sources: Mapping[str, str], layout: Layout) -> None:
    """Import direction, third-party homes, time and chance, print, length; nothing kills by name (RC-12)."""
    assert layout_problems(sources, layout) == []


def test_every_module_and_folder_stands_in_the_picture_of_the_architecture(sources: Mapping[str, str]) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    units = {path.split("/")[0] for path in sources} - {"__init__.py", *COMPANIONS}
    missing = {unit for unit in units if (unit if unit.endswith(".py") else f"{unit}/") not in page}
    assert missing == set()


def test_the_page_lists_no_unit_twice_and_no_home_that_does_not_exist(layout: Layout) -> None:
    units = [unit for layer in layout.layers for unit in layer]
    assert len(units) == len(set(units))
    assert {unit for homes in layout.homes.values() for unit in homes} <= set(units)


def test_a_third_party_module_keeps_no_home_that_it_has_left(sources: Mapping[str, str], layout: Layout) -> None:
    used: dict[str, set[str]] = {}
    for path, source in sources.items():
        for module in imported_modules(ast.parse(source), path):
            used.setdefault(module.split(".")[0], set()).add(unit_of(path))
    unused = {module: homes - used.get(module, set()) for module, homes in layout.homes.items()}
    assert {module: units for module, units in unused.items() if units} == {}


MADE_UP = Layout(
    layers=tuple(map(frozenset, (["errors"], ["clock", "launch"], ["study"], ["host", "storage"], ["runners"]))),
    homes={"pynvml": frozenset(["host"])},
)


@pytest.mark.parametrize(
    ("path", "source", "problem"),
    [
        ("errors.py", "from specsearch.study import Study", "specsearch.study, which does not stand lower"),
        ("errors.py", "import specsearch.study", "specsearch.study, which does not stand lower"),
        ("errors.py", "from specsearch import study", "specsearch.study, which does not stand lower"),
        ("errors.py", "from . import study", "specsearch.study, which does not stand lower"),
        ("errors.py", "from .study import Study", "specsearch.study, which does not stand lower"),
        ("launch.py", "def f():\n    from specsearch.clock import Clock", "which does not stand lower"),
        ("host/gpus.py", "from specsearch.storage.paths import X", "specsearch.storage.paths, which does not"),
        ("host/gpus.py", "from ..storage import paths", "specsearch.storage, which does not"),
        ("host/gpus.py", "import_module('specsearch.runners.server')", "specsearch.runners.server, which"),
        ("study.py", "import yaml", "the standard library is enough"),
        ("storage/rows.py", "import pynvml", "whose home is host"),
        ("storage/rows.py", "import psutil", "whose home is nowhere"),
        ("unheard_of.py", "", "unheard_of is in no layer"),
        ("study.py", "import time\ntime.sleep(1)", "line 2: time.sleep outside clock.py"),
        ("study.py", "from time import sleep as wait\nwait(1)", "line 2: time.sleep outside clock.py"),
        ("study.py", "import time as t\nt.time()", "line 2: time.time outside clock.py"),
        ("study.py", "import datetime\ndatetime.datetime.now()", "datetime.datetime.now outside clock.py"),
        ("study.py", "import random\nrandom.choice([])", "random.choice is not seeded by an argument"),
        ("study.py", "from random import Random\nRandom()", "random.Random without a seed"),
        ("study.py", "print(1)", "line 1: print outside the commands"),
        ("study.py", "pass\n" * 401, "401 lines, 400 are the most"),
        ("host/processes.py", "run(['pkill', '-f', 'sglang'])", "line 1: 'pkill' finds processes by name"),
        ("host/processes.py", "run('killall sglang', shell=True)", "finds processes by name"),
        ("host/processes.py", "psutil.process_iter(['name'])", "psutil.process_iter finds processes by name"),
    ],
)  # fmt: skip
def test_a_source_that_breaks_the_layout_is_found(path: str, source: str, problem: str) -> None:
    """The check can fail: each made-up source breaks exactly one rule."""
    found = layout_problems({path: source}, MADE_UP)
    assert len(found) == 1, found
    assert problem in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("study.py", "import json\nfrom specsearch.errors import ConfigError\nfrom specsearch.clock import Clock"),
        ("study.py", "from random import Random\nRandom(7).random()"),
        ("study.py", "def f(clock):\n    clock.sleep(1)\n    return clock.time()"),
        ("clock.py", "import time\ntime.sleep(1)"),
        ("host/gpus.py", "import pynvml\nfrom specsearch.host.ports import X\nfrom . import ports"),
        ("host/processes.py", '"""Never calls pkill."""'),
        ("runners/server.py", "from specsearch import __version__\nfrom specsearch.host.gpus import X"),
    ],
)
def test_a_source_that_keeps_the_layout_is_left_alone(path: str, source: str) -> None:
    assert layout_problems({path: source}, MADE_UP) == []


def test_the_page_is_read_as_it_is_written() -> None:
    page = "```text layers\nerrors\nclock launch\n```\n\n```text third parties\nray  executors\nyaml  config cli\n```\n"
    assert read_layout(page) == Layout(
        (frozenset({"errors"}), frozenset({"clock", "launch"})),
        {"ray": frozenset({"executors"}), "yaml": frozenset({"config", "cli"})},
    )
