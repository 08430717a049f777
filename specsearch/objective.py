"""What makes one configuration better than another: a metric over load points, under bounds."""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from specsearch.metrics import METRICS
from specsearch.trial import Measurement

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}
_NUMBER = r"[-+]?([0-9]{1,18}\.?[0-9]{0,24}|\.[0-9]{1,24})([eE][-+]?[0-9]{1,2})?"  # never infinite
_BOUND = re.compile(rf"\s*(?P<metric>\w+)\s*(?P<comparison><=|>=)\s*(?P<limit>{_NUMBER})\s*")


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on a metric at every load point of the objective, such as `ttft_p99_ms <= 500`."""

    metric: str
    comparison: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> "Bound":
        """Read `METRIC <= NUMBER` or `METRIC >= NUMBER`; raises ValueError with a sentence."""
        match = _BOUND.fullmatch(text)
        if not match:
            raise ValueError(f"{text!r} is not of the form METRIC <= NUMBER or METRIC >= NUMBER")
        if match["metric"] not in METRICS:
            raise ValueError(f"{match['metric']} is no metric; known are {', '.join(METRICS)}")
        return cls(match["metric"], match["comparison"], float(match["limit"]))

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.limit:g}"

    def violation(self, value: float | None) -> float:
        """How far beyond the limit, relative to it; 0 or less when kept, infinite when unknown."""
        if value is None:
            return math.inf
        over = value - self.limit if self.comparison == "<=" else self.limit - value
        return over / max(abs(self.limit), 1e-12)


@dataclass(frozen=True, slots=True)
class Objective:
    """What makes a configuration better; always maximised, a metric where less is better is inverted."""

    metric: str = "output_tokens_per_s"
    at: tuple[str, ...] = ()  # names of load points; empty: all
    aggregate: str = "geomean"  # geomean, mean or min, over load points
    subject_to: tuple[Bound, ...] = ()

    @classmethod
    def from_spec(cls, text: str) -> "Objective":
        """Read what `spec` wrote; raises ValueError where the text is something else."""
        match json.loads(text):
            case {"metric": str(metric), "at": list(at), "aggregate": str(aggregate), "subject_to": list(bounds)}:
                return cls(metric, tuple(map(str, at)), aggregate, tuple(map(Bound.parse, bounds)))
        raise ValueError(f"{text!r} is no objective")

    def spec(self) -> str:
        """The objective as one line of JSON, so that rows can be ranked without the search-space file."""
        bounds = [f"{bound.metric} {bound.comparison} {bound.limit!r}" for bound in self.subject_to]
        parts = {"metric": self.metric, "at": list(self.at), "aggregate": self.aggregate, "subject_to": bounds}
        return json.dumps(parts)

    def values(self, measurements: Iterable[Measurement]) -> dict[str, float] | None:
        """The metric per load point, its repeats averaged; None where a repeat lacks it."""
        return per_load_point(self._chosen(measurements), self.metric)

    def score(self, measurements: Sequence[Measurement]) -> float | None:
        """One number to rank by, more is better; None when it cannot be had."""
        values = self.values(measurements)
        if not values or any(not math.isfinite(value) or value <= 0 for value in values.values()):
            return None
        oriented = [value if METRICS[self.metric].better >= 0 else 1 / value for value in values.values()]
        return _AGGREGATES[self.aggregate](oriented)

    def violations(self, measurements: Sequence[Measurement]) -> list[float]:
        """For each bound the worst violation over the load points; 0 or less where it is kept."""
        chosen = self._chosen(measurements)
        worst = []
        for bound in self.subject_to:
            values = per_load_point(chosen, bound.metric)
            worst.append(max(map(bound.violation, values.values())) if values else math.inf)
        return worst

    def _chosen(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        return [m for m in measurements if not self.at or m.load_point in self.at]


def per_load_point(measurements: Iterable[Measurement], metric: str) -> dict[str, float] | None:
    """Mean over repeats of a metric at each load point; None when any repeat lacks it."""
    values: dict[str, list[float]] = {}
    for measurement in measurements:
        value = measurement.values.get(metric)
        if value is None:
            return None
        values.setdefault(measurement.load_point, []).append(value)
    return {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items()}


_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "geomean": lambda values: math.exp(math.fsum(map(math.log, values)) / len(values)),
    "mean": lambda values: math.fsum(values) / len(values),
    "min": min,
}
AGGREGATES = tuple(_AGGREGATES)
