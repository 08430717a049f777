"""What to run next, decided from the rows alone.

    baseline ─► seed points ─► search ─► matched plain run of the best ─► done

Nothing here remembers: the same rows and the same pending trials give the same action.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from specsearch.errors import ConfigError
from specsearch.metrics import duration
from specsearch.objective import Objective, per_load_point
from specsearch.search_space import Constraint, Point, SearchSpace, is_plain, plain_of, point_key
from specsearch.trial import Phase, TrialKind, TrialRequest, TrialResult, TrialStatus

MOST_ATTEMPTS = 3  # a host's failure is retried twice at most
MOST_DUPLICATES_IN_A_ROW = 10

# These speak against the node whatever was launched on it; a hang, a crash or no shared memory may be the point's.
HOST_REASONS = frozenset(
    {
        *("gpu_not_free", "gpu_lost", "gpu_fault", "port_taken", "wrong_server", "host_not_fit", "launch_failed"),
        "disk_full",
    }
)
# Few in one run, which ends with its nodes. Every run tries a baseline anew that only these kept from being measured.
BOUNDED_BY_THE_RUN = HOST_REASONS | {"interrupted"}


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop searching; None is no limit. Trials are launches of the search, baseline and retries not counted."""

    trials: int | None = 40
    wall_time_s: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Start this trial."""

    request: TrialRequest


@dataclass(frozen=True, slots=True)
class Reject:
    """Write a row for a point given by hand that cannot be run; launch nothing."""

    request: TrialRequest
    problems: tuple[str, ...]
    reason: str = "infeasible_params"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to start until a running trial ends."""


@dataclass(frozen=True, slots=True)
class Done:
    """The study has ended; `why` is a sentence. With an exit code it is the file's or the host's fault."""

    why: str
    exit_code: int | None = None


Action = Launch | Reject | Wait | Done


class Proposer(Protocol):
    """A sampler as the study sees it: rows in, a new canonical point out."""

    def propose(
        self, space: SearchSpace, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], objective: Objective
    ) -> Point | None:
        """A valid canonical point that is neither in the rows nor pending; None when the space is exhausted."""


@dataclass(frozen=True)
class Study:
    """The rules of one study; `next_action` applies them to rows."""

    space: SearchSpace
    objective: Objective
    budget: Budget
    proposer: Proposer
    seed_points: tuple[Point, ...] = ()  # as given; canonicalised here
    baseline: Point = field(default_factory=dict)  # overrides of the start baseline
    learnt: tuple[Constraint, ...] = ()  # what trials have taught, among the constraints of the space

    @property
    def baseline_point(self) -> Point:
        return self.space.start_baseline(self.baseline)

    def next_action(
        self, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], *, elapsed_s: float = 0.0
    ) -> Action:
        """The next thing to do; `elapsed_s` is the wall time the study has used so far, earlier runs included."""
        return self._taught(rows)._decide(rows, pending, elapsed_s)

    def _taught(self, rows: Sequence[TrialResult]) -> "Study":
        """The same study pinned to what its baseline resolved to, without the regions that trials have closed."""
        baseline = next((row for row in rows if _is_measured_baseline(row)), None)
        sources = tuple(constraint.source for constraint in lessons(rows))
        known = (sources, baseline.effective_key if baseline else None)
        if known not in self._spaces:  # a space that was listed once is worth keeping
            self._spaces[known] = taught_space(self.space, rows)
        return replace(self, space=self._spaces[known], learnt=lessons(rows))

    @cached_property
    def _spaces(self) -> dict[tuple[tuple[str, ...], str | None], SearchSpace]:
        return {}

    def _decide(self, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], elapsed_s: float) -> Action:
        latest = latest_attempts(rows)
        return (
            self._out_of_time(rows, pending, elapsed_s)
            or self._baseline(latest, pending)
            or self._refused_flag(latest, pending)
            or self._retry(latest, pending)
            or self._out_of_trials(latest, pending)
            or self._seed(latest, pending)
            or self._search(latest, pending)
        )

    def _baseline(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action | None:
        if any(request.kind == TrialKind.BASELINE for request in pending):
            return Wait()
        row = next((row for row in reversed(latest) if row.kind == TrialKind.BASELINE), None)
        if row is None:
            return self._launch(latest, pending, TrialKind.BASELINE, self.baseline_point)
        if row.status == TrialStatus.OK:
            return None
        if may_retry(row) or (row.status == TrialStatus.FAILED and row.reason in BOUNDED_BY_THE_RUN):
            return self._again(row, latest)
        other = self._completed(self.baseline, self.baseline_point) if row.lesson else row.point
        if point_key(other) not in known_keys(latest, pending) and not self.space.problems(other):
            return self._launch(latest, pending, TrialKind.BASELINE, other)  # with what its failure has taught
        return _wait_or(pending, Done(f"the start baseline cannot be measured: {row.reason}: {row.message}"))

    def _refused_flag(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action | None:
        """The engine lacks a flag of the first trial after the baseline, and so of the others."""
        tried = [row for row in latest if row.kind in _SEARCH_KINDS and row.status in _COUNTED]
        if len(tried) != 1 or tried[0].status != TrialStatus.INFEASIBLE or "flag" not in tried[0].failure_facts:
            return None
        flag = tried[0].failure_facts["flag"]
        why = f"the engine has no {flag}, which t{tried[0].number:04d} was given ({tried[0].detail}); correct the file"
        return _wait_or(pending, Done(why, exit_code=ConfigError.exit_code))

    def _retry(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action | None:
        running = {request.number for request in pending}
        row = next((row for row in latest if may_retry(row) and row.number not in running), None)
        return self._again(row, latest) if row else None

    def _seed(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action | None:
        known = known_keys(latest, pending)
        for given in self.seed_points:
            point = self._completed(given, self.space.canonical(given))
            if point_key(point) in known:
                continue
            problems = self.space.problems(point)
            if problems:
                request = self._request(latest, pending, TrialKind.SEED, point)
                return Reject(request, tuple(problems), self.space.rules.refusal(point))
            return self._launch(latest, pending, TrialKind.SEED, point)
        return None

    def _out_of_time(
        self, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], elapsed_s: float
    ) -> Action | None:
        wall_time_s, gpu_hours = self.budget.wall_time_s, self.budget.gpu_hours
        if wall_time_s is not None and elapsed_s + typical_seconds(rows) > wall_time_s:
            why = f"the time budget of {duration(wall_time_s)} leaves no room for another trial"
            return _wait_or(pending, Done(why))
        if gpu_hours is not None and math.fsum(row.gpu_seconds for row in rows) / 3600 >= gpu_hours:
            return _wait_or(pending, Done(f"the budget of {gpu_hours:g} GPU-hours is used up"))
        return None

    def _out_of_trials(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action | None:
        running = {request.number for request in pending if request.kind in _SEARCH_KINDS}
        used = len(running) + count_searched(row for row in latest if row.number not in running)
        if self.budget.trials is None or used < self.budget.trials:
            return None
        finish = self._matched_plain(latest, pending)
        return finish or _wait_or(pending, Done(f"all {self.budget.trials} trials of the budget are used"))

    def _completed(self, given: Point, point: Point) -> Point:
        """The point made of what is given; where a trial has closed a default that it took, another value of that."""
        if all(constraint.holds(point) for constraint in self.learnt):
            return point
        for name in point.keys() - given.keys():
            for value in self.space.by_name[name].all_values() if name in self.space.by_name else ():
                other = self.space.canonical({**point, **given, name: value})
                if not self.space.problems(other):
                    return other
        return point

    def _search(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action:
        tail = [row.status for row in latest if row.kind == TrialKind.SEARCH][-MOST_DUPLICATES_IN_A_ROW:]
        stuck = len(tail) == MOST_DUPLICATES_IN_A_ROW and set(tail) == {TrialStatus.SKIPPED_DUPLICATE}
        point = None if stuck else self.proposer.propose(self.space, latest, pending, self.objective)
        if point is not None:
            return self._launch(latest, pending, TrialKind.SEARCH, point)
        tried = len({row.effective_key or point_key(row.point) for row in latest if row.status != TrialStatus.REJECTED})
        return self._matched_plain(latest, pending) or _wait_or(
            pending, Done(f"the search space is exhausted ({tried} effective configurations, the baseline included)")
        )

    def _matched_plain(self, latest: Sequence[TrialResult], pending: Sequence[TrialRequest]) -> Action | None:
        """Plain decoding with the non-speculative knobs of the best speculative trial, if nobody measured it."""
        if pending:
            return None
        best = next((row for row in ranked(latest, self.objective) if not is_plain(row.point)), None)
        if best is None:
            return None
        point = self.space.walk(lambda parameter: plain_of(best.point).get(parameter.name, parameter.all_values()[0]))
        point = dict(sorted(plain_of(point).items()))
        if point_key(point) in known_keys(latest, pending) or self.space.problems(point):
            return None
        return self._launch(latest, pending, TrialKind.MATCHED_PLAIN, point)

    def _again(self, row: TrialResult, rows: Sequence[TrialResult]) -> Launch:
        request = self._request(rows, (), row.kind, row.point)
        return Launch(replace(request, number=row.number, attempt=row.attempt + 1))

    def _launch(
        self, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], kind: TrialKind, point: Point
    ) -> Launch:
        return Launch(self._request(rows, pending, kind, point))

    def _request(
        self, rows: Sequence[TrialResult], pending: Sequence[TrialRequest], kind: TrialKind, point: Point
    ) -> TrialRequest:
        number = 1 + max([-1, *(row.number for row in rows), *(request.number for request in pending)])
        return TrialRequest(
            number=number,
            attempt=1,
            kind=kind,
            point=point,
            known_effective=known_effective(rows),
            pins={} if kind == TrialKind.BASELINE else self.space.rules.pins(point),
        )


_SEARCH_KINDS = (TrialKind.SEED, TrialKind.SEARCH)
_COUNTED = (TrialStatus.OK, TrialStatus.STOPPED_EARLY, TrialStatus.INFEASIBLE, TrialStatus.FAILED, TrialStatus.INVALID)
_HOST_MAY_BE_TO_BLAME = ("drift",)


def latest_attempts(rows: Iterable[TrialResult]) -> list[TrialResult]:
    """The last attempt of each trial, in order of trial numbers."""
    latest: dict[int, TrialResult] = {}
    for row in sorted(rows, key=lambda row: (row.number, row.attempt)):
        latest[row.number] = row
    return list(latest.values())


def may_retry(row: TrialResult) -> bool:
    """Whether the last attempt of a trial is to be repeated."""
    if row.status == TrialStatus.FAILED:
        return row.attempt < MOST_ATTEMPTS
    if row.status == TrialStatus.INVALID:
        return row.attempt == 1 and row.reason in _HOST_MAY_BE_TO_BLAME
    return row.status == TrialStatus.ABORTED  # what the user or the budget ended belongs to the next run


def lessons(rows: Iterable[TrialResult]) -> tuple[Constraint, ...]:
    """What trials forbid to every further point: what cannot run, and what was seen to change nothing."""
    teaching = (TrialStatus.INFEASIBLE, TrialStatus.OK)
    sources = [row.lesson for row in rows if row.lesson and row.status in teaching]
    return tuple(map(Constraint, dict.fromkeys(sources)))


def taught_space(space: SearchSpace, rows: Sequence[TrialResult]) -> SearchSpace:
    """The space as the rows leave it: rules that know the baseline, constraints that trials have taught."""
    constraints = (*space.constraints, *lessons(rows))
    baseline = next((row for row in rows if _is_measured_baseline(row)), None)
    if baseline is None:
        return replace(space, constraints=constraints)
    environment = {f"env.{name}": value for name, value in (baseline.effective_env or {}).items()}
    facts = {name: str(value) for name, value in baseline.facts.items() if value is not None}
    settled = {**facts, **baseline.effective, **environment}
    return replace(space, constraints=constraints, rules=space.rules.settled_by(settled))


def _is_measured_baseline(row: TrialResult) -> bool:
    return row.kind == TrialKind.BASELINE and row.status == TrialStatus.OK


def settle(result: TrialResult, rows: Iterable[TrialResult]) -> TrialResult:
    """The result as it is stored.

    A server that crashes twice at work is the configuration's fault; a trial with a number that is not finite
    cannot be ok, since every tool ranks such numbers by rules of its own.
    """
    crashed_before = any(row.number == result.number and row.reason == result.reason == "runtime_crash" for row in rows)
    if crashed_before:
        return replace(result, status=TrialStatus.INFEASIBLE)
    odd = not_finite(result) if result.status == TrialStatus.OK else None
    if odd is None:
        return result
    return replace(
        result, status=TrialStatus.INVALID, reason="not_finite", message=f"measured {odd}", phase=Phase.MEASURE
    )


def not_finite(result: TrialResult) -> str | None:
    """The first measured number that is NaN or infinite, as `metric = value at load point`; None when there is none."""
    for measurement in result.measurements:
        for name, value in measurement.values.items():
            if value is not None and not math.isfinite(value):
                return f"{name} = {value} at {measurement.load_point}"
    return None


def count_searched(rows: Iterable[TrialResult]) -> int:
    """Trials that the budget has paid for."""
    return sum(row.kind in _SEARCH_KINDS and row.status in _COUNTED for row in latest_attempts(rows))


def typical_seconds(rows: Sequence[TrialResult]) -> float:
    """Median wall time of a measured trial; 0 before there is one."""
    times = sorted(row.ended_at - row.started_at for row in rows if row.status == TrialStatus.OK)
    return times[len(times) // 2] if times else 0.0


def known_keys(rows: Iterable[TrialResult], pending: Iterable[TrialRequest]) -> set[str]:
    """The canonical points that are decided or under way."""
    return {point_key(row.point) for row in rows} | {point_key(request.point) for request in pending}


def known_effective(rows: Iterable[TrialResult]) -> dict[str, int]:
    """Effective configurations that were measured, with the trial that did."""
    return {row.effective_key: row.number for row in rows if row.effective_key and row.status == TrialStatus.OK}


def ranked(rows: Iterable[TrialResult], objective: Objective) -> list[TrialResult]:
    """Trials that may be called best, best first: ok, every bound kept; ties by latency, then by number."""
    scored = []
    for row in rows:
        score = objective.score(row.measurements) if row.status == TrialStatus.OK else None
        if score is None or any(violation > 0 for violation in objective.violations(row.measurements)):
            continue
        latency = per_load_point(row.measurements, "e2e_p50_ms") or {}
        scored.append((-score, math.fsum(latency.values()), row.number, row))
    return [row for *_, row in sorted(scored, key=lambda entry: entry[:3])]


def _wait_or(pending: Sequence[TrialRequest], done: Done) -> Action:
    return Wait() if pending else done
