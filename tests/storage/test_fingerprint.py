"""Rows are compared, and a folder resumed, only where everything that matters is equal."""

from dataclasses import replace
from pathlib import Path

import pytest

from specsearch.config import EngineConfig, StudyConfig
from specsearch.errors import StorageError
from specsearch.objective import Objective
from specsearch.search_space import ChoiceParameter, IntParameter, SearchSpace
from specsearch.storage import ResultsFolder, check_fingerprint, fingerprint_fields, reuse_obstacles
from specsearch.storage.fingerprint import fingerprint_of
from specsearch.study import Budget
from specsearch.workload import LoadPoint, Workload
from tests.storage.made_rows import baseline, origin_tree, stamp

CHAT = LoadPoint(Workload("chat", ("Hello", "Why is the sky blue?")), 1)
CONFIG = StudyConfig(
    name="kimi",
    source=Path("kimi.yaml"),
    engine=EngineConfig(type="sglang", model="/models/kimi"),
    space=SearchSpace((IntParameter("num_steps", 1, 5), ChoiceParameter("cuda_graph", (True, False)))),
    load_points=(CHAT,),
)
FIELDS = fingerprint_fields(CONFIG, "0.5.23")


def other(**changes: object) -> dict[str, str]:
    return fingerprint_fields(replace(CONFIG, **changes), "0.5.23")  # type: ignore[arg-type]


WIDER = other(space=SearchSpace((IntParameter("num_steps", 1, 8), ChoiceParameter("cuda_graph", (True, False)))))
LONGER_CHAT = other(load_points=(replace(CHAT, workload=Workload("chat", ("Hello",))),))
OTHER_MODEL = other(engine=EngineConfig(type="sglang", model="/models/llama"))
OTHER_OBJECTIVE = other(objective=Objective("ttft_p50_ms"))
OTHER_BASELINE = other(baseline={"cuda_graph": False})


def differing(fields: dict[str, str]) -> set[str]:
    return {name for name in fields.keys() | FIELDS.keys() if fields.get(name) != FIELDS.get(name)}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (WIDER, {"space.num_steps"}),
        (LONGER_CHAT, {"load_points.chat@1"}),
        (OTHER_MODEL, {"engine.model"}),
        (OTHER_OBJECTIVE, {"objective"}),
        (OTHER_BASELINE, {"baseline"}),
        (fingerprint_fields(CONFIG, "0.5.17"), {"engine.version"}),
    ],
)
def test_the_fingerprint_changes_with_each_part_of_the_study(fields: dict[str, str], names: set[str]) -> None:
    assert differing(fields) == names
    assert fingerprint_of(fields) != fingerprint_of(FIELDS)


def test_the_fingerprint_does_not_change_with_the_budget_or_the_order_of_fields() -> None:
    """A study may be continued with more trials."""
    assert other(budget=Budget(trials=400)) == FIELDS
    assert fingerprint_of(dict(reversed(FIELDS.items()))) == fingerprint_of(FIELDS)


def test_rows_of_the_same_study_are_taken_and_a_new_folder_holds_none(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    assert check_fingerprint(folder.read().fingerprints, FIELDS) == []
    folder.write(baseline(), stamp(FIELDS))
    assert check_fingerprint(folder.read().fingerprints, FIELDS) == []


def test_rows_of_another_study_are_refused_with_each_field_old_and_new(tmp_path: Path) -> None:
    """SR-07: other space and other workload on the same folder; several studies are all named."""
    folder = ResultsFolder(tmp_path)
    folder.write(baseline(), stamp(WIDER))
    folder.write(origin_tree(), stamp(LONGER_CHAT))
    with pytest.raises(StorageError) as refused:
        check_fingerprint(folder.read().fingerprints, FIELDS)
    assert refused.value.exit_code == 4
    said = str(refused.value)
    assert "space.num_steps: int 1..8 → int 1..5" in said
    assert "load_points.chat@1: " in said
    assert "cuda_graph" not in said


@pytest.mark.parametrize(("fields", "offered"), [(WIDER, True), (OTHER_MODEL, False)])
def test_extending_is_offered_only_where_it_would_work(fields: dict[str, str], offered: bool) -> None:
    with pytest.raises(StorageError) as refused:
        check_fingerprint({"a": fields}, FIELDS)
    assert ("--extend" in str(refused.value)) is offered


def test_extending_takes_rows_that_differ_in_what_is_searched_and_says_so() -> None:
    taken = check_fingerprint({fingerprint_of(WIDER): WIDER, "b": OTHER_OBJECTIVE}, FIELDS, extend=True)
    assert any("space.num_steps" in line for line in taken)
    assert any("objective" in line for line in taken)


@pytest.mark.parametrize("fields", [LONGER_CHAT, OTHER_MODEL, OTHER_BASELINE])
def test_extending_refuses_rows_that_say_something_else(fields: dict[str, str]) -> None:
    assert reuse_obstacles(fields, FIELDS)
    with pytest.raises(StorageError, match="folder of its own"):
        check_fingerprint({"a": WIDER, "b": fields}, FIELDS, extend=True)
