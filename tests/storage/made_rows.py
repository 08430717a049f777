"""Results made by hand, for tests of what is done with rows."""

from collections.abc import Mapping, Sequence

from specsearch.metrics import METRICS
from specsearch.objective import Objective
from specsearch.search_space import ALGORITHM, PLAIN, Point, Value
from specsearch.storage import Stamp
from specsearch.trial import Measurement, Phase, TrialKind, TrialResult, TrialStatus

PLAIN_POINT: Point = {"cuda_graph": True, ALGORITHM: PLAIN}
TREE_POINT: Point = {
    "cuda_graph": True,
    "eagle_topk": 4,
    "env.NCCL_ALGO": "Ring",
    "num_draft_tokens": 16,
    "num_steps": 3,
    ALGORITHM: "EAGLE3",
}
FIELDS = {"engine": "sglang", "engine.model": "/models/kimi", "space.num_steps": "an integer from 1 to 5"}


def stamp(fields: Mapping[str, str] = FIELDS, *, objective: Objective | None = None, study: str = "kimi") -> Stamp:
    return Stamp(study=study, fingerprint_fields=fields, specsearch_version="0.1.0", objective=objective or Objective())


def repeats(
    speeds: Sequence[float],
    *,
    accept: float | None = None,
    workload: str = "chat",
    concurrency: int = 1,
    histogram: tuple[int, ...] | None = None,
    **more: float | None,
) -> tuple[Measurement, ...]:
    """One load point, one repeat for each throughput."""
    return tuple(
        Measurement(
            workload=workload,
            workload_digest="0123456789ab",
            workload_kind="text",
            concurrency=concurrency,
            repeat=repeat,
            values=dict.fromkeys(METRICS) | {"output_tokens_per_s": speed, "accept_length": accept} | more,
            accepted_histogram=histogram,
            accept_source="requests" if accept else "none",
            started_at=1000.0 + repeat,
        )
        for repeat, speed in enumerate(speeds)
    )


def trial(
    number: int,
    point: Point,
    measurements: Sequence[Measurement] = (),
    *,
    status: TrialStatus = TrialStatus.OK,
    kind: TrialKind = TrialKind.SEARCH,
    attempt: int = 1,
    engine: str = "sglang",
    **more: object,
) -> TrialResult:
    values: dict[str, object] = {
        "phase": Phase.MEMORY_FREE,
        "command": f"NCCL_ALGO=Ring python3 -m sglang.launch_server --model-path /models/kimi --port {30000 + number}",
        "started_at": 1000.0 + 100 * number,
        "ended_at": 1060.0 + 100 * number,
        "phase_s": {"launch": 1.0, "ready": 30.0, "measure": 25.0, "teardown": 4.0},
        "gpu_count": 8,
    }
    return TrialResult(
        number=number,
        attempt=attempt,
        kind=kind,
        point=dict(sorted(point.items())),
        status=status,
        engine=engine,
        measurements=tuple(measurements),
        **(values | more),  # type: ignore[arg-type]
    )


def baseline(speeds: Sequence[float] = (90.0, 90.3, 89.7), **knobs: Value) -> TrialResult:
    """The start baseline; the origin story's 90 tokens/s by default."""
    return trial(0, {**PLAIN_POINT, **knobs}, repeats(speeds, accept=None), kind=TrialKind.BASELINE)


def origin_tree(number: int = 1, speeds: Sequence[float] = (56.7, 56.9, 56.5)) -> TrialResult:
    """The origin story's step 2: 2.1 accepted at 56.7 tokens/s."""
    point = {name: value for name, value in TREE_POINT.items() if not name.startswith("env.")}
    return trial(number, point, repeats(speeds, accept=2.1))
