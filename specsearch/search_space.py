"""What is searched: parameters, conditions, constraints and the canonical form of a point.

A *point* maps parameter names to values. Its canonical form has no inactive parameter, every value
the engine would fix by itself filled in, and sorted names: two requests for the same thing are equal.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

Value = str | int | float | bool
Point = Mapping[str, Value]

UNSET = "unset"
PLAIN = "none"  # the value of `speculative_algorithm` that means plain decoding
ALGORITHM = "speculative_algorithm"
SPECULATIVE_KNOBS = (ALGORITHM, "draft_model", "num_steps", "eagle_topk", "num_draft_tokens")


def is_speculative_knob(name: str) -> bool:
    """Whether a parameter belongs to speculation and so has no meaning in plain decoding."""
    return name in SPECULATIVE_KNOBS or name.startswith("speculative_")


def is_plain(point: Point) -> bool:
    """Whether the point is plain decoding."""
    return point.get(ALGORITHM, PLAIN) == PLAIN


def plain_of(point: Point) -> dict[str, Value]:
    """The matched plain point: the same non-speculative knobs without speculation."""
    return {ALGORITHM: PLAIN} | {name: value for name, value in point.items() if not is_speculative_knob(name)}


def point_key(point: Point) -> str:
    """One text per canonical point; equal points have equal keys."""
    return json.dumps(dict(sorted(point.items())), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ChoiceParameter:
    """One of the listed values."""

    name: str
    values: tuple[Value, ...]
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def all_values(self) -> Sequence[Value]:
        return self.values

    def admits(self, value: Value) -> bool:
        return any(same_value(value, allowed) for allowed in self.values)

    def describe(self) -> str:
        return "one of " + ", ".join(map(str, self.values))


@dataclass(frozen=True, slots=True)
class IntParameter:
    """An integer from `low` to `high`, both included; `log` asks samplers to think in ratios."""

    name: str
    low: int
    high: int
    step: int = 1
    log: bool = False
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def all_values(self) -> Sequence[Value]:
        return range(self.low, self.high + 1, self.step)

    def admits(self, value: Value) -> bool:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def describe(self) -> str:
        return f"an integer from {self.low} to {self.high}" + (f" in steps of {self.step}" if self.step > 1 else "")


Parameter = ChoiceParameter | IntParameter


def same_value(left: Value, right: Value) -> bool:
    """Equality that tells True from 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


_ALLOWED_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.Pow, ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List, ast.Attribute,
)  # fmt: skip
_ALLOWED = "comparisons, and, or, not, in, arithmetic"
_LONGEST_EXPRESSION, _LARGEST_POWER = 500, 4


@dataclass(frozen=True)
class Constraint:
    """A condition over parameters, such as `num_draft_tokens <= 32 or eagle_topk > 1`.

    Raises ValueError with a sentence when the text is not such an expression. Environment variables
    are written `env.NAME`. A constraint that names an inactive parameter holds.
    """

    source: str

    def __post_init__(self) -> None:
        self._tree  # noqa: B018 - a constraint that cannot be read must not exist

    @cached_property
    def _tree(self) -> ast.Expression:
        if len(self.source) > _LONGEST_EXPRESSION:
            raise ValueError(f"longer than {_LONGEST_EXPRESSION} characters")
        try:
            tree = ast.parse(self.source.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot be read{_where(self.source.strip(), error)}; allowed are {_ALLOWED}") from None
        for node in ast.walk(tree):
            if not isinstance(node, _ALLOWED_NODES) or (isinstance(node, ast.Attribute) and not _is_env(node)):
                raise ValueError(f"{type(node).__name__} is not allowed; use comparisons, and/or/not and arithmetic")
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_small_power(node):
                raise ValueError(f"** takes a knob and a constant from 0 to {_LARGEST_POWER}, such as eagle_topk**2")
        return tree

    @cached_property
    def names(self) -> frozenset[str]:
        """The parameters it speaks of."""
        return frozenset(_names(self._tree.body))

    def holds(self, point: Point) -> bool:
        """Whether the point obeys it; True where it names a parameter that the point does not have."""
        if not self.names <= point.keys():
            return True
        try:
            return bool(_evaluate(self._tree.body, point))
        except (TypeError, ArithmeticError):
            return False


def _where(source: str, error: Exception) -> str:
    """The place at which Python stopped reading an expression: the word or the signs around it; empty when unknown."""
    if not isinstance(error, SyntaxError) or error.lineno != 1 or error.offset is None:
        return ""
    runs = re.finditer(r"[\w.]+|[^\w\s()\[\]'\"]+|\S", source)  # "8or" is one run and so is "||"
    found = next((run[0] for run in runs if run.start() < error.offset <= run.end()), None)
    return f" at '{found}'" if found else " to its end"


def _is_small_power(node: ast.BinOp) -> bool:
    """A power whose size is bounded: of a knob, not of another expression, with a small exponent."""
    exponent = node.right.value if isinstance(node.right, ast.Constant) else None
    return isinstance(node.left, ast.Name) and exponent in range(_LARGEST_POWER + 1)


def _is_env(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "env"


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield f"env.{node.attr}"
    elif isinstance(node, ast.Name):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


_OPERATORS: Mapping[type, Callable[..., object]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Not: lambda a: not a,
    ast.USub: lambda a: -a,
}


def _evaluate(node: ast.expr, point: Point) -> object:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return point[node.id]
        case ast.Attribute():
            return point[f"env.{node.attr}"]
        case ast.Tuple() | ast.List():
            return [_evaluate(element, point) for element in node.elts]
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_evaluate(node.operand, point))
        case ast.BinOp():
            left, right = _evaluate(node.left, point), _evaluate(node.right, point)
            if isinstance(left, str | list) or isinstance(right, str | list):
                raise TypeError("arithmetic on text or lists")
            return _OPERATORS[type(node.op)](left, right)
        case ast.BoolOp():
            parts = (bool(_evaluate(value, point)) for value in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        case ast.Compare():
            left = _evaluate(node.left, point)
            for operator, comparator in zip(node.ops, node.comparators, strict=True):
                right = _evaluate(comparator, point)
                if not _OPERATORS[type(operator)](left, right):
                    return False
                left = right
            return True
    raise ValueError(f"{type(node).__name__} is not allowed")


class Rules(Protocol):
    """What an engine knows about points: what it would fix by itself and what it would refuse."""

    def derived(self, name: str, partial: Point) -> Value | None:
        """The value the engine gives this parameter whatever is asked, or None where it is free."""

    def default(self, name: str) -> Value | None:
        """The value the engine uses when the parameter is left out, or None where that is not known."""

    def problems(self, point: Point) -> Sequence[str]:
        """Why the engine could not run this canonical point; empty when it can."""

    def refusal(self, point: Point) -> str:
        """The reason, as one word, of a point that has problems."""
        return "infeasible_params"

    def settled_by(self, effective: Mapping[str, str]) -> "Rules":
        """The same rules knowing what the baseline resolved to, which later trials are pinned to."""
        return self

    def pins(self, point: Point) -> dict[str, Value]:
        """What a trial at this point is given beyond it so that it differs from the baseline in nothing else."""
        return {}

    def pinnable(self) -> Sequence[str]:
        """The names of all that `pins` may hold, known before the baseline has run."""
        return ()


class NoRules(Rules):
    """An engine that accepts everything."""

    def derived(self, name: str, partial: Point) -> Value | None:
        return None

    def default(self, name: str) -> Value | None:
        return None

    def problems(self, point: Point) -> Sequence[str]:
        return ()


@dataclass(frozen=True)
class SearchSpace:
    """Parameters in an order in which every condition looks back, constraints and the engine's rules."""

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    rules: Rules = field(default_factory=NoRules, compare=False)

    @cached_property
    def by_name(self) -> Mapping[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def ordered(self) -> tuple[Parameter, ...]:
        """Parents before the parameters that depend on them; a cycle raises ValueError."""
        done: list[Parameter] = []
        waiting = sorted(self.parameters, key=lambda parameter: _ORDER.get(parameter.name, len(_ORDER)))
        while waiting:
            names = {parameter.name for parameter in waiting}
            ready = [parameter for parameter in waiting if not names & parameter.when.keys()]
            if not ready:
                raise ValueError("conditions go in a circle: " + ", ".join(sorted(names)))
            done.append(ready[0])
            waiting.remove(ready[0])
        return tuple(done)

    def is_active(self, parameter: Parameter, partial: Point) -> bool:
        """Whether the conditions of a parameter hold; plain decoding has no speculative knob."""
        if parameter.name != ALGORITHM and is_speculative_knob(parameter.name) and partial.get(ALGORITHM) == PLAIN:
            return False
        return all(
            name in partial and any(same_value(partial[name], value) for value in values)
            for name, values in parameter.when.items()
        )

    def walk(self, choose: Callable[[Parameter], Value]) -> dict[str, Value]:
        """Build a canonical point: `choose` is asked for each parameter that is active and free."""
        point: dict[str, Value] = {}
        for parameter in self.ordered:
            if not self.is_active(parameter, point):
                continue
            derived = self.rules.derived(parameter.name, point)
            point[parameter.name] = choose(parameter) if derived is None else derived
        return dict(sorted(point.items()))

    def canonical(self, point: Point) -> dict[str, Value]:
        """The canonical form of a point given by hand; parameters it leaves out take the engine's default."""
        return self.walk(lambda parameter: point.get(parameter.name, self.default_of(parameter)))

    def default_of(self, parameter: Parameter) -> Value:
        """The engine's default where the space admits it, else `unset` where it is admitted, else the first value."""
        default = self.rules.default(parameter.name)
        if default is not None and parameter.admits(default):
            return default
        if parameter.admits(UNSET) or (default is None and not is_speculative_knob(parameter.name)):
            return UNSET
        return parameter.all_values()[0]

    def start_baseline(self, overrides: Point) -> dict[str, Value]:
        """Plain decoding with the engine's defaults, but for what the search-space file says of the baseline."""
        plain = self.walk(lambda p: PLAIN if p.name == ALGORITHM else overrides.get(p.name, self.default_of(p)))
        return dict(sorted((plain_of(plain) if ALGORITHM in self.by_name else plain).items()))

    def problems(self, point: Point) -> list[str]:
        """Everything wrong with a canonical point; empty when it can be launched.

        Plain decoding can always be: it is the baseline, whether or not the space searches it.
        """
        found = []
        for name, value in point.items():
            if name == ALGORITHM and value == PLAIN:
                continue
            parameter = self.by_name.get(name)
            derived = self.rules.derived(name, point)
            if parameter and value != UNSET and derived is None and not parameter.admits(value):
                found.append(f"{name} {value} is not {parameter.describe()}")
        found += [f"violates {constraint.source}" for constraint in self.constraints if not constraint.holds(point)]
        found += self.rules.problems(point)
        return found

    def raw_size(self) -> int:
        """How many combinations the parameters have when every condition is ignored."""
        return math.prod(len(parameter.all_values()) for parameter in self.parameters)

    def valid_points(self, limit: int) -> list[dict[str, Value]] | None:
        """Every distinct valid canonical point, or None when more than `limit` combinations would be visited."""
        if limit not in self._listed:
            self._listed[limit] = self._list(limit)
        return self._listed[limit]

    @cached_property
    def _listed(self) -> dict[int, list[dict[str, Value]] | None]:
        return {}

    def _list(self, limit: int) -> list[dict[str, Value]] | None:
        found: dict[str, dict[str, Value]] = {}
        visited = 0
        pending: list[tuple[Value, ...]] = [()]
        while pending:
            visited += 1
            if visited > limit:
                return None
            path = pending.pop()
            chosen = iter(path)
            try:
                point = self.walk(lambda parameter, chosen=chosen: _next_or_ask(chosen, parameter))  # type: ignore[misc]
            except _Ask as ask:
                pending += [(*path, value) for value in reversed(ask.parameter.all_values())]
                continue
            if not self.problems(point):
                found[point_key(point)] = point
        return list(found.values())


class _Ask(Exception):
    """The walk needs a value for one more parameter."""

    def __init__(self, parameter: Parameter) -> None:
        super().__init__(parameter.name)
        self.parameter = parameter


def _next_or_ask(chosen: Iterator[Value], parameter: Parameter) -> Value:
    for value in chosen:
        return value
    raise _Ask(parameter)


# Speculation first, then the switch for graphs: the order in which an engine's rules look back.
_FIRST = (ALGORITHM, "speculative_adaptive", "speculative_adaptive_config", *SPECULATIVE_KNOBS[1:], "cuda_graph")
_ORDER = {name: position for position, name in enumerate(_FIRST)}
