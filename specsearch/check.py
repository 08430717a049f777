"""`python -m specsearch.check SPACE.yaml`: is this node, this engine, this drafter, this space fit?"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from specsearch.cli import parser, run_command


def build_parser() -> argparse.ArgumentParser:
    """The command line of `check`."""
    made = parser("check", "Is this node, this engine, this drafter and this space fit? Every problem at once.")
    made.add_argument("space", type=Path, metavar="SPACE.yaml", help="search-space file")
    made.add_argument("--results", type=Path, metavar="DIR", help="folder whose disk is checked, too")
    made.add_argument("--engine-python", metavar="PATH", help="interpreter that has the engine, instead of the file's")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print every problem; 0 when there is none, 3 when the study cannot run here (2 when the file cannot be read)."""
    from specsearch.config import load_study
    from specsearch.errors import ConfigError
    from specsearch.prepare import host_problems, prepare, with_engine_python

    config = with_engine_python(load_study(arguments.space), arguments.engine_python)
    results = (arguments.results or Path.cwd()).absolute()
    host, warnings = host_problems(config, results)
    mistakes: Sequence[str] = ()
    try:
        warnings = [*prepare(config, dry_run=False).warnings, *warnings]
    except ConfigError as error:
        mistakes = error.problems
    _show(arguments.format, {"space": list(mistakes), "host": list(host), "warnings": list(warnings)})
    return 3 if host or mistakes else 0


def _show(style: str, found: dict[str, list[str]]) -> None:
    if style == "json":
        print(json.dumps({**found, "fit": not (found["space"] or found["host"])}, indent=2))
        return
    for kind, mark in (("space", "error"), ("host", "not fit"), ("warnings", "warning")):
        for sentence in found[kind]:
            print(f"{mark}: {sentence}")
    problems = len(found["space"]) + len(found["host"])
    print(f"{problems} problem{'s' * (problems != 1)}" if problems else "fit: the study can be run here")


def main() -> int:
    """`python -m specsearch.check`."""
    return run_command(build_parser, run)


if __name__ == "__main__":
    sys.exit(main())
