"""Warm-up and measurement of every load point of a study on one ready server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specsearch.config import Limits
from specsearch.engines import Server
from specsearch.loadgen import (
    Repeat,
    check_drafts,
    check_load_point,
    draft_context_warning,
    measure_repeat,
    near_ceiling_warning,
    warm_up,
)
from specsearch.metrics import Summary, summarise
from specsearch.runners._readiness import log_size
from specsearch.runners._record import TrialRecord
from specsearch.runners._step_times import server_step_time_ms
from specsearch.trial import Measurement
from specsearch.workload import LoadPoint


@dataclass(frozen=True, slots=True)
class Bench:
    """A ready server, and what its numbers are written into."""

    record: TrialRecord
    server: Server
    base_url: str
    limits: Limits
    alive: Callable[[], str | None]
    token: str  # the requests' ids begin with it
    keep_requests: bool = False

    def warm_up(self, load_points: Sequence[LoadPoint]) -> None:
        """Send unmeasured prompts at every concurrency, so that kernels and graphs are warm."""
        for load_point in load_points:
            self.record.say(f"warming up {load_point.name}")
            warm_up(
                load_point,
                self.base_url,
                limits=self.limits,
                stop=self.record.stop,
                alive=self.alive,
                rid_prefix=self.token,
            )

    def measure(self, load_points: Sequence[LoadPoint]) -> None:
        """Measure all repeats of all load points; what was measured stays in the record if a gate then refuses it."""
        all_summaries: list[Summary] = []
        for load_point in load_points:
            self.record.log_from[load_point.name] = log_size(self.record.plan)
            summaries = [self._repeat(load_point, repeat) for repeat in range(load_point.repeats)]
            check_load_point(summaries, self.limits, load_point=load_point.name)
            self._warn_near_ceiling(summaries, load_point)
            self._warn_beyond_draft_context(summaries, load_point)
            all_summaries += summaries
        check_drafts(all_summaries, where="all load points")

    def _repeat(self, load_point: LoadPoint, repeat: int) -> Summary:
        """One repeat, from a flushed cache."""
        self.record.flushed = self.server.flush_cache()
        passes, step_times = self.server.decode_passes(), self.server.step_times_s()
        title = f"{load_point.name} repeat {repeat + 1}/{load_point.repeats}"
        self.record.say(title)
        measured = measure_repeat(
            load_point,
            self.base_url,
            limits=self.limits,
            stop=self.record.stop,
            alive=self.alive,
            on_progress=lambda done, speed: self.record.say(
                f"{title}, {done}/{load_point.requests_per_repeat} requests", output_tokens_per_s=speed
            ),
            rid_prefix=self.token,
        )
        summary = summarise(measured.records, measured.duration_s, draft_context=self.record.draft_context)
        told_by_server = {
            "cuda_graph_share": _share(passes, self.server.decode_passes()),
            "server_step_time_ms": server_step_time_ms(
                step_times, self.server.step_times_s(), concurrency=load_point.concurrency
            ),
        }
        summary = replace(summary, values={**summary.values, **told_by_server})
        self._keep(load_point, repeat, summary, measured)
        return summary

    def _keep(self, load_point: LoadPoint, repeat: int, summary: Summary, measured: Repeat) -> None:
        self.record.measurements.append(
            Measurement(
                workload=load_point.workload.name,
                workload_digest=load_point.workload.digest,
                workload_kind=load_point.workload.kind,
                concurrency=load_point.concurrency,
                repeat=repeat,
                values=summary.values,
                accepted_histogram=summary.accepted_histogram,
                accept_source=summary.accept_source,
                started_at=measured.started_at,
                records=measured.records if self.keep_requests else (),
            )
        )
        self.record.say(
            f"{load_point.name} repeat {repeat + 1}/{load_point.repeats} done",
            output_tokens_per_s=summary.values["output_tokens_per_s"],
            accept_length=summary.values["accept_length"],
        )

    def _warn_near_ceiling(self, summaries: Sequence[Summary], load_point: LoadPoint) -> None:
        point = self.record.request.point
        asked = point.get("num_draft_tokens")
        if isinstance(asked, int) and point.get("speculative_adaptive") is not True:  # which goes beyond what is asked
            warning = near_ceiling_warning(summaries, load_point=load_point.name, num_draft_tokens=asked)
            self.record.warnings += [warning] if warning else []

    def _warn_beyond_draft_context(self, summaries: Sequence[Summary], load_point: LoadPoint) -> None:
        if self.record.draft_context is not None:
            warning = draft_context_warning(summaries, load_point=load_point.name, context=self.record.draft_context)
            self.record.warnings += [warning] if warning else []


def _share(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    """Decode passes inside a graph over all decode passes between two readings."""
    if before is None or after is None:
        return None
    inside, outside = after[0] - before[0], after[1] - before[1]
    return inside / (inside + outside) if inside + outside > 0 else None
