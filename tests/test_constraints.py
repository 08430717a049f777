"""Constraints over parameters: what may be written, and what it means."""

import pytest

from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.search_space import ALGORITHM, ChoiceParameter, Constraint, SearchSpace

CAPACITY = "num_draft_tokens - 1 <= eagle_topk + (num_steps - 1) * eagle_topk**2"


def test_the_capacity_of_a_tree_can_be_written_as_the_engine_means_it() -> None:
    """SR-04: the constraint of the case; 3/4/37 fits and 3/4/38 does not."""
    constraint = Constraint(CAPACITY)
    assert constraint.holds({"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 37})
    assert not constraint.holds({"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 38})


@pytest.mark.parametrize("source", ["a ** b > 1", "9 ** 4 > 1", "(a ** 4) ** 4 > 1", "a ** 5 > 1", "a ** -1 > 1"])
def test_a_power_that_could_grow_without_bound_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="such as eagle_topk"):
        Constraint(source)


def test_graph_batches_are_no_dimension_where_there_are_no_graphs() -> None:
    """SM-02: two settings that mean the same are one point."""
    space = SearchSpace(
        (
            ChoiceParameter("cuda_graph_max_bs", (8, 16, 32)),
            ChoiceParameter("cuda_graph", (True, False)),
            ChoiceParameter(ALGORITHM, ("none",)),
        ),
        rules=SGLangRules("0.5.23", {}, {}, "/models/target"),
    )
    points = space.valid_points(1000)
    assert points is not None
    assert len([point for point in points if point["cuda_graph"]]) == 3
    assert [point["cuda_graph_max_bs"] for point in points if not point["cuda_graph"]] == ["unset"]
