"""The sections `baseline` and `seed_points`: points given by hand."""

import re
from collections.abc import Iterator, Sequence

from specsearch._search_space_file import names
from specsearch._search_space_file.document import Document, Place, did_you_mean, shown
from specsearch._search_space_file.space import Known, is_speculative_value, read_setting, speculative_values
from specsearch.search_space import ALGORITHM, UNSET, Parameter, Point, Value, is_plain, is_speculative_knob
from specsearch.workload import LoadPoint

_QUADRUPLE = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*,\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")


def read_baseline(document: Document, known: Known) -> Point:
    """Settings of the start baseline; a speculative knob among them is a mistake."""
    place: Place = ("baseline",)
    given = document.section(place)
    if given is None and place not in document.lines:
        return {}
    if not isinstance(given, dict):
        document.problem(place, f"expected a mapping of knobs to values, saw {shown(given)}")
        return {}
    point = dict(_settings(document, place, given, known))
    for name, value in point.items():
        if is_speculative_knob(name) and (name != ALGORITHM or is_speculative_value(value)):
            document.problem((*place, name), f"{name} has no place here: the baseline is plain decoding")
    return point


def read_seed_points(document: Document, known: Known, load_points: Sequence[LoadPoint]) -> tuple[Point, ...]:
    """The points that are tried first: mappings, or quadruples of batch, steps, top-k and draft tokens."""
    place: Place = ("seed_points",)
    given = document.section(place)
    if given is None and place not in document.lines:
        return ()
    if isinstance(given, str):  # a pasted block, one quadruple in each line
        texts = [(line, text) for line, text in enumerate(given.splitlines(), 1) if text.strip()]
        points = [_quadruple(document, (*place, f"line {n}"), text, known, load_points) for n, text in texts]
    elif isinstance(given, list):
        points = [_seed(document, (*place, index), known, load_points) for index in range(len(given))]
    else:
        document.problem(place, f"expected a list of points, saw {shown(given)}")
        return ()
    return tuple(point for point in points if point is not None)


def _seed(document: Document, place: Place, known: Known, load_points: Sequence[LoadPoint]) -> Point | None:
    given = document.section(place)
    if isinstance(given, str):
        return _quadruple(document, place, given, known, load_points)
    if not isinstance(given, dict) or not given:
        document.problem(
            place, f"expected a mapping of knobs to values or 'batch,steps,topk,draft', saw {shown(given)}"
        )
        return None
    point = dict(_settings(document, place, given, known))
    if ALGORITHM not in point and any(map(is_speculative_knob, point)):
        algorithm = _the_algorithm(document, place, known)
        return {ALGORITHM: algorithm, **point} if algorithm else None
    return point


def _settings(document: Document, place: Place, given: dict[str, object], known: Known) -> Iterator[tuple[str, Value]]:
    seen: set[str] = set()
    read: dict[str, Value] = {}
    for written in given:
        name, inner = names.canonical(written), (*place, written)
        if name in names.NEGATIONS:
            document.problem(inner, f"write {names.NEGATIONS[name]}: true or false")
        elif name not in known.parameters:
            known.note_missing(document, inner, name)
        elif name in seen:
            document.problem(inner, f"{name} is given twice in this point; keep one")
        else:
            value = read_setting(document, inner, name, known.parameters[name])
            if value is not None:
                read[name] = value
        seen.add(name)
    for written in given:
        name, inner = names.canonical(written), (*place, written)
        parameter = known.parameters.get(name)
        if name in read and parameter is not None:
            _check_admitted(document, inner, parameter, read)
    yield from read.items()


def _check_admitted(document: Document, place: Place, parameter: Parameter, point: Point) -> None:
    value = point[parameter.name]
    left_out = value == UNSET and not is_speculative_knob(parameter.name)
    if not (parameter.admits(value) or left_out or _follows_by_itself(parameter.name, point)):
        near = did_you_mean(value, map(str, parameter.all_values()[:100])) if isinstance(value, str) else ""
        document.problem(
            place, f"{shown(value)} is outside the space: {parameter.name} is {parameter.describe()}{near}"
        )


def _follows_by_itself(name: str, point: Point) -> bool:
    """With top-k 1 the server verifies num_steps + 1 tokens, whatever the space says of draft tokens."""
    steps = point.get("num_steps")
    return (
        name == "num_draft_tokens"
        and point.get("eagle_topk") == 1
        and isinstance(steps, int)
        and point[name] == steps + 1
    )


def _the_algorithm(document: Document, place: Place, known: Known) -> str | None:
    """The one speculative algorithm of the space; noted when there is no such one."""
    if known.parameters.get(ALGORITHM, ...) is None:
        return None
    found = speculative_values(known)
    if len(found) == 1:
        return found[0]
    several = f"several algorithms ({', '.join(found)})" if found else "no speculative algorithm"
    document.problem(place, f"does not say its algorithm, and the space has {several}; write the point as a mapping")
    return None


def _quadruple(
    document: Document, place: Place, text: str, known: Known, load_points: Sequence[LoadPoint]
) -> Point | None:
    """A point from `batch,steps,topk,draft`; None for the baseline `1,0,0,0`, which is no trial of its own."""
    match = _QUADRUPLE.fullmatch(text)
    if not match:
        document.problem(place, f"expected 'batch,steps,topk,draft' such as '1,3,4,16', saw {shown(text)}")
        return None
    batch, *triple = map(int, match.groups())
    concurrencies = {1, *(load_point.concurrency for load_point in load_points)}
    if batch not in concurrencies:
        allowed = ", ".join(map(str, sorted(concurrencies)))
        document.problem(
            place,
            f"batch {batch} is ambiguous: no load point has that concurrency (there are {allowed}); "
            "a largest graph batch is written as cuda_graph_max_bs",
        )
        return None
    if triple == [0, 0, 0]:
        return None
    if 0 in triple:
        document.problem(place, f"{shown(text)} mixes zeros with numbers; 0,0,0 is plain decoding")
        return None
    return _from_triple(document, place, triple, known)


def _from_triple(document: Document, place: Place, triple: Sequence[int], known: Known) -> Point | None:
    algorithm = _the_algorithm(document, place, known)
    if algorithm is None:
        return None
    point: dict[str, Value] = {ALGORITHM: algorithm}
    for name, value in zip(("num_steps", "eagle_topk", "num_draft_tokens"), triple, strict=True):
        if name not in known.parameters:
            known.note_missing(document, (*place, name), name)
        point[name] = value
    for name in list(point):
        parameter = known.parameters.get(name)
        if parameter is not None:
            _check_admitted(document, (*place, name), parameter, point)
    steps, topk, draft = triple
    if topk > 1 and draft < steps + 1:
        document.warnings.append(
            f"seed point {steps}/{topk}/{draft}: {draft} draft tokens cannot use the depth of {steps} steps; "
            f"it takes {steps + 1} or more"
        )
    return None if document.has_problem(place) or is_plain(point) else point
