"""How sure a comparison is, from the repeats of a load point within one launch.

Repeats share their launch: its graphs, its clocks, its place in memory. What differs from one launch to the next is
not in these intervals, and they say so wherever they are shown.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specsearch.analysis.admission import waited_at
from specsearch.metrics import METRICS
from specsearch.objective import Objective
from specsearch.trial import Measurement, TrialResult

CONFIDENCE = 0.95

# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom (any table of the distribution).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z95 = 1.95996


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one value compares with another; `low` and `high` are None where nothing was repeated.

    Where requests waited to be admitted on either side it is `queue_limited`: it compares limits of servers as well,
    and is never shown as a plain number.
    """

    value: float
    low: float | None = None
    high: float | None = None
    queue_limited: bool = False

    @property
    def known(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def is_above(self) -> bool:
        """Beyond the noise within a launch; where that is not known, by the bare number."""
        return self.low > 1 if self.low is not None else self.value > 1

    @property
    def is_below(self) -> bool:
        return self.high < 1 if self.high is not None else self.value < 1

    @property
    def finding(self) -> str:
        """In two or three words; `no significant difference` where 1 is inside the interval."""
        if self.queue_limited:
            return "queue-limited"
        if self.is_above or self.is_below:
            word = "faster" if self.is_above else "slower"
            return word if self.known else f"{word}, measured once"
        return "no significant difference"


@dataclass(frozen=True, slots=True)
class _Term:
    """One independent part of the relative variance of a ratio."""

    variance: float
    degrees: float


def t95(degrees: float) -> float:
    """Two-sided 95 % point of Student's t; fractional degrees of freedom are interpolated."""
    if degrees > len(_T95):
        z = _Z95  # Cornish-Fisher, good to three decimals here
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low = max(1, math.floor(degrees))
    share = min(max(degrees - low, 0.0), 1.0)
    upper = _T95[low] if low < len(_T95) else _T95[-1]
    return _T95[low - 1] + (upper - _T95[low - 1]) * share


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return t95(len(values) - 1) * math.sqrt(_variance(values) / len(values))


def ratio(values: Sequence[float], reference: Sequence[float]) -> Ratio:
    """The mean of some repeats over the mean of others, both positive."""
    return _with_interval(_mean(values) / _mean(reference), _terms(values, reference, 1.0, 1.0))


def objective_ratio(row: TrialResult, reference: TrialResult, objective: Objective) -> Ratio | None:
    """A trial's score over another's, more is better; None where either has none or they measured different points."""
    score, reference_score = objective.score(row.measurements), objective.score(reference.measurements)
    repeats, reference_repeats = _repeats(row, objective), _repeats(reference, objective)
    if score is None or reference_score is None or repeats.keys() != reference_repeats.keys():
        return None
    weights, reference_weights = _weights(repeats, objective), _weights(reference_repeats, objective)
    parts = [
        _terms(values, reference_repeats[name], weights[name], reference_weights[name])
        for name, values in repeats.items()
    ]
    known = [part for part in parts if part is not None]
    terms = [term for part in known for term in part] if len(known) == len(parts) else None
    return waiting(_with_interval(score / reference_score, terms), row, reference, repeats)


def waiting(found: Ratio, row: TrialResult, reference: TrialResult, load_points: Iterable[str]) -> Ratio:
    """The same ratio, marked where requests waited to be admitted at one of these load points on either side."""
    waited = {*waited_at(row), *waited_at(reference)}
    return replace(found, queue_limited=not waited.isdisjoint(load_points))


def relative_range(values: Sequence[float]) -> float:
    """Largest minus smallest over the mean."""
    return (max(values) - min(values)) / _mean(values)


def values_at(measurements: Iterable[Measurement], metric: str, load_point: str) -> list[float]:
    """What the repeats of a load point measured, those without a value left out."""
    found = (m.values.get(metric) for m in measurements if m.load_point == load_point)
    return [value for value in found if value is not None]


def _repeats(row: TrialResult, objective: Objective) -> dict[str, list[float]]:
    names = objective.values(row.measurements) or {}
    return {name: values_at(row.measurements, objective.metric, name) for name in names}


def _weights(repeats: dict[str, list[float]], objective: Objective) -> dict[str, float]:
    """How much a relative change at a load point changes the score, by first order."""
    inverted = METRICS[objective.metric].better < 0
    scores = {name: 1 / _mean(values) if inverted else _mean(values) for name, values in repeats.items()}
    match objective.aggregate:
        case "geomean":
            return dict.fromkeys(scores, 1 / len(scores))
        case "min":
            lowest = min(scores, key=scores.__getitem__)
            return {name: float(name == lowest) for name in scores}
    total = math.fsum(scores.values())
    return {name: score / total for name, score in scores.items()}


def _terms(
    values: Sequence[float], reference: Sequence[float], weight: float, reference_weight: float
) -> list[_Term] | None:
    """Relative variance of both means; a side measured once is given the spread of the other."""
    own, other = _relative_variance(values), _relative_variance(reference)
    if own is None and other is None:
        return None
    degrees, other_degrees = len(values) - 1, len(reference) - 1
    if own is None or other is None:
        spread = own if own is not None else other or 0.0
        variance = spread * (weight**2 / len(values) + reference_weight**2 / len(reference))
        return [_Term(variance, max(degrees, other_degrees))]
    return [
        _Term(weight**2 * own / len(values), degrees),
        _Term(reference_weight**2 * other / len(reference), other_degrees),
    ]


def _with_interval(value: float, terms: Sequence[_Term] | None) -> Ratio:
    """Welch's interval on the logarithm, which keeps it positive and equal whichever way the ratio is taken."""
    if terms is None:
        return Ratio(value)
    variance = math.fsum(term.variance for term in terms)
    if variance == 0:
        return Ratio(value, value, value)
    degrees = variance**2 / math.fsum(term.variance**2 / term.degrees for term in terms)
    reach = math.exp(t95(degrees) * math.sqrt(variance))
    return Ratio(value, value / reach, value * reach)


def _relative_variance(values: Sequence[float]) -> float | None:
    return _variance(values) / _mean(values) ** 2 if len(values) > 1 else None


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
