"""Every log of the corpus is read as its JSON says; tests/data/logs/README.md tells where the logs come from."""

import json
from pathlib import Path
from typing import Any

import pytest

from specsearch.engines import LogFacts
from specsearch.engines.sglang.logs.failures import failure
from specsearch.engines.sglang.logs.log import read_log
from specsearch.trial import Capture, Phase

LOGS = Path(__file__).parents[1] / "data" / "logs"
NAMES = sorted({path.stem for path in LOGS.iterdir() if path.suffix in (".log", ".json")})


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LOGS / f"{name}.json").read_text())
    return found


def text(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


FAILED = [name for name in NAMES if expected(name)["failure"]]


def test_every_log_has_its_expectations_and_every_expectation_its_log() -> None:
    kinds = {(path.stem, path.suffix) for path in LOGS.iterdir() if path.suffix != ".md"}
    assert kinds == {(name, suffix) for name in NAMES for suffix in (".log", ".json")}
    assert len(FAILED) > 100
    assert {expected(name)["origin"].partition(":")[0] for name in NAMES} == {"recorded", "synthetic"}


@pytest.mark.parametrize("name", FAILED)
def test_the_first_cause_of_a_death_is_found(name: str) -> None:
    """LF-01 to LF-21 and their families: status, reason, decisive line and every fact."""
    case = expected(name)
    found = failure(text(name), exit_code=case["exit_code"], phase=Phase(case["phase"]))
    seen = {"status": found.status, "reason": found.reason, "detail": found.detail, "facts": found.facts}
    assert seen == case["failure"]
    assert found.advice


@pytest.mark.parametrize("name", NAMES)
def test_a_log_tells_what_stands_in_it_and_nothing_else(name: str) -> None:
    """ME-09: what the log does not say is not there, never zero."""
    told = dict(expected(name)["log"])
    told["captures"] = tuple(
        Capture(**{**one, "sizes": tuple(one.get("sizes", ()))}) for one in told.get("captures", ())
    )
    told["warnings"] = tuple(told.get("warnings", ()))
    assert read_log(text(name)) == LogFacts(**told)


@pytest.mark.parametrize("name", FAILED)
def test_a_log_that_breaks_off_anywhere_is_read_all_the_same(name: str) -> None:
    """Half a line, half a character, nothing at all: there is always a reason and never an exception."""
    case, whole = expected(name), (LOGS / f"{name}.log").read_bytes()
    for cut in range(0, len(whole), max(1, len(whole) // 7)):
        half = whole[:cut].decode(errors="replace")
        read_log(half)
        assert failure(half, exit_code=case["exit_code"], phase=Phase(case["phase"])).reason


@pytest.mark.parametrize("name", FAILED)
def test_colours_and_line_ends_of_another_system_change_nothing(name: str) -> None:
    case, plain = expected(name), text(name)
    dressed = "".join(f"\x1b[31m{line}\x1b[0m\r\n" for line in plain.splitlines())
    found = failure(dressed, exit_code=case["exit_code"], phase=Phase(case["phase"]))
    assert (found.reason, found.detail, found.facts) == tuple(
        case["failure"][key] for key in ("reason", "detail", "facts")
    )
