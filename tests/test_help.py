"""`--help` answers at once: it imports nothing heavy, says how the command exits, and ends with 0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"ray", "optuna", "pandas", "torch", "pyarrow", "numpy", "aiohttp", "pydantic", "yaml"}
COMMANDS = ("tune", "check", "report")

# Runs a module as `python -m` does and reports, after its output, what it imported and how it ended.
WRAPPER = """
import json, runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
code = None
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
print(json.dumps({"code": code, "modules": sorted({name.partition(".")[0] for name in sys.modules})}), file=sys.stderr)
"""


def run_module(*argv: str, folder: Path = ROOT) -> tuple[str, int, set[str]]:
    """Output, exit code and the top-level modules imported by `python -m ARGV` where `folder` is on the path."""
    path = os.pathsep.join(map(str, {folder, ROOT}))
    done = subprocess.run(
        [sys.executable, "-c", WRAPPER, *argv],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stderr.splitlines()[-1])
    return done.stdout, report["code"], set(report["modules"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_exits_0_says_the_exit_codes_and_imports_nothing_heavy(command: str) -> None:
    output, code, modules = run_module(f"specsearch.{command}", "--help")
    assert code == 0
    assert f"usage: python -m specsearch.{command}" in output
    assert "exit codes" in output
    assert modules & HEAVY == set()


def test_the_console_script_lists_the_commands_and_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "console.py").write_text("import sys\nfrom specsearch.cli import main\nsys.exit(main())\n")
    output, code, modules = run_module("console", "--help", folder=tmp_path)
    assert code == 0
    assert all(command in output for command in COMMANDS)
    assert modules & HEAVY == set()


def test_an_import_and_an_exit_code_are_seen(tmp_path: Path) -> None:
    """The check can fail: a command that imports something heavy is caught doing it."""
    (tmp_path / "heavy.py").write_text("import sys\nimport yaml\nsys.exit(3)\n")
    _, code, modules = run_module("heavy", folder=tmp_path)
    assert code == 3
    assert modules & HEAVY == {"yaml"}
