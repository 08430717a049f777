"""The schema is one list of columns, each with a meaning, and its page is made from it."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from specsearch.storage import ResultsFolder
from specsearch.storage.schema import TABLES, arrow_schema
from tests.storage.made_rows import TREE_POINT, baseline, repeats, stamp, trial

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "results.md"


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_one_name_a_type_and_a_meaning(table: str) -> None:
    names = [column.name for column in TABLES[table]]
    assert len(set(names)) == len(names)
    assert all(len(column.meaning.split()) >= 2 for column in TABLES[table])
    assert "null" not in {str(kind) for kind in arrow_schema(table).types}


@pytest.mark.parametrize("table", TABLES)
def test_every_table_says_engine_fingerprint_and_version(table: str) -> None:
    assert {"engine", "simulated", "fingerprint", "schema_version", "study"} <= set(arrow_schema(table).names)


def test_the_page_of_the_columns_is_the_one_that_the_schema_makes() -> None:
    assert runpy.run_path(str(DOCS / "generate.py"))["fresh"](PAGE.name) == PAGE.read_text()


def test_the_example_of_the_page_reads_a_folder_without_our_code(tmp_path: Path) -> None:
    for name in ("pandas", "polars", "duckdb"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    folder = ResultsFolder(tmp_path)
    folder.write(baseline(), stamp())
    folder.write(trial(1, TREE_POINT, repeats((131.0, 132.0), accept=2.6)), stamp())
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("results/kimi", str(tmp_path)), names)
    assert len(names["trials"]) == 2
    name, _, accept_length, algorithm = names["best"].fetchall()[0]
    assert (name.split()[0], accept_length, algorithm) == ("t0001", pytest.approx(2.6), "Ring")
