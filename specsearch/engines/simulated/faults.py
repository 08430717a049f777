"""Faults on request: what can go wrong, in which launches, and how badly.

A fault is written `{kind: oom_graph, when: {num_draft_tokens: [16, 32]}, probability: 0.5}`. `when` names knobs as
search spaces do and lists the values under which it strikes; `unset` stands for a knob that is not given. Without
`when` it strikes every launch. Further keys are the options of the kind.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NEVER = "never"
_UNSET = "unset"
_COMMON = ("kind", "when", "probability")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a fault does, and its options with what they are when left out."""

    meaning: str
    options: Mapping[str, float | str | bool] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # options that are one of these words
    required: tuple[str, ...] = ()  # options that cannot be left out


KINDS: Mapping[str, Kind] = {
    "oom_load": Kind("a GPU runs out of memory while weights are loaded"),
    "oom_kv": Kind("the static fraction leaves no room for a KV cache"),
    "oom_graph": Kind("a GPU runs out of memory while graphs are captured"),
    "graphs_refused": Kind("graph capture fails for another reason than memory"),
    "graphs_ignored": Kind("graphs are captured and never used"),
    "draft_graph_missing": Kind("no graph of the drafter's own passes is captured, as with a backend that has none"),
    "dies_loading": Kind("the server ends while it loads", {"exit_code": 1, "message": "RuntimeError: bad shard"}),
    "never_ready": Kind(
        "the server falls silent while it starts: in its first collective, or while it loads",
        {"where": "collective"},
        {"where": ("collective", "weights")},
    ),
    "slow_start": Kind("loading takes longer, with a line now and then", {"seconds": 10.0, "interval_s": 1.0}),
    "log_flood": Kind("the log gets this many useless lines while loading", {"lines": 20000}),
    "port_in_use_once": Kind(
        "an internal port is taken on the first launch, which makes the state file",
        {"state_file": ""},
        required=("state_file",),
    ),
    "port_taken": Kind("the HTTP port is taken: the server stays alive and never answers"),
    "dies_under_load": Kind("the server crashes on the request after so many", {"after_requests": 1}),
    "child_dies": Kind(
        "a scheduler aborts so long after so many requests; the server stays and generates no more",
        {"after_requests": 0, "after_s": 0.0},
    ),
    "health_but_no_generation": Kind("after so many requests nothing is generated any more", {"after_requests": 0}),
    "nothing_accepted": Kind("the drafter is fed nonsense: no draft is ever accepted"),
    "degenerate_output": Kind("every reply repeats one word"),
    "request_failures": Kind(
        "this share of requests ends badly: aborted, with an error in the stream, or short",
        {"share": 0.2, "how": "abort"},
        {"how": ("abort", "error", "short")},
    ),
    "warm_cache": Kind("flushing the cache is answered and not done"),
    "odd_log": Kind("decode lines are written in a way that nobody knows"),
    "variable_forced": Kind(
        "the ranks run with this variable at this value, whatever they were given",
        {"name": "NCCL_NVLS_ENABLE", "value": "1"},
    ),
    "wrong_identity": Kind("the server describes itself as somebody else's"),
    "bad_server_info": Kind(
        "after so many requests the server's description is not to be had: HTML, 404 or without internal states",
        {"variant": "html", "after_requests": 0},
        {"variant": ("html", "missing", "no_internal_states")},
    ),
    "ignores_sigterm": Kind("nobody obeys SIGTERM; schedulers may leave for another session", {"new_session": True}),
    "memory_kept": Kind("GPU memory stays taken so long after the end, `never`: for good", {"release_after_s": NEVER}),
    "writes_shm": Kind("so many files are left in /dev/shm", {"files": 2}),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that strikes this launch."""

    kind: str
    options: Mapping[str, float | str | bool]

    def number(self, option: str) -> float:
        """A numeric option; `never` is infinite."""
        value = self.options[option]
        return float("inf") if value == NEVER else float(value)

    def text(self, option: str) -> str:
        return str(self.options[option])


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one launch."""

    active: Mapping[str, Fault] = field(default_factory=dict)

    @classmethod
    def of_launch(
        cls, requested: Sequence[Mapping[str, object]], knobs: Mapping[str, str], rng: random.Random
    ) -> "Faults":
        """Those that strike a launch with these knobs; of two of one kind the first."""
        active: dict[str, Fault] = {}
        for fault in requested:
            kind = str(fault["kind"])
            chance = fault.get("probability", 1.0)
            struck = (
                isinstance(chance, int | float) and rng.random() < chance
            )  # drawn always: order decides, not `when`
            if struck and kind not in active and _applies(fault.get("when", {}), knobs):
                given = {name: value for name, value in fault.items() if name not in _COMMON}
                active[kind] = Fault(kind, {**KINDS[kind].options, **given})  # type: ignore[dict-item]
        return cls(active)

    def get(self, kind: str) -> Fault | None:
        """The fault of that kind if it strikes this launch."""
        return self.active.get(kind)

    def __contains__(self, kind: str) -> bool:
        return kind in self.active


def _applies(when: object, knobs: Mapping[str, str]) -> bool:
    conditions = when if isinstance(when, Mapping) else {}
    return all(
        knobs.get(name, _UNSET) in [str(value).lower() for value in values] for name, values in conditions.items()
    )


def fault_problems(faults: Sequence[Mapping[str, object]]) -> list[str]:
    """Everything wrong with requested faults, as sentences; empty when they can be simulated."""
    return [
        problem
        for number, fault in enumerate(faults)
        for problem in _problems(f"engine.simulated.faults[{number}]", fault)
    ]


def _problems(where: str, fault: Mapping[str, object]) -> list[str]:
    kind = KINDS.get(str(fault.get("kind")))
    if kind is None:
        return [f"{where}: there is no kind {fault.get('kind')!r}; known are {', '.join(KINDS)}"]
    found = []
    for name in fault.keys() - {*_COMMON, *kind.options}:
        options = ", ".join((*_COMMON[1:], *kind.options))
        found.append(f"{where} ({fault['kind']}): there is no option {name}; it takes {options}")
    probability = fault.get("probability", 1.0)
    if not _is_number(probability) or not 0 <= float(str(probability)) <= 1:
        found.append(f"{where} ({fault['kind']}): probability is {probability!r}, it must be from 0 to 1")
    when = fault.get("when", {})
    if not isinstance(when, Mapping) or not all(isinstance(values, list | tuple) for values in when.values()):
        found.append(f"{where} ({fault['kind']}): when must map knobs to lists of values, it is {when!r}")
    found += [f"{where} ({fault['kind']}): {name} is missing" for name in kind.required if not fault.get(name)]
    given = {name: value for name, value in fault.items() if name in kind.options}
    return found + [
        f"{where} ({fault['kind']}): {p}" for name, value in given.items() if (p := _bad(kind, name, value))
    ]


def _bad(kind: Kind, name: str, value: object) -> str | None:
    default = kind.options[name]
    choices = kind.choices.get(name)
    if choices:
        return None if value in choices else f"{name} is {value!r}, it must be one of {', '.join(choices)}"
    if isinstance(default, bool):
        return None if isinstance(value, bool) else f"{name} is {value!r}, it must be true or false"
    if default == NEVER:
        return None if value == NEVER or _is_number(value) else f"{name} is {value!r}, it must be a number or {NEVER}"
    if isinstance(default, int | float):
        return None if _is_number(value) else f"{name} is {value!r}, it must be a number"
    return None if isinstance(value, str) else f"{name} is {value!r}, it must be text"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
