"""What one failure teaches all further proposals (LF-05, LF-07, LF-10)."""

import pytest

from specsearch.engines.sglang.logs.failures import failure
from specsearch.objective import Objective
from specsearch.runners._record import lesson_of
from specsearch.search_space import ALGORITHM, ChoiceParameter, Constraint, IntParameter, Point, SearchSpace
from specsearch.study import Budget, Launch, Study
from specsearch.trial import Phase, TrialKind, TrialResult, TrialStatus

TREE_REFUSED = (
    "ValueError: speculative_eagle_topk > 1 with page_size > 1 is only supported on ('flashinfer', 'fa3', 'triton'); "
    "got attention_backend='trtllm_mla'. Use page_size == 1 or one of those backends."
)
TREE: Point = {ALGORITHM: "EAGLE3", "attention_backend": "trtllm_mla", "eagle_topk": 4, "num_steps": 3}


def constraint(text: str, point: Point) -> Constraint:
    error = failure(text, exit_code=1, phase=Phase.READY)
    lesson = lesson_of(error, point)
    assert lesson, error
    return Constraint(lesson)


@pytest.mark.parametrize(
    "text", [TREE_REFUSED, "ValueError: trtllm_mha backend only supports topk = 1 for speculation."]
)
def test_a_refused_tree_closes_every_tree_on_that_backend_and_no_chain(text: str) -> None:
    """LF-05: the region of backend, page size and top-k above 1, not the one point."""
    learnt = constraint(text, TREE)
    assert not learnt.holds({**TREE, "eagle_topk": 2, "num_steps": 5})
    assert learnt.holds({**TREE, "eagle_topk": 1})
    assert learnt.holds({**TREE, "attention_backend": "triton"})
    assert learnt.holds({ALGORITHM: "none", "attention_backend": "trtllm_mla"})


def test_a_refused_tree_is_bound_to_whichever_backend_knob_the_space_has() -> None:
    """LF-05: SGLang has a backend for prefill, decoding and drafting each."""
    point = {name: value for name, value in TREE.items() if name != "attention_backend"}
    text = "ValueError: Currently FlashMLA only supports topk=1 for speculative decoding"
    for knob in ("decode_attention_backend", "speculative_draft_attention_backend"):
        learnt = constraint(text, {**point, knob: "flashmla"})
        assert not learnt.holds({**point, knob: "flashmla"})
        assert learnt.holds({**point, knob: "triton"})


def test_a_failed_all_reduce_kernel_is_the_host_s_and_no_other_knob_s() -> None:
    """LF-07: `on` is closed for this host whatever else a trial asks for."""
    text = "RuntimeError: Runtime check failed at /x/custom_all_reduce.cuh:37: CUDA error: invalid argument"
    learnt = constraint(text, {**TREE, "custom_all_reduce": True})
    assert not learnt.holds({"custom_all_reduce": True, "eagle_topk": 1})
    assert learnt.holds({**TREE, "custom_all_reduce": False})


def test_an_nccl_combination_without_an_algorithm_is_closed_and_its_neighbours_are_not() -> None:
    """LF-10: the variables are named, the other knobs are not blamed."""
    text = "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8."
    nccl: Point = {"env.NCCL_ALGO": "NVLS", "env.NCCL_PROTO": "LL"}
    learnt = constraint(text, {**TREE, **nccl})
    assert not learnt.holds({**nccl, "eagle_topk": 1})
    assert learnt.holds({**nccl, "env.NCCL_ALGO": "Ring"})


class _Lister:
    """Proposes the first point of the space that nobody has."""

    def propose(self, space, rows, pending, objective):  # type: ignore[no-untyped-def]
        known = [dict(row.point) for row in rows]
        return next((point for point in space.valid_points(1000) if point not in known), None)


def test_a_study_launches_nothing_in_a_closed_region() -> None:
    """LF-05: after the first refusal only chains are proposed."""
    when = {ALGORITHM: ("EAGLE3",)}
    space = SearchSpace(
        (
            ChoiceParameter(ALGORITHM, ("none", "EAGLE3")),
            IntParameter("num_steps", 1, 3, when=when),
            ChoiceParameter("eagle_topk", (1, 2, 4), when=when),
        )
    )
    study = Study(space, Objective(), Budget(trials=None), _Lister())

    def row(number: int, point: Point, status: TrialStatus, lesson: str | None = None) -> TrialResult:
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        return TrialResult(number=number, attempt=1, kind=kind, point=point, status=status, lesson=lesson)

    refused = {ALGORITHM: "EAGLE3", "eagle_topk": 4, "num_steps": 1}
    rows = [
        row(0, study.baseline_point, TrialStatus.OK),
        row(1, refused, TrialStatus.INFEASIBLE, "eagle_topk <= 1"),
    ]
    launched = []
    while isinstance(action := study.next_action(rows, []), Launch):
        launched.append(action.request.point)
        rows.append(row(action.request.number, action.request.point, TrialStatus.OK))
    assert [point["eagle_topk"] for point in launched] == [1, 1, 1]
