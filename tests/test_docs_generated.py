"""What the documents say of the code is what the code says."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generate()


@pytest.mark.parametrize("page", GENERATE.PAGES)
def test_a_generated_page_is_fresh(page: str) -> None:
    """`python docs/generate.py` makes it so."""
    assert (DOCS / page).read_text() == GENERATE.fresh(page)


def test_a_stale_page_is_noticed_and_made_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "search-spaces.md"
    stale = (DOCS / page).read_text().replace("| `name` | name of the study", "| `name` | something else")
    assert stale != (DOCS / page).read_text()
    (tmp_path / page).write_text(stale)
    monkeypatch.setattr(GENERATE, "DOCS", tmp_path)
    assert GENERATE.fresh(page) == (DOCS / page).read_text()
    (tmp_path / page).write_text(stale.replace("<!-- generated: fields -->", ""))
    with pytest.raises(ValueError, match="0 places for fields"):
        GENERATE.fresh(page)


def test_the_one_command_works_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")
