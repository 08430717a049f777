"""Write down again what the versions of SGLang declare and make of commands.

    python tests/data/sglang_versions/regenerate.py SOURCES [PYTHON]

SOURCES holds a folder per version with its wheel unpacked (`SOURCES/0.5.9/sglang/…`). With PYTHON, an interpreter
that has torch and what else the newest of them imports, the commands are put to each version's parser and resolution
as well: about half a minute per version.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from specsearch.engines.sglang.installed import _probe
from tests.engines import sglang_versions as versions


def write_flags(sources: Path) -> list[str]:
    """One file per version; the versions."""
    found = [folder.name for folder in sources.iterdir() if (folder / "sglang" / "srt").is_dir()]
    for version in found:
        told = _probe.read_package(sources / version / "sglang")
        flags, unread = told["flags"], told["unread"]
        assert isinstance(flags, list), f"{version} declares no flags"
        assert isinstance(unread, list)
        marks = {f"--{name.replace('_', '-')}": " unread" for name in unread}
        lines = [flag + marks.get(flag, "") for flag in flags]
        (versions.DATA / f"{version}.txt").write_text("\n".join(lines) + "\n")
    return found


def write_resolved(sources: Path, python: str, found: list[str]) -> None:
    """What each version makes of the commands, with paths of this machine left out."""
    whole: dict[str, dict[str, object]] = {}
    for version in found:
        commands = {**versions.kimi_commands(version), **versions.QUESTIONS}
        answers = versions.parse(python, list(commands.values()), [sources / version])
        stand_ins = sorted({name for answer in answers for name in answer.pop("stand_ins")})
        whole[version] = {"stand_ins": stand_ins, **dict(zip(commands, answers, strict=True))}
        sys.stderr.write(f"{version}: {sum('resolved' in answer for answer in answers)} of {len(answers)} resolved\n")
        versions.RESULTS.write_text(_a_line_each(whole).replace(str(versions.ROOT), "ROOT"))


def _a_line_each(whole: Mapping[str, Mapping[str, object]]) -> str:
    folders = [
        f"{json.dumps(version)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(answer)}" for name, answer in told.items())
        + "\n}"
        for version, told in whole.items()
    ]
    return "{" + ",\n".join(folders) + "}\n"


def main() -> None:
    sources = Path(sys.argv[1])
    found = sorted(write_flags(sources), key=lambda name: (versions.release(name), name))
    if len(sys.argv) > 2:
        write_resolved(sources, sys.argv[2], found)


if __name__ == "__main__":
    main()
