"""Which SGLang an interpreter has, what flags it declares and how its version differs from others.

SGLang is never imported: that takes 10 s and needs torch. Its version comes from the package's metadata, its
flags from the source text.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PROBE_TIMEOUT_S = 60.0  # a cold network file system may take long to start an interpreter
_PROBE = """
import importlib.metadata, importlib.util, json
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = None
spec = importlib.util.find_spec("sglang")
folders = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps([version, folders[0] if folders else None]))
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """What an interpreter says of its SGLang."""

    version: str | None  # None where none is installed
    package: Path | None = None
    problem: str | None = None  # why the interpreter could not be asked


@dataclass(frozen=True, slots=True)
class Profile:
    """How the SGLang versions from `since` on differ from those before."""

    since: tuple[int, ...]
    graph_max_bs: str  # flag of the largest captured batch
    graph_bs: str  # flag of the captured batch sizes
    tree_page_backends: tuple[str, ...]  # attention backends that verify a tree with pages larger than 1
    overwritten_env: tuple[str, ...]  # variables that the server sets whatever it was given
    chain_only_env: str | None = None  # a variable that, set to 1, allows top-k 1 only
    kept_free_gb: Mapping[str, float] = field(default_factory=dict)  # algorithm → memory left out of its pool


PROFILES = (
    Profile(
        since=(0, 5, 9),
        graph_max_bs="cuda_graph_max_bs",
        graph_bs="cuda_graph_bs",
        tree_page_backends=("flashinfer", "fa3"),
        overwritten_env=("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"),
        chain_only_env="SGLANG_ENABLE_SPEC_V2",
    ),
    Profile(
        since=(0, 5, 11),
        graph_max_bs="cuda_graph_max_bs",
        graph_bs="cuda_graph_bs",
        tree_page_backends=("flashinfer", "fa3"),
        overwritten_env=("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"),
    ),
    Profile(
        since=(0, 5, 14),
        graph_max_bs="cuda_graph_max_bs_decode",
        graph_bs="cuda_graph_bs_decode",
        tree_page_backends=("flashinfer", "fa3", "triton"),
        overwritten_env=("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"),
    ),
    Profile(
        since=(0, 5, 20),
        graph_max_bs="cuda_graph_max_bs_decode",
        graph_bs="cuda_graph_bs_decode",
        tree_page_backends=("flashinfer", "fa3", "triton"),
        overwritten_env=("CUDA_DEVICE_MAX_CONNECTIONS",),
    ),
)
OLDEST = "0.5.9"
NEWEST = "0.5.23"  # the newest version that was read and run


def release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with: 0.5.10.post1 → (0, 5, 10)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()


def profile_of(version: str | None) -> Profile:
    """The profile of a version; that of the newest one where the version is not known."""
    numbers = release(version or NEWEST)
    if not any(numbers):  # a build from source calls itself 0.0.0
        numbers = release(NEWEST)
    known = [profile for profile in PROFILES if profile.since <= numbers]
    return known[-1] if known else PROFILES[0]


@cache
def installation(python: str | None, pythonpath: str | None = None) -> Installation:
    """Ask an interpreter for its SGLang, the current one where `python` is None; asked once per process."""
    if python is None and pythonpath is None:
        return _installed_here()
    return _ask(python or "python3", pythonpath)


def _installed_here() -> Installation:
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return Installation(None)
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Installation(version, Path(folders[0]) if folders else None)


def _ask(python: str, pythonpath: str | None) -> Installation:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if pythonpath:
        environment["PYTHONPATH"] = pythonpath
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            env=environment,
            cwd=os.sep,  # a folder called sglang in the current one must not be taken for the package
            check=False,
        )
    except OSError as error:
        return Installation(None, problem=_not_started(python, error))
    except subprocess.TimeoutExpired:
        return Installation(None, problem=f"engine.python {python} did not answer within {PROBE_TIMEOUT_S:.0f} s")
    try:
        version, package = json.loads(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError, TypeError):
        last = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        return Installation(None, problem=f"engine.python {python} is not a working Python: {last}")
    return Installation(version, Path(package) if package else None)


def _not_started(python: str, error: OSError) -> str:
    # A script whose own interpreter is missing ends in the same error and does exist.
    if isinstance(error, FileNotFoundError) and not Path(python).exists():
        return f"engine.python {python} does not exist; correct it, or give --engine-python PATH"
    return f"engine.python {python} cannot be started: {error.strerror or error}"


@cache
def declared_flags(package: Path) -> frozenset[str] | None:
    """Every flag (`--model-path`) that the server of an unpacked SGLang declares; None when its source is not there."""
    sources = [package / "srt" / "server_args.py", *sorted((package / "srt" / "arg_groups" / "fields").glob("*.py"))]
    flags: set[str] = set()
    for source in sources:
        try:
            tree = ast.parse(source.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        flags.update(_flags_of(tree))
    return frozenset(flags) or None


def _flags_of(tree: ast.Module) -> Iterator[str]:
    """Flags added to a parser by hand, and those of fields written `name: A[type, "help" or Arg(…)]`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield from _texts(node.args)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _flags_of_field(node.target.id, node.annotation)


def _flags_of_field(name: str, annotation: ast.expr) -> Iterator[str]:
    match annotation:
        case ast.Subscript(value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[_, *metadata])):
            pass
        case _:
            return
    for item in metadata:
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == "Arg":
            options = {keyword.arg: keyword.value for keyword in item.keywords}
            yield from () if _is_true(options.get("no_cli")) else _flags_of_options(name, options)
            return
        if not isinstance(item, ast.Call):  # a bare help text makes a flag as well
            yield spelling(name)
            return


def _flags_of_options(name: str, options: Mapping[str | None, ast.expr]) -> Iterator[str]:
    flags = [*_texts([options["cli_name"]])] if "cli_name" in options else [spelling(name)]
    yield from flags
    yield from _texts(getattr(options.get("aliases"), "elts", ()))
    if getattr(options.get("action"), "attr", None) == "BooleanOptionalAction":
        yield from (flag.replace("--", "--no-", 1) for flag in flags)


def spelling(name: str) -> str:
    """The command-line spelling of a flag that is written with underscores."""
    return "--" + name.replace("_", "-")


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _texts(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            yield node.value
