"""`python -m specsearch.report RESULTS`: the verdict again, from the rows of a results folder."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specsearch.cli import parser, run_command, show

if TYPE_CHECKING:
    from specsearch.search_space import SearchSpace
    from specsearch.storage import ResultsFolder


def build_parser() -> argparse.ArgumentParser:
    """The command line of `report`."""
    made = parser("report", "Print the verdict of a study again, from the rows of its results folder alone.")
    made.add_argument("results", type=Path, metavar="RESULTS", help="results folder of a study, finished or running")
    made.add_argument("--top", type=int, default=10, metavar="N", help="trials of the ranking to show; default: 10")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print what the rows of the folder say."""
    from specsearch.errors import StorageError
    from specsearch.storage import ResultsFolder

    folder = ResultsFolder(arguments.results)
    if not folder.trials_dir.is_dir():
        raise StorageError(f"{folder.path} is no results folder: it has no trials/")
    return show_report(folder, arguments.format, top=arguments.top)


def show_report(
    folder: "ResultsFolder",
    output_format: str,
    *,
    top: int = 10,
    ended: str | None = None,
    notes: Sequence[str] = (),
    space: "SearchSpace | None" = None,
) -> int:
    """Print the verdict as `text` or `json`.

    `ended` says why the search ended, `notes` what else is to be warned of, and by the space it is counted what trials
    have closed; rows know none of them.
    """
    from specsearch.analysis.text import no_verdict_lines, verdict_lines
    from specsearch.analysis.verdict import StudyFacts, no_verdict, verdict
    from specsearch.errors import NoRankableTrial
    from specsearch.objective import Objective
    from specsearch.storage import check_fingerprint

    stored = folder.read()
    fields = stored.fingerprints[stored.fingerprint] if stored.fingerprint else {}
    reused = check_fingerprint(stored.fingerprints, fields, extend=True)
    facts = StudyFacts(
        name=stored.study or "",
        results=str(folder.path),
        ended=ended,
        notes=(*notes, *stored.problems, *reused),
        unfinished=() if ended else tuple(sorted({request.number for request in folder.running()})),
        speculation_searched=fields.get("space.speculative_algorithm", _ONLY_PLAIN) != _ONLY_PLAIN,
    )
    try:
        if stored.objective is None:
            left_out = "".join(f"\n  - {problem}" for problem in stored.problems)
            raise NoRankableTrial(f"{folder.path} holds no trial that can be read{left_out}")
        said = verdict(stored.results, stored.objective, facts, space)
    except NoRankableTrial as why:
        nothing = no_verdict(stored.results, stored.objective or Objective(), facts, why, space)
        _print(nothing.to_json() if output_format == "json" else no_verdict_lines(nothing))
        raise
    _print(said.to_json() if output_format == "json" else verdict_lines(said, top=top))
    return 0


_ONLY_PLAIN = "choice none"  # the field of a space without speculation, as config.to_fingerprint_fields writes it


def _print(page: Mapping[str, object] | Sequence[str]) -> None:
    if isinstance(page, Mapping):
        show(json.dumps(page, indent=2, allow_nan=False, ensure_ascii=False))
    elif page:
        show("\n".join(page))


def main() -> int:
    """Run the command."""
    return run_command(build_parser, run)


if __name__ == "__main__":
    sys.exit(main())
