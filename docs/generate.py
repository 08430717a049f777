"""Write what the documents say of the code into them: `python docs/generate.py`; with `--check` only look.

A page holds its generated parts between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; PAGES maps a page to the
function that makes them.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

DOCS = Path(__file__).parent


def results_page() -> dict[str, str]:
    """The columns of every table."""
    from specsearch.storage.schema import SCHEMA_VERSION, TABLES, markdown

    return {"version": f"Schema version: {SCHEMA_VERSION}.", **{table: markdown(table) for table in TABLES}}


def search_spaces_page() -> dict[str, str]:
    """The fields of a search-space file, and what is said of a broken one."""
    from specsearch._search_space_file import tables

    return {
        "sections": tables.sections_table(),
        "fields": tables.fields_table(),
        "knobs": tables.knobs_table(),
        "owned flags": tables.owned_table(),
        "mistakes": _mistakes(),
        "simulated": _simulated(),
        "faults": _faults(),
    }


def _simulated() -> str:
    """What the simulated engine can pretend to be."""
    from specsearch._search_space_file.tables import table
    from specsearch.engines.simulated.profiles import DRAFTERS, GPUS, TARGETS

    known = {"gpu": GPUS, "target": TARGETS, "drafter": DRAFTERS}
    rows = ([f"`{field}`", ", ".join(f"`{name}`" for name in names)] for field, names in known.items())
    return table(("field of `engine.simulated`", "values"), rows)


def _faults() -> str:
    """The kinds of faults with their options."""
    from specsearch._search_space_file.tables import table
    from specsearch.engines.simulated.faults import KINDS, Kind

    def options(kind: Kind) -> str:
        return ", ".join(
            f"`{name}` (needed)"
            if name in kind.required
            else f"`{name}: {json.dumps(default) if not isinstance(default, str) else default}`"
            + (f" ({', '.join(kind.choices[name])})" if name in kind.choices else "")
            for name, default in kind.options.items()
        )

    rows = ([f"`{name}`", kind.meaning, options(kind) or "–"] for name, kind in KINDS.items())
    return table(("kind", "what goes wrong", "options and what they are when left out"), rows)


BROKEN = """\
engine: {type: sglang, model: ./target, tp_size: two, args: {port: 8000}}
parameters:
  speculative_algorithm: {type: choice, values: [none, EAGLE3]}
  draft_model: {type: choice, values: [./drafter], when: {speculative_algorithm: [EAGLE]}}
  num_steps: {type: int, low: 1, high: 5}
  cuda_graph: {type: choice, values: [on, off]}
load_points: [{workload: chat, concurency: 1}]
objective: {metric: output_tokens_per_sec}
"""


def _mistakes() -> str:
    """A broken file and the error it ends in."""
    from specsearch.config import load_study
    from specsearch.errors import ConfigError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.yaml"
        path.write_text(BROKEN)
        try:
            load_study(path)
        except ConfigError as error:
            said = str(error).replace(f"{folder}/", "")
            return f"```yaml\n{BROKEN}```\n\n```text\nerror: {said}\n```"
    raise ValueError("the broken file loads")


PAGES: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "results.md": results_page,
    "search-spaces.md": search_spaces_page,
}


def fresh(page: str) -> str:
    """The page as it should read; raises ValueError where it lacks the place for a generated part."""
    text = (DOCS / page).read_text()
    for name, part in PAGES[page]().items():
        first, last = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        text, places = re.subn(
            f"{first}.*?{last}", lambda _, made=f"{first}\n{part}\n{last}": made, text, flags=re.DOTALL
        )
        if places != 1:
            raise ValueError(f"{page} has {places} places for {name}, one is needed")
    return text


def main() -> int:
    """Write every page, or with --check name those that are stale."""
    stale = [page for page in PAGES if fresh(page) != (DOCS / page).read_text()]
    for page in stale:
        print(f"docs/{page} is stale" if "--check" in sys.argv else f"docs/{page} written")
        if "--check" not in sys.argv:
            (DOCS / page).write_text(fresh(page))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    sys.exit(main())
