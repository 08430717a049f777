"""What log and server tell once everything is measured; it can refuse a trial, and never lose what was measured."""

from collections.abc import Iterator, Mapping

from specsearch.config import StudyConfig
from specsearch.engines import Engine, LogFacts, Server
from specsearch.runners._graphs import capture_warnings, graph_memory_gb, require_graphs, used_share
from specsearch.runners._readiness import read_log
from specsearch.runners._record import TrialRecord
from specsearch.runners._step_times import step_time_warnings
from specsearch.trial import Measurement

_ROUNDING = 0.01


def look_back(record: TrialRecord, engine: Engine, server: Server, config: StudyConfig, *, wants_graphs: bool) -> None:
    """Take in what the server did while it was measured; raises InvalidTrial where graphs were asked for in vain."""
    assert record.plan is not None
    whole = engine.read_log(read_log(record.plan.log_path))
    measured = _measured_logs(record, engine)
    record.facts["graph_capture_s"] = whole.graph_capture_s
    record.facts["graph_memory_gb"] = graph_memory_gb(record.captures)
    record.warnings += whole.warnings
    record.warnings += _no_decode_line(record, measured)
    record.queue_limited = _is_queue_limited(record, measured, config)
    record.facts["server_accept_length"] = _lifetime_accept_length(record, server)
    record.warnings += accept_length_warnings(record)
    interval = record.identity.log_interval if record.identity else None
    record.warnings += step_time_warnings(record.measurements, interval)
    if wants_graphs:
        _judge_graphs(record, measured, config)


def _measured_logs(record: TrialRecord, engine: Engine) -> dict[str, LogFacts]:
    """What the log says of the measurement of each load point; their warm-up is left out."""
    assert record.plan is not None
    starts = list(record.log_from.items())
    ends = [start for _, start in starts[1:]] + [None]
    return {
        name: engine.read_log(read_log(record.plan.log_path, start, end))
        for (name, start), end in zip(starts, ends, strict=True)
    }


def _no_decode_line(record: TrialRecord, measured: Mapping[str, LogFacts]) -> Iterator[str]:
    """A log whose format is not known says nothing, and nothing must not pass for zero."""
    interval = record.identity.log_interval if record.identity else None
    if interval is None or any(log.decode_lines for log in measured.values()):
        return
    if sum(map(_steps, record.measurements)) >= 2 * interval:
        yield (
            f"the server's log has no decode line that can be read, though one is due every {interval} steps: whether "
            "requests waited, and graphs were used, is told by the server's counters alone"
        )


def _steps(measurement: Measurement) -> float:
    """Decode steps of a repeat, as if its batch had always been full: no fewer were run."""
    steps = measurement.values.get("verify_steps") or measurement.values.get("output_tokens") or 0.0
    return steps / measurement.concurrency


def _is_queue_limited(record: TrialRecord, measured: Mapping[str, LogFacts], config: StudyConfig) -> bool | None:
    """Whether requests waited: more were sent than the server runs, or most decode lines of a load point say so."""
    sent = max(point.concurrency for point in config.load_points)
    admitted = record.identity.most_requests if record.identity else None
    if admitted is not None and sent > admitted:
        record.warnings.append(
            f"{sent} requests were sent at once and {admitted} are run at once: the rest waited, which is a matter "
            "of admission and not of the configuration; raise max_running_requests, or free memory for it"
        )
        return True
    waited = [name for name, log in measured.items() if log.decode_lines_with_queue > log.decode_lines / 2]
    if waited:
        record.warnings.append(
            f"requests waited to be run in most of the measurement at {', '.join(waited)}: memory for their text may "
            "have been short; free some for it, or lower the concurrency"
        )
        return True
    return False if any(log.decode_lines for log in measured.values()) else None


def _lifetime_accept_length(record: TrialRecord, server: Server) -> float | None:
    """The server's own figure; a server that has stopped describing itself costs that and nothing else."""
    identity = server.identity(record.request.point) if server.is_ours() else None
    if identity is None:
        record.warnings.append(
            "the server described itself before the measurement and does not any more (another answer, or none): what "
            "it would have told of the measurement is not known; the requests' own figures stand"
        )
        return None
    return identity.accept_length


def accept_length_warnings(record: TrialRecord) -> Iterator[str]:
    """A sentence where the server counts another accept length than the requests of the last repeat do.

    Its counters begin with the last flush and move once in a log interval, so the steps since the last move are
    missing; and a request may be stepped once more after its end.
    """
    counted = record.facts["server_accept_length"]
    interval = record.identity.log_interval if record.identity else None
    if not record.measurements or not record.flushed or counted is None or interval is None:
        return
    last = record.measurements[-1]
    own, steps, requests = (last.values.get(name) for name in ("accept_length", "verify_steps", "requests_total"))
    if own is None or not steps or last.accepted_histogram is None:
        return
    uncertain = (interval - 1) * last.concurrency + (requests or 0.0)
    error = _ROUNDING + uncertain / steps * (len(last.accepted_histogram) - 1)
    if abs(counted - own) > error:
        yield (
            f"the server counts an accept length of {counted:.2f} since its last flush, the requests {own:.2f}, and "
            f"its log interval explains {error:.2f} at most; the requests' own count stands: see whether somebody else "
            "sends requests to this server"
        )


def _judge_graphs(record: TrialRecord, measured: Mapping[str, LogFacts], config: StudyConfig) -> None:
    told = sum(log.decode_lines_that_tell for log in measured.values())
    inside = sum(log.decode_lines_in_graph for log in measured.values())
    used = used_share(record.measurements, inside / told if told else None)
    point = record.request.point
    steps = point.get("num_steps", config.engine.args.get("num_steps"))
    record.warnings += capture_warnings(
        record.captures,
        point,
        steps if isinstance(steps, int) else None,
        concurrency=max(load_point.concurrency for load_point in config.load_points),
        is_used=max(used) > 0 if used else None,
    )
    record.warnings += require_graphs(used)
