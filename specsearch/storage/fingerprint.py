"""What has to be equal for two rows to be compared, and what is said when it is not."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from specsearch.config import StudyConfig, to_fingerprint_fields
from specsearch.errors import StorageError
from specsearch.objective import Objective
from specsearch.storage.schema import SCHEMA_VERSION

_LONGEST_SHOWN = 120
_ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What every row of one study carries."""

    study: str
    fingerprint_fields: Mapping[str, str]
    specsearch_version: str
    objective: Objective

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any field."""
        return fingerprint_of(self.fingerprint_fields)


def fingerprint_of(fields: Mapping[str, str]) -> str:
    """Sixteen hex digits that change with any field and not with their order."""
    return hashlib.sha256(json.dumps(sorted(fields.items())).encode()).hexdigest()[:16]


def fingerprint_fields(config: StudyConfig, engine_version: str | None) -> dict[str, str]:
    """Space, engine, model, load points, objective and schema of a study, one readable field for each part.

    Neither the budget nor the sampler is among them: a study may be continued with more trials or another sampler.
    """
    own = {"engine.version": engine_version or "unknown", "schema": SCHEMA_VERSION.partition(".")[0]}
    return dict(sorted((to_fingerprint_fields(config) | own).items()))


def check_fingerprint(
    stored: Mapping[str, Mapping[str, str]], fields: Mapping[str, str], *, extend: bool = False
) -> list[str]:
    """Refuse rows of another study with the fields that differ, each old → new.

    With `extend`, rows that differ only in what is searched or in what is optimised are taken; the sentences that come
    back say what they differ in. `stored` maps fingerprints to their fields.
    """
    taken: list[str] = []
    refused: list[str] = []
    for fingerprint, old in stored.items():
        if dict(old) == dict(fields):
            continue
        obstacles = reuse_obstacles(old, fields) if extend else list(_differences(old, fields))
        if obstacles:
            refused += [f"rows with fingerprint {fingerprint} differ in", *(f"  {line}" for line in obstacles)]
        else:
            taken.append(f"rows with fingerprint {fingerprint} are reused; they differ in")
            taken += [f"  {line}" for line in _differences(old, fields)]
    if refused:
        reusable = not any(reuse_obstacles(old, fields) for old in stored.values())
        advice = "give this study a results folder of its own" + (
            ", or --extend to reuse these rows" if reusable else ""
        )
        raise StorageError("\n".join(["the results folder holds another study:", *refused, advice]))
    return taken


def reuse_obstacles(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Why rows must not be reused by a study with other fields, each as field: old → new; empty when they may.

    A row says the same whatever else is searched, whatever is optimised and wherever the search started; it says
    something else under another engine, model, load point or baseline.
    """
    return [line for line in _differences(old, new) if not _may_differ(line.partition(":")[0])]


def _may_differ(field: str) -> bool:
    return field.startswith("space.") or field in ("objective", "seed_points") or field.endswith("sampler.seed")


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if before != after:
            yield f"{name}: {_shown(before)} → {_shown(after)}"


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
