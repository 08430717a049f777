"""Which SGLang an interpreter has, and what its source declares.

SGLang is never imported: that takes 10 s and needs torch. The interpreter that has it reads its metadata and its
source (`_probe.py`), inside a container where need be.
"""

import importlib.resources
import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specsearch.engines.sglang.installed import _probe
from specsearch.engines.sglang.installed.profiles import NEWEST, OLDEST, Profile, is_known, profile_of, release
from specsearch.engines.sglang.installed.reliances import NEEDLES
from specsearch.launch import shown

__all__ = [
    "NEWEST",
    "OLDEST",
    "Installation",
    "Profile",
    "installation",
    "is_known",
    "profile_of",
    "release",
    "spelling",
]

# The answer takes 1 to 2 s from a warm disk; a cold network file system is slower, and a container has to start.
PROBE_TIMEOUT_S = 120.0
PREFIXED_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Installation:
    """What an interpreter says of its SGLang."""

    version: str | None  # None where none is installed
    package: Path | None = None  # as that interpreter sees it, which may be inside a container
    problem: str | None = None  # why the interpreter could not be asked
    flags: frozenset[str] | None = None  # every `--flag` of its server; None where its source could not be read
    unread: frozenset[str] | None = None  # flags, written with underscores, that no code reads; None likewise
    absent: frozenset[str] = frozenset()  # which of `reliances.NEEDLES` its source lacks


@cache
def installation(python: str | None, pythonpath: str | None = None, prefix: tuple[str, ...] = ()) -> Installation:
    """Ask an interpreter for its SGLang, the current one where `python` is None; asked once per process.

    `prefix` are the words that start the interpreter elsewhere, in a container say, ready to be run.
    """
    if python is None and pythonpath is None and not prefix:
        return _told(_probe.report(NEEDLES))
    return _ask(python or "python3", pythonpath, prefix)


def _ask(python: str, pythonpath: str | None, prefix: Sequence[str]) -> Installation:
    where = f"engine.python {python}" + (f" behind engine.command_prefix {shlex.join(shown(prefix))}" if prefix else "")
    limit_s = PREFIXED_TIMEOUT_S if prefix else PROBE_TIMEOUT_S
    try:
        answer = subprocess.run(
            [*prefix, python, "-c", _probe_text(), json.dumps(NEEDLES)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=_environment(pythonpath),
            cwd=os.sep,  # a folder called sglang in the current one must not be taken for the package
            check=False,
        )
    except OSError as error:
        return Installation(None, problem=_not_started(python, prefix, error))
    except subprocess.TimeoutExpired:
        return Installation(None, problem=f"{where} did not answer within {limit_s:.0f} s")
    told = _marked(answer.stdout)
    if told is None:
        # A container program ends its complaint with where to read more.
        said = [line for line in answer.stderr.splitlines() if line.strip() and "--help" not in line]
        last = (said or [f"exit code {answer.returncode}"])[-1].strip()
        return Installation(None, problem=f"{where} is not a working Python: {last}")
    return _told(told)


def _probe_text() -> str:
    return importlib.resources.files(_probe.__package__).joinpath("_probe.py").read_text(encoding="utf-8")


def _environment(pythonpath: str | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | ({"PYTHONPATH": pythonpath} if pythonpath else {})


def _marked(printed: str) -> Mapping[str, object] | None:
    """The answer among whatever else was printed; of several ranks that answered, the first."""
    for line in printed.splitlines():
        _, mark, told = line.partition(_probe.MARK)
        if mark:
            try:
                answer = json.JSONDecoder().raw_decode(told)[0]
            except ValueError:
                continue
            if isinstance(answer, dict):
                return answer
    return None


def _told(answer: Mapping[str, object]) -> Installation:
    version, package = answer.get("version"), answer.get("package")
    return Installation(
        version if isinstance(version, str) else None,
        Path(package) if isinstance(package, str) else None,
        flags=_names(answer.get("flags")),
        unread=_names(answer.get("unread")),
        absent=_names(answer.get("absent")) or frozenset(),
    )


def _names(told: object) -> frozenset[str] | None:
    return frozenset(map(str, told)) if isinstance(told, list) else None


def _not_started(python: str, prefix: Sequence[str], error: OSError) -> str:
    reason = error.strerror or str(error)
    if prefix:
        return f"engine.command_prefix {shlex.join(shown(prefix))} cannot be started: {reason}"
    # A script whose own interpreter is missing ends in the same error and does exist.
    if isinstance(error, FileNotFoundError) and not Path(python).exists():
        return f"engine.python {python} does not exist; correct it, or give --engine-python PATH"
    return f"engine.python {python} cannot be started: {reason}"


def spelling(name: str) -> str:
    """The command-line spelling of a flag that is written with underscores."""
    return "--" + name.replace("_", "-")
