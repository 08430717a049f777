"""A trial's result as rows of the tables, and back."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from specsearch.metrics import METRICS, TRIAL_FACTS, RequestRecord
from specsearch.objective import Objective, per_load_point
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, Value, point_key
from specsearch.storage.fingerprint import Stamp
from specsearch.storage.schema import NAMED_KNOBS, SCHEMA_VERSION, SWITCH, WHOLE
from specsearch.study import not_finite
from specsearch.trial import Capture, Measurement, Phase, TrialKind, TrialResult, TrialStatus

Row = dict[str, object]


def trial_row(result: TrialResult, stamp: Stamp) -> Row:
    """The row of the table `trials`; raises ValueError for an ok result with a number that is not finite.

    `study.settle` turns such a result into an invalid one before it comes here.
    """
    ok = result.status == TrialStatus.OK
    odd = not_finite(result)
    if ok and odd:
        raise ValueError(f"{result.name} is ok and has {odd}: only finite numbers may be ranked")
    summary = _summary(result.measurements, stamp.objective)
    return {
        **_origin(result, stamp),
        **_outcome(result, stamp.objective),
        **_configuration(result),
        **_course(result),
        **{name: _fact(result, name) for name in TRIAL_FACTS},
        **{(name if ok else f"raw_{name}"): value for name, value in summary.items()},
        "fingerprint_fields": dict(stamp.fingerprint_fields),
        "specsearch_version": stamp.specsearch_version,
        "schema_version": SCHEMA_VERSION,
        "measurement_rows": len(result.measurements),
    }


def measurement_rows(result: TrialResult, stamp: Stamp) -> list[Row]:
    """The rows of the table `measurements`; a number that is not finite is not known."""
    return [
        {
            **_origin(result, stamp),
            "load_point": measurement.load_point,
            "workload": measurement.workload,
            "workload_digest": measurement.workload_digest,
            "workload_kind": measurement.workload_kind,
            "concurrency": measurement.concurrency,
            "repeat": measurement.repeat,
            "started_at": _timestamp(measurement.started_at),
            "started_at_s": measurement.started_at,
            **_known_metrics(measurement.values),
            "accepted_histogram": _optional_list(measurement.accepted_histogram),
            "accept_source": measurement.accept_source,
            "specsearch_version": stamp.specsearch_version,
            "schema_version": SCHEMA_VERSION,
        }
        for measurement in result.measurements
    ]


def request_rows(result: TrialResult, stamp: Stamp) -> list[Row]:
    """The rows of the table `requests`; none unless the requests were kept."""
    return [
        {
            **_origin(result, stamp),
            "load_point": measurement.load_point,
            "repeat": measurement.repeat,
            "request": number,
            **_request(record, began_s=min(kept.started_s for kept in measurement.records)),
            "specsearch_version": stamp.specsearch_version,
            "schema_version": SCHEMA_VERSION,
        }
        for measurement in result.measurements
        for number, record in enumerate(measurement.records)
    ]


def _request(record: RequestRecord, *, began_s: float) -> Row:
    first_s = record.first_token_s
    return {
        "started_s": record.started_s - began_s,
        "ttft_ms": None if first_s is None else 1e3 * (first_s - record.started_s),
        "e2e_ms": 1e3 * (record.finished_s - record.started_s),
        "chunk_ms": [1e3 * (arrival - record.started_s) for arrival, _ in record.chunks],
        "chunk_tokens": [tokens for _, tokens in record.chunks],
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "verify_steps": record.verify_steps,
        "correct_drafts": record.correct_drafts,
        "proposed_drafts": record.proposed_drafts,
        "error": record.error,
        "timed_out": record.timed_out,
        "degenerate": record.degenerate,
        "text_digest": hashlib.sha256(record.text.encode()).hexdigest()[:16] if record.text else None,
    }


def result_of(row: Mapping[str, object], measurements: Sequence[Mapping[str, object]]) -> TrialResult:
    """The result that the rows were made of; raises ValueError, TypeError or KeyError where they were not ours."""
    reason, message, detail, advice = (_text(row, name) for name in ("reason", "message", "detail", "advice"))
    phase = _text(row, "phase")
    return TrialResult(
        number=_whole(row, "trial"),
        attempt=_whole(row, "attempt"),
        kind=TrialKind(str(row["kind"])),
        point=json.loads(str(row["point"])),
        status=TrialStatus(str(row["status"])),
        reason=reason,
        message=message,
        detail=detail,
        advice=advice,
        lesson=_text(row, "lesson"),
        failure_facts=text_map(row, "failure_facts") or {},
        phase=Phase(phase) if phase is not None else None,
        command=_text(row, "command"),
        serve_command=_text(row, "serve_command"),
        log_path=_text(row, "log_path"),
        exit_code=None if row["exit_code"] is None else _whole(row, "exit_code"),
        started_at=_number(row, "started_at_s") or 0.0,
        ended_at=_number(row, "ended_at_s") or 0.0,
        phase_s={p.value: seconds for p in Phase if (seconds := _number(row, f"phase_{p}_s")) is not None},
        gpu_count=_whole(row, "gpu_count"),
        node=_text(row, "node"),
        host_facts=text_map(row, "host_facts") or {},
        engine=str(row["engine"]),
        engine_version=_text(row, "engine_version"),
        effective=text_map(row, "effective") or {},
        effective_key=_text(row, "effective_key"),
        overridden=_texts(row, "overridden"),
        effective_env=text_map(row, "effective_env"),
        pins=text_map(row, "pins") or {},
        model_facts=text_map(row, "model_facts") or {},
        captures=tuple(map(_capture_of, _list(row["captures"]))),
        queue_limited=_switch(row, "queue_limited"),
        draft_context_overridden=_switch(row, "draft_context_overridden") or False,
        facts={name: _number(row, name) for name in TRIAL_FACTS},
        measurements=tuple(map(_measurement_of, measurements)),
        warnings=_texts(row, "warnings"),
        node_unfit=_text(row, "node_unfit"),
    )


def text_map(row: Mapping[str, object], name: str) -> dict[str, str] | None:
    """A map column as a dict; None for null."""
    pairs = row[name]
    if pairs is None:
        return None
    if not isinstance(pairs, list):
        raise TypeError(f"{name} holds no map")
    return {str(key): str(value) for key, value in pairs}


def _origin(result: TrialResult, stamp: Stamp) -> Row:
    return {
        "study": stamp.study,
        "fingerprint": stamp.fingerprint,
        "engine": result.engine,
        "simulated": result.simulated,
        "trial": result.number,
        "attempt": result.attempt,
        "status": result.status.value,
    }


def _outcome(result: TrialResult, objective: Objective) -> Row:
    ok = result.status == TrialStatus.OK
    violations = objective.violations(result.measurements)
    worst = max(violations, default=None)
    return {
        "kind": result.kind.value,
        "name": result.name,
        "reason": result.reason,
        "message": result.message,
        "detail": result.detail,
        "advice": result.advice,
        "lesson": result.lesson,
        "failure_facts": dict(result.failure_facts),
        "phase": result.phase.value if result.phase else None,
        "objective": objective.score(result.measurements) if ok else None,
        "objective_violation": _finite(worst),
        "bounds_kept": (worst is None or worst <= 0) if ok else None,
        "objective_spec": objective.spec(),
    }


def _configuration(result: TrialResult) -> Row:
    point = {ALGORITHM: PLAIN} | dict(result.point)
    others = {name: _spelled(value) for name, value in point.items() if name not in NAMED_KNOBS}
    return {
        **{name: _knob(name, point) for name in NAMED_KNOBS},
        "flags": {name: value for name, value in others.items() if not name.startswith("env.")},
        "env": {name.removeprefix("env."): value for name, value in others.items() if name.startswith("env.")},
        "point": point_key(result.point),
        "command": result.command,
        "serve_command": result.serve_command,
        "engine_version": result.engine_version,
        "effective": dict(result.effective),
        "effective_key": result.effective_key,
        "effective_env": None if result.effective_env is None else dict(result.effective_env),
        "overridden": list(result.overridden),
        "pins": {name: _spelled(value) for name, value in result.pins.items()},
        "model_facts": dict(result.model_facts),
        "captures": [asdict(capture) | {"sizes": list(capture.sizes)} for capture in result.captures],
        "queue_limited": result.queue_limited,
        "draft_context_overridden": result.draft_context_overridden,
        "warnings": list(result.warnings),
    }


def _course(result: TrialResult) -> Row:
    return {
        "started_at": _timestamp(result.started_at),
        "ended_at": _timestamp(result.ended_at),
        "started_at_s": result.started_at,
        "ended_at_s": result.ended_at,
        **{f"phase_{Phase(phase)}_s": seconds for phase, seconds in result.phase_s.items()},
        "gpu_count": result.gpu_count,
        "gpu_seconds": result.gpu_seconds,
        "exit_code": result.exit_code,
        "log_path": result.log_path,
        "node": result.node,
        "node_unfit": result.node_unfit,
        "host_facts": dict(result.host_facts),
    }


def _summary(measurements: Sequence[Measurement], objective: Objective) -> dict[str, float | None]:
    chosen = [m for m in measurements if not objective.at or m.load_point in objective.at]
    return {name: _mean_over_load_points(chosen, name) for name in METRICS}


def _mean_over_load_points(measurements: Sequence[Measurement], metric: str) -> float | None:
    values = per_load_point(measurements, metric)
    return _finite(math.fsum(values.values()) / len(values)) if values else None


def _fact(result: TrialResult, name: str) -> float | None:
    unknown = result.facts.keys() - TRIAL_FACTS.keys()
    if unknown:
        raise ValueError(f"metrics.TRIAL_FACTS does not know {', '.join(sorted(unknown))}")
    return _finite(result.facts.get(name))


def _known_metrics(values: Mapping[str, float | None]) -> dict[str, float | None]:
    unknown = values.keys() - METRICS.keys()
    if unknown:
        raise ValueError(f"metrics.METRICS does not know {', '.join(sorted(unknown))}")
    return {name: _finite(values.get(name)) for name in METRICS}


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _knob(name: str, point: Point) -> Value | None:
    """The knob in its column's type; null where it is absent or `unset`. The column `point` has the exact value."""
    value = point.get(name)
    if value is None or value == UNSET:
        return None
    match NAMED_KNOBS[name].type:
        case kind if kind == SWITCH:
            return value if isinstance(value, bool) else None
        case kind if kind == WHOLE:
            return value if isinstance(value, int) and not isinstance(value, bool) else None
    return _spelled(value)


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _timestamp(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _optional_list(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)


def _measurement_of(row: Mapping[str, object]) -> Measurement:
    histogram = row["accepted_histogram"]
    return Measurement(
        workload=str(row["workload"]),
        workload_digest=str(row["workload_digest"]),
        workload_kind=str(row["workload_kind"]),
        concurrency=_whole(row, "concurrency"),
        repeat=_whole(row, "repeat"),
        values={name: _number(row, name) for name in METRICS},
        accepted_histogram=tuple(map(int, histogram)) if isinstance(histogram, list) else None,
        accept_source=str(row["accept_source"]),
        started_at=_number(row, "started_at_s") or 0.0,
    )


def _capture_of(struct: object) -> Capture:
    if not isinstance(struct, dict):
        raise TypeError(f"captures holds {struct!r}, no graph")
    seconds, memory_gb, available_gb = (_number(struct, name) for name in ("seconds", "memory_gb", "available_gb"))
    sizes = tuple(map(int, _list(struct["sizes"])))
    return Capture(str(struct["name"]), seconds, memory_gb, available_gb, sizes)


def _list(values: object) -> list[Any]:
    return values if isinstance(values, list) else []


def _switch(row: Mapping[str, object], name: str) -> bool | None:
    value = row[name]
    return value if isinstance(value, bool) else None


def _text(row: Mapping[str, object], name: str) -> str | None:
    value = row[name]
    return None if value is None else str(value)


def _texts(row: Mapping[str, object], name: str) -> tuple[str, ...]:
    return tuple(map(str, _list(row[name])))


def _number(row: Mapping[str, object], name: str) -> float | None:
    value = row[name]
    if value is None or isinstance(value, float):
        return value
    raise TypeError(f"{name} holds {value!r}, no number")


def _whole(row: Mapping[str, object], name: str) -> int:
    value = row[name]
    if isinstance(value, int):
        return value
    raise TypeError(f"{name} holds {value!r}, no whole number")
