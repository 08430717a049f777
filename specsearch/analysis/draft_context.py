"""How well a drafter is accepted within the context it was made for, and beyond it."""

from collections.abc import Mapping
from dataclasses import dataclass

from specsearch.analysis.stability import values_at
from specsearch.trial import TrialResult

WITHIN, BEYOND = "accept_length_within_draft_context", "accept_length_beyond_draft_context"


@dataclass(frozen=True, slots=True)
class DraftContext:
    """A trial whose server stretched the drafter's context; mean accept lengths by load point, where told apart."""

    trial: int
    within: Mapping[str, float]
    beyond: Mapping[str, float]


def draft_context(row: TrialResult) -> DraftContext | None:
    """What is known of a trial whose drafter's context was stretched; None for any other."""
    if not row.draft_context_overridden:
        return None
    return DraftContext(row.number, _means(row, WITHIN), _means(row, BEYOND))


def _means(row: TrialResult, metric: str) -> dict[str, float]:
    """Over the repeats in which there were such requests."""
    points = dict.fromkeys(measurement.load_point for measurement in row.measurements)
    found = {point: values_at(row.measurements, metric, point) for point in points}
    return {point: sum(values) / len(values) for point, values in found.items() if values}
