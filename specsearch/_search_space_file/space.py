"""The sections `parameters` and `constraints` as a SearchSpace, with the pinned speculative knobs in it."""

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from specsearch._search_space_file import names
from specsearch._search_space_file.document import Document, Place, did_you_mean, shown
from specsearch._search_space_file.models import PARAMETER, ChoiceSection, IntSection, ParameterSection, read_tagged
from specsearch._search_space_file.values import one_type, read_value
from specsearch.search_space import (
    ALGORITHM,
    UNSET,
    ChoiceParameter,
    Constraint,
    IntParameter,
    Parameter,
    SearchSpace,
    Value,
    same_value,
)

MOST_VALUES = 4096
MOST_PARAMETERS = 100
_SMALL = 5_000  # combinations that are tried to find a constraint no point can obey
_GUESSES = 20  # random points that are tried before all of them


@dataclass
class Pinned:
    """What `engine` holds fixed: names of settings → their place, and the speculative ones' values."""

    places: dict[str, Place] = field(default_factory=dict)
    speculative: dict[str, Value | None] = field(default_factory=dict)  # None: written wrongly


@dataclass
class Known:
    """The parameters of the file by their one name; None for one that is written wrongly."""

    parameters: dict[str, Parameter | None] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    pinned: Pinned = field(default_factory=Pinned)

    def note_missing(self, document: Document, place: Place, name: str, before: str = "") -> None:
        """Say that a name is not searched; nothing where no parameter could be read, which is said already."""
        if name in self.pinned.places:
            document.problem(place, f"{before}is pinned in the engine section and not searched")
        elif self.parameters:
            document.problem(place, before + names.unknown(name, self.parameters))


def read_parameters(document: Document, pinned: Pinned, *, odd_nccl: bool) -> Known:
    """Every parameter with its values and conditions; mistakes are noted in the document."""
    known = Known(pinned=pinned)
    sections: dict[str, ParameterSection] = {}
    for written in _given_parameters(document):
        place = ("parameters", written)
        section = None if _is_no_list(document, place) else read_tagged(PARAMETER, document, place)
        meant = names.slip(written)
        name = names.canonical(meant or written)
        problem = names.name_problem(written) if meant else _name_problem(name, known)
        if problem:
            document.problem(place, problem)
        if name in known.places:
            continue
        known.places[name] = place
        known.parameters[name] = None
        if section and not problem:
            sections[name] = section
            known.parameters[name] = _without_conditions(document, place, name, section, odd_nccl=odd_nccl)
    _add_pinned(known)
    for name, section in sections.items():
        _add_conditions(document, known, name, section)
    return known


def _given_parameters(document: Document) -> list[str]:
    place: Place = ("parameters",)
    given = document.section(place)
    if isinstance(given, dict) and 0 < len(given) <= MOST_PARAMETERS:
        return list(given)
    if isinstance(given, dict) and given:
        document.problem(place, f"{len(given)} parameters; {MOST_PARAMETERS} are the most")
    else:
        seen = "is missing" if place not in document.lines else f"expected parameters, saw {shown(given)}"
        document.problem(place, f"{seen}; for instance num_steps: {{type: int, low: 1, high: 8}}")
    return []


def _is_no_list(document: Document, place: Place) -> bool:
    """Whether `values` of a parameter are written without brackets, which is then noted.

    In `{type: choice, values: 1, 2, 4}` YAML reads `2` and `4` as further keys.
    """
    given, values = document.section(place), (*place, "values")
    if not isinstance(given, dict) or values not in document.raw or given["values"] is None:
        return False
    strays = [key for key in given if given[key] is None and key not in ChoiceSection.model_fields]
    words = [word.strip() for word in (*document.raw[values].split(","), *strays)]
    document.problem(values, f"write a list: [{', '.join(filter(None, words))}]")
    return True


def _name_problem(name: str, known: Known) -> str | None:
    if name in names.NEGATIONS:
        return f"write {names.NEGATIONS[name]}: {{type: choice, values: [true, false]}}"
    if name in known.places:
        return f"{known.places[name][-1]} is the same knob; keep one"
    if name in known.pinned.places:
        return "is both pinned in the engine section and searched; keep one"
    return names.name_problem(name)


def _add_pinned(known: Known) -> None:
    """A pinned speculative knob becomes a parameter of one value, so that plain decoding can do without it."""
    for name, value in known.pinned.speculative.items():
        known.places.setdefault(name, known.pinned.places[name])
        known.parameters.setdefault(name, None if value is None else ChoiceParameter(name, (value,)))


def _without_conditions(
    document: Document, place: Place, name: str, section: ParameterSection, *, odd_nccl: bool
) -> Parameter | None:
    if isinstance(section, IntSection):
        parameter: Parameter | None = _integers(document, place, name, section)
    else:
        parameter = _choices(document, place, name, section)
    if parameter and name in names.POWERS_OF_TWO and not odd_nccl:
        inner = "values" if isinstance(section, ChoiceSection) else "low"
        check_power_of_two(document, (*place, inner), name, parameter.all_values())
    return parameter


def _integers(document: Document, place: Place, name: str, section: IntSection) -> IntParameter | None:
    low, high, step = section.low, section.high, section.step
    kind = names.KNOBS.get(name, int)
    problems: list[tuple[str, str]] = []
    if kind is not int:
        problems.append(("type", f"{name} is no integer; use type: choice"))
    if low > high:
        problems.append(("low", f"low {low} is above high {high}"))
    elif (high - low) // step >= MOST_VALUES:
        problems.append(("high", f"{(high - low) // step + 1} values; at most {MOST_VALUES} are allowed, use step"))
    if low < names.SMALLEST.get(name, low):
        problems.append(("low", f"{name} is at least {names.SMALLEST[name]}, saw {low}"))
    if section.log and low < 1:
        problems.append(("log", f"log needs low to be at least 1, saw {low}"))
    if section.log and step > 1:
        problems.append(("step", "log and step cannot be combined"))
    for key, text in problems:
        document.problem((*place, key), text)
    last = low + (high - low) // step * step
    return None if problems else IntParameter(name, low, last, step, section.log)


def _choices(document: Document, place: Place, name: str, section: ChoiceSection) -> ChoiceParameter | None:
    places = [(*place, "values", index) for index in range(len(section.values))]
    values = [read_value(document, item, name) for item in places]
    known = [value for value in values if value is not None]
    for index, value in enumerate(values):
        if value is not None and any(same_value(value, other) for other in values[:index] if other is not None):
            document.problem(places[index], f"{shown(value)} is listed twice")
    typed = one_type(known)
    if typed is None:
        document.problem((*place, "values"), "values of several types; write texts in quotes or keep to one type")
    if typed is None or any(document.has_problem(item) for item in places):
        return None
    return ChoiceParameter(name, tuple(typed))


def check_power_of_two(document: Document, place: Place, name: str, values: Sequence[Value]) -> None:
    """Note NCCL sizes that may give wrong sums or hang."""
    odd = [value for value in values if value != UNSET and not _is_power_of_two(str(value))]
    if odd:
        document.problem(
            place,
            f"{name.removeprefix(names.ENV)} {odd[0]} is no power of two: NCCL has returned wrong sums and hung at "
            "such values; use powers of two, or set engine.allow_odd_nccl_sizes: true",
        )
        return
    unknown = [str(value) for value in values if value != UNSET and str(value) not in names.THREAD_COUNTS]
    if name == f"{names.ENV}NCCL_NTHREADS" and unknown:
        document.problem(
            place,
            f"NCCL_NTHREADS {unknown[0]}: NCCL takes {', '.join(names.THREAD_COUNTS)}; use one of them, "
            "or set engine.allow_odd_nccl_sizes: true",
        )


def _is_power_of_two(text: str) -> bool:
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0
    return number > 0 and number & (number - 1) == 0


def _add_conditions(document: Document, known: Known, name: str, section: ParameterSection) -> None:
    place = (*known.places[name], "when")
    when: dict[str, tuple[Value, ...]] = {}
    for written in section.when:
        parent, inner = names.canonical(written), (*place, written)
        if parent not in known.parameters:
            known.note_missing(document, inner, parent)
        else:
            when[parent] = _condition_values(document, inner, parent, known.parameters[parent])
    parameter = known.parameters[name]
    if parameter is not None:
        known.parameters[name] = replace(parameter, when=when)


def _condition_values(document: Document, place: Place, parent: str, parameter: Parameter | None) -> tuple[Value, ...]:
    given = document.section(place)
    items = [(*place, index) for index in range(len(given))] if isinstance(given, list) else [place]
    if not items:
        document.problem(place, f"names no value of {parent}; remove it or give some")
    values = []
    for item in items:
        value = read_setting(document, item, parent, parameter)
        if value is None or parameter is None:
            continue
        if parameter.admits(value):
            values.append(value)
        else:
            near = did_you_mean(value, map(str, parameter.all_values()[:100]))
            document.problem(item, f"{parent} is never {shown(value)}; it is {parameter.describe()}{near}")
    return tuple(values)


def read_setting(document: Document, place: Place, name: str, parameter: Parameter | None) -> Value | None:
    """A value of a parameter as it is written in a condition or a point; None when it cannot be read."""
    value = read_value(document, place, name)
    if isinstance(value, str) and isinstance(parameter, IntParameter) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)  # an environment variable that is searched as an integer
    if isinstance(value, int) and not isinstance(value, bool) and isinstance(parameter, ChoiceParameter):
        fractions = any(isinstance(allowed, float) for allowed in parameter.values)
        return float(value) if fractions else value
    return value


def read_space(document: Document, known: Known) -> SearchSpace | None:
    """The whole space; None while something in it is wrong."""
    constraints = _constraints(document, known)
    parameters = [parameter for parameter in known.parameters.values() if parameter is not None]
    if len(parameters) < len(known.parameters) or document.has_problem(("parameters",)):
        return None
    space = SearchSpace(tuple(parameters), tuple(constraints))
    try:
        space.ordered  # noqa: B018 - raises when conditions go in a circle
    except ValueError as error:
        document.problem(("parameters",), str(error))
        return None
    if constraints and not document.has_problem(("constraints",)) and _is_empty(space):
        document.problem(("constraints",), "together they leave no point of the space")
    return space


def _is_empty(space: SearchSpace) -> bool:
    """Whether no point obeys every constraint; False when the space is too large to tell."""
    chance = Random(0)
    guesses = (space.walk(lambda parameter: chance.choice(parameter.all_values())) for _ in range(_GUESSES))
    return all(map(space.problems, guesses)) and space.valid_points(_SMALL) == []


def _constraints(document: Document, known: Known) -> list[Constraint]:
    given = document.section(("constraints",))
    place: Place = ("constraints",)
    if given is None and place not in document.lines:
        return []
    if not isinstance(given, list):
        document.problem(place, f"expected a list of expressions, saw {shown(given)}")
        return []
    found = (_constraint(document, (*place, index), known) for index in range(len(given)))
    return [constraint for constraint in found if constraint is not None]


def _constraint(document: Document, place: Place, known: Known) -> Constraint | None:
    given = document.section(place)
    if not isinstance(given, str):
        document.problem(place, f"expected an expression such as 'num_draft_tokens <= 32', saw {shown(given)}")
        return None
    text = re.sub(r"(?<![\w.'\"])[a-z_]+\b", lambda match: names.canonical(match[0]), given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # Python reads `8or x`, but says so on stderr
            constraint = Constraint(text)
    except ValueError as error:
        document.problem(place, f"{error}")
        return None
    for name in sorted(constraint.names - known.parameters.keys()):
        quoted = any(
            name == value for parameter in known.parameters.values() if parameter for value in _texts(parameter)
        )
        if quoted:
            document.problem(place, f"{name}: write a value in quotes")
        else:
            known.note_missing(document, place, name, f"{name}: ")
    if not constraint.names:
        document.problem(place, "names no parameter")
    if not document.has_problem(place) and _never_holds(constraint, known):
        about = ", ".join(sorted(constraint.names))
        document.problem(place, f"no value of {about} can obey it; note that values of env.* are texts, in quotes")
    return None if document.has_problem(place) else constraint


def _texts(parameter: Parameter) -> Iterator[str]:
    if isinstance(parameter, ChoiceParameter):
        yield from (value for value in parameter.values if isinstance(value, str))


def _never_holds(constraint: Constraint, known: Known) -> bool:
    """Whether no combination of its parameters' values obeys a constraint; False when there are too many to try."""
    named = sorted(constraint.names)
    values = [_possible(name, known.parameters) for name in named]
    combinations = itertools.islice(itertools.product(*values), _SMALL + 1)
    for number, combination in enumerate(combinations):
        if number == _SMALL or constraint.holds(dict(zip(named, combination, strict=True))):
            return False
    return all(values)


def _possible(name: str, parameters: Mapping[str, Parameter | None]) -> Sequence[Value]:
    parameter = parameters.get(name)
    if parameter is None:
        return ()
    steps, topk = parameters.get("num_steps"), parameters.get("eagle_topk")
    if name == "num_draft_tokens" and steps and topk and topk.admits(1):  # then it follows from num_steps
        return [*parameter.all_values(), *(int(value) + 1 for value in steps.all_values())]
    return parameter.all_values()


def is_speculative_value(value: Value) -> bool:
    """Whether a value of the algorithm is not plain decoding."""
    return value not in ("none", UNSET)


def speculative_values(known: Known) -> list[str]:
    """The algorithms of the space without plain decoding."""
    parameter = known.parameters.get(ALGORITHM)
    return [str(value) for value in parameter.all_values() if is_speculative_value(value)] if parameter else []
