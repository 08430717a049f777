"""Write what the documents say of the code into them: `python docs/generate.py`; with `--check` only look.

A page holds its generated parts between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; PAGES maps a page to the
function that makes them.
"""

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parent
VERSIONS = DOCS.parent / "tests" / "data" / "sglang_versions"


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


def sglang_versions_page() -> dict[str, str]:
    """How versions of SGLang differ, what is relied on, and what they made of commands."""
    return {"differences": _differences(), "reliances": _reliances(), "unread": _unread(), "commands": _commands()}


_OF_A_VERSION = {
    "graph_max_bs": "`cuda_graph_max_bs` is the flag",
    "graph_bs": "`cuda_graph_bs` is the flag",
    "no_decode_graph": "`decode_cuda_graph: false` is the flag",
    "algorithms": "algorithms it ships",
    "takes_plugins": "other algorithms come from plugins",
    "overlap": "of EAGLE, EAGLE3, NEXTN and STANDALONE these overlap scheduling and computing",
    "overlap_env": "a variable that changes that",
    "overlap_of_others": "NGRAM and the rest overlap them",
    "tree_page_backends": "attention backends that verify a tree with a page size above 1",
    "kept_free_gb": "GB left out of `mem_fraction_static` for a drafter",
    "overwritten_env": "variables it sets whatever it is given",
    "deterministic_env": "those it sets with `enable_deterministic_inference` and more than one GPU",
    "correct_drafts": "accepted drafts in `meta_info`",
    "histogram": "histogram of accepted drafts in `meta_info`",
    "rate_counts_bonus": "the log's accept rate counts the token that every step makes",
    "stop_exit_code": "exit code after SIGTERM to an idle server",
}


def _differences() -> str:
    """Each property with its value in the oldest version and what it changed to."""
    from specsearch._search_space_file.tables import table
    from specsearch.engines.sglang.installed.profiles import PROFILES

    rows = []
    for name, meaning in _OF_A_VERSION.items():
        values = [(profile.since, getattr(profile, name)) for profile in PROFILES]
        changes = [values[0], *(after for before, after in itertools.pairwise(values) if before[1] != after[1])]
        rows.append([meaning, "; ".join(f"{since}: {_as_text(value)}" for since, value in changes)])
    return table(("what", "from which version on"), rows)


def _as_text(value: object) -> str:
    """A value of a profile as a reader wants it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        by_number: dict[float, list[str]] = {}
        for name, number in value.items():
            by_number.setdefault(number, []).append(name)
        return ", ".join(f"{number:g} for {', '.join(names)}" for number, names in by_number.items()) or "nothing"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return "none" if value is None else f"`{value}`"


def _reliances() -> str:
    """What is looked for in the source of the installed version."""
    from specsearch._search_space_file.tables import table
    from specsearch.engines.sglang.installed.reliances import RELIANCES

    flags = [reliance for reliance in RELIANCES if reliance.any_of[0].startswith("--")]
    rows = [["flags: " + ", ".join(f"`{flag.any_of[0]}`" for flag in flags), "error", flags[0].without]]
    for reliance in RELIANCES:
        if reliance not in flags:
            looked_for = " or ".join(f"`{needle}`" for needle in reliance.any_of)
            level = "error" if reliance.required else "warning"
            rows.append([f"{reliance.name}: {looked_for}", level, reliance.without])
    return table(("looked for", "without it", "what then"), rows)


def _unread() -> str:
    """The flags that versions declare and read nowhere."""
    from specsearch._search_space_file.tables import table

    seen: dict[str, list[str]] = {}
    for version in _versions():
        for line in (VERSIONS / f"{version}.txt").read_text().splitlines():
            if line.endswith(" unread"):
                seen.setdefault(line.removesuffix(" unread"), []).append(version)
    return table(("flag", "read by no code in"), ([f"`{flag}`", _span(found)] for flag, found in sorted(seen.items())))


def _span(found: Sequence[str]) -> str:
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _commands() -> str:
    """What each version made of the commands of the Kimi-K2.5 space."""
    from specsearch._search_space_file.tables import table

    rows, results = [], json.loads((VERSIONS / "resolved.json").read_text())
    for version in _versions():
        told = results[version]
        shipped = [answer for name, answer in told.items() if name.startswith(("baseline", "seed point", "graphs"))]
        flags = len((VERSIONS / f"{version}.txt").read_text().splitlines())
        parsed, resolved = (sum(bool(answer.get(step)) for answer in shipped) for step in ("parsed", "resolved"))
        of_all = f"of {len(shipped)}"
        stand_ins = ", ".join(f"`{name}`" for name in told["stand_ins"]) or "–"
        rows.append([version, str(flags), f"{parsed} {of_all}", f"{resolved} {of_all}", stand_ins])
    return table(("version", "flags", "parsed", "resolved", "modules that had to be stood in for"), rows)


def _versions() -> list[str]:
    """The versions that were written down, from old to new."""
    from specsearch.engines.sglang.installed.profiles import release

    found = [path.stem for path in VERSIONS.glob("0.*.txt")]
    return sorted(found, key=lambda version: (release(version), version))


PAGES: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "results.md": results_page,
    "search-spaces.md": search_spaces_page,
    "sglang-versions.md": sglang_versions_page,
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
