"""Regions of the space that a trial closed for all that came after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specsearch.search_space import Constraint, Point, SearchSpace, point_key
from specsearch.study import lessons, taught_space
from specsearch.trial import TrialResult, TrialStatus

_SAME = "another value changes nothing here: take the knob out of the search, or pin it"
MOST_LISTED = 20_000  # combinations; a larger space is not enumerated for a count


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRegion:
    """What one trial taught, and what was not launched because of it."""

    keeps: str  # a constraint: no further point may violate it
    trial: int  # that taught it
    reason: str | None  # of that trial; None where it is ok and its server showed that a value changes nothing
    because: str  # in the server's own words where it has any
    rejected_by_hand: int  # points given by hand that were not launched
    not_launched: int | None  # configurations of the space; None where the space is not known or too large to list
    configurations: int | None  # of the space, the baseline's settings pinned


def closed_regions(rows: Sequence[TrialResult], space: SearchSpace | None = None) -> tuple[ClosedRegion, ...]:
    """Every region that the rows closed, in the order of the trials; counted where the space is given."""
    sources = {constraint.source: constraint for constraint in lessons(rows)}
    points = _points(rows, space) if sources and space else None
    return tuple(_region(constraint, rows, points) for constraint in sources.values())


def _points(rows: Sequence[TrialResult], space: SearchSpace) -> Sequence[Point] | None:
    """The configurations that could be launched if nothing had been learnt but what the baseline resolved to."""
    return taught_space(space, [replace(row, lesson=None) for row in rows]).valid_points(MOST_LISTED)


def _region(constraint: Constraint, rows: Sequence[TrialResult], points: Sequence[Point] | None) -> ClosedRegion:
    teacher = next(row for row in rows if lessons([row]) == (constraint,))
    closed = [row for row in rows if not constraint.holds(row.point)]
    launched = {point_key(row.point) for row in closed if row.status != TrialStatus.REJECTED}
    left = None
    if points is not None:
        left = sum(not constraint.holds(point) and point_key(point) not in launched for point in points)
    return ClosedRegion(
        keeps=constraint.source,
        trial=teacher.number,
        reason=teacher.reason,
        because=teacher.detail or teacher.message or _SAME,
        rejected_by_hand=sum(row.status == TrialStatus.REJECTED and row.number > teacher.number for row in closed),
        not_launched=left,
        configurations=None if points is None else len(points),
    )
