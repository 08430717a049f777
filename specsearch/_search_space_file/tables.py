"""The field tables of docs/search-spaces.md, from the models that read the files."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specsearch import reserved
from specsearch._search_space_file import models, names
from specsearch._search_space_file.models import Section

_SECTIONS: Mapping[str, type[Section]] = {
    "engine": models.SglangEngineSection,
    "engine, with type: simulated": models.SimulatedEngineSection,
    "engine.simulated": models.SimulatedSection,
    "parameters.NAME, with type: choice": models.ChoiceSection,
    "parameters.NAME, with type: int": models.IntSection,
    "workloads.NAME": models.WorkloadSection,
    "load_points[]": models.LoadPointSection,
    "objective": models.ObjectiveSection,
    "budget": models.BudgetSection,
    "sampler": models.SamplerSection,
    "cluster": models.ClusterSection,
    "limits": models.LimitsSection,
}
_TYPES = {"string": "text", "boolean": "true or false", "object": "mapping", "array": "list", None: "any"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_NO_BOUND = 2**31 - 1


def sections_table() -> str:
    """What may stand at the top of a file."""
    return table(("section", "what it is"), ([f"`{name}`", meaning] for name, meaning in models.SECTIONS.items()))


def fields_table() -> str:
    """Every field of every section: type, default and meaning."""
    rows = (row for section, model in _SECTIONS.items() for row in _rows(section, model))
    return table(("section", "field", "type", "default", "meaning"), rows)


def knobs_table() -> str:
    """The named knobs, what they take and how SGLang spells them."""
    kinds = {bool: "true or false", int: "integer", str: "text"}
    rows = []
    for name, kind in names.KNOBS.items():
        spellings = [alias for alias, knob in names.ALIASES.items() if knob == name]
        smallest = f" ≥ {names.SMALLEST[name]}" if name in names.SMALLEST else ""
        value = "list of batch sizes, small to large" if name in names.LISTS else kinds[kind] + smallest
        rows.append([f"`{name}`", value, ", ".join(f"`{alias}`" for alias in spellings) or "–"])
    return table(("knob", "values", "also written"), rows)


def owned_table() -> str:
    """The flags that no file may set."""
    reasons: dict[str, list[str]] = {}
    for flag, reason in (*reserved.OWNED_FLAGS.items(), *reserved.REFUSED_FLAGS.items()):
        reasons.setdefault(reason, []).append(f"`{flag}`")
    for flag, (allowed, reason) in reserved.ONLY.items():
        values = " or ".join(f"`{json.dumps(value)}`".replace('"', "") for value in allowed)
        reasons.setdefault(reason, []).append(f"`{flag}` other than {values}")
    return table(("flags", "because"), ([", ".join(flags), reason] for reason, flags in reasons.items()))


def _rows(section: str, model: type[Section]) -> Iterator[list[str]]:
    schema = model.model_json_schema()
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] not in ("type", "model")):
        if (
            model is models.SimulatedEngineSection
            and name in models.SglangEngineSection.model_fields
            and name != "model"
        ):
            continue  # the fields it shares with the other engine stand there
        if model is models.SglangEngineSection and name == "type":
            yield _engine_type()
            continue
        wanted = "needed" if name in schema.get("required", ()) else _default(field)
        yield [f"`{section}`", f"`{name}`", _type(field), wanted, field.get("description", "")]


def _engine_type() -> list[str]:
    """The row of the word that tells the two engine sections apart."""
    kinds = [models.SglangEngineSection.model_fields["type"], models.SimulatedEngineSection.model_fields["type"]]
    words = [kind.annotation.__args__[0] for kind in kinds if kind.annotation is not None]
    meanings = [f"`{word}`: {kind.description}" for word, kind in zip(words, kinds, strict=True)]
    return ["`engine`", "`type`", " or ".join(f"`{word}`" for word in words), "needed", "; ".join(meanings)]


def _type(field: Mapping[str, Any]) -> str:
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    kind = kinds[0]
    allowed = kind.get("enum", [kind["const"]] if "const" in kind else [])
    if allowed:
        return " or ".join(f"`{value}`" for value in allowed)
    bounds = [f"{sign} {kind[key]:g}" for key, sign in _BOUNDS.items() if key in kind and kind[key] != _NO_BOUND]
    if "$ref" in kind:
        return "mapping"
    return f"{_TYPES.get(kind.get('type'), str(kind.get('type')))} {', '.join(bounds)}".rstrip()


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value in (None, [], {}):
        return "–"
    seconds = " s" if any(kind.get("type") == "time" for kind in field.get("anyOf", [field])) else ""
    value = ", ".join(value) if isinstance(value, list) else value
    shown = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
    return f"`{shown}{seconds}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
