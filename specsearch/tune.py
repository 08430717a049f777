"""`python -m specsearch.tune [SPACE.yaml]`: search the settings of a space and say which are fastest."""

import argparse
import sys
from pathlib import Path

from specsearch.cli import parser, run_command

QUICK_START = Path(__file__).with_name("quickstart.yaml")


def build_parser() -> argparse.ArgumentParser:
    """The command line of `tune`."""
    made = parser(
        "tune",
        "Find the SGLang speculative-decoding settings that are fastest on this node, against a baseline without\n"
        "speculation. The same command on the same results folder goes on where it stopped.",
    )
    add = made.add_argument
    space = "search-space file; default: the built-in quick start on the simulated engine, which needs no GPU"
    add("space", type=Path, nargs="?", default=QUICK_START, metavar="SPACE.yaml", help=space)
    add("--results", type=Path, metavar="DIR", help="results folder; default: results/NAME-OF-THE-SPACE")
    add("--trials", type=int, metavar="N", help="launches of the search, instead of the file's budget")
    add("--time-budget", metavar="8h", help="wall time of the whole study, instead of the file's budget")
    add("--dry-run", action="store_true", help="print the first launch plans and the cost; start nothing")
    add("--yes", action="store_true", help="do not ask before GPU time is spent")
    add("--extend", action="store_true", help="go on in the folder of a changed space; rows that fit it are reused")
    add("--force-knob", action="append", default=[], metavar="NAME", help="search a knob that the engine ignores")
    add("--keep-requests", action="store_true", help="store every measured request in requests/, too")
    add("--engine-python", metavar="PATH", help="interpreter that has the engine, instead of the file's")
    add("--executor", choices=("ray", "in-process"), default="ray", help="who runs the trials")
    add("--address", metavar="ADDRESS", help="Ray cluster to join, such as auto; default: a fresh local Ray")
    add("--no-dashboard", action="store_true", help="start the local Ray without its dashboard")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Run or resume a study and print its verdict, or only the plan of one."""
    from specsearch.prepare import load_prepared

    prepared = load_prepared(arguments)
    if arguments.dry_run:
        from specsearch.plan_text import show_plan

        return show_plan(prepared, arguments.format)
    from specsearch.run_study import run_study

    return run_study(prepared, arguments)


def main() -> int:
    """`python -m specsearch.tune`."""
    return run_command(build_parser, run)


if __name__ == "__main__":
    sys.exit(main())
