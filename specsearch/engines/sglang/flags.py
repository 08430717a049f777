"""From knobs to the command line: how each named knob and any other flag is spelled."""

import difflib
from collections.abc import Iterator, Mapping

from specsearch.engines.sglang.version import Profile, spelling
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, Value, is_speculative_knob

ENV = "env."

# Named knobs whose flag has another name in every version.
_RENAMED = {
    "draft_model": "speculative_draft_model_path",
    "num_steps": "speculative_num_steps",
    "eagle_topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens",
}
# Named switches whose flag turns them off.
_NEGATED = {"cuda_graph": "disable_cuda_graph", "custom_all_reduce": "disable_custom_all_reduce"}
_LISTS = ("cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill")  # written "1 2 4"

# Flags that specsearch gives by itself, and why they cannot be knobs.
RESERVED: Mapping[str, str] = {
    "model_path": "it is engine.model",
    "model": "it is engine.model",
    "tp_size": "it is engine.tp_size",
    "tensor_parallel_size": "it is engine.tp_size",
    "host": "servers of trials listen on 127.0.0.1 only",
    "port": "every trial gets a fresh port",
    "weight_version": "it carries the name by which a trial recognises its own server",
    "config": "a second file of arguments would hide what was launched",
    "use_ray": "it would take the GPUs of the trial's own placement group a second time",
}

# Variables that specsearch gives by itself.
RESERVED_ENV: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "it holds the GPUs that the trial has claimed",
    "TMPDIR": "every trial gets a fresh folder, so that what a killed server leaves can be removed",
}


def flag_of(name: str, profile: Profile) -> str:
    """The flag, written with underscores, that carries a knob in this version."""
    by_version = {"cuda_graph_max_bs": profile.graph_max_bs, "cuda_graph_bs": profile.graph_bs}
    return by_version.get(name) or _RENAMED.get(name) or _NEGATED.get(name) or name


def flags_of(settings: Point, profile: Profile) -> dict[str, Value]:
    """Flags, written with underscores, and their values; environment variables are left out.

    A point of plain decoding gets no speculative flag, whatever `settings` hold.
    """
    plain = settings.get(ALGORITHM, PLAIN) in (PLAIN, UNSET)
    flags: dict[str, Value] = {}
    for name, value in settings.items():
        if name.startswith(ENV) or (plain and is_speculative_knob(name)):
            continue
        negate = name in _NEGATED and isinstance(value, bool)
        flags[flag_of(name, profile)] = not value if negate else value
    return flags


def argv_of(flags: Mapping[str, Value]) -> tuple[str, ...]:
    """The command line of flags: true is a bare flag, false and `unset` are none, a list is several words."""
    return tuple(word for name in sorted(flags) for word in _words(name, flags[name]))


def _words(name: str, value: Value) -> Iterator[str]:
    if value is False or value == UNSET:
        return
    yield spelling(name)
    if value is True:
        return
    if isinstance(value, list | tuple):  # pinned arguments may hold lists
        yield from map(str, value)
    elif name in _LISTS:
        yield from str(value).replace(",", " ").split()
    else:
        yield str(value)


def environment_of(settings: Point) -> dict[str, str]:
    """The environment variables among the settings, `unset` ones included as such."""
    return {name.removeprefix(ENV): _text(value) for name, value in sorted(settings.items()) if name.startswith(ENV)}


def _text(value: Value) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def reserved_problem(name: str) -> str | None:
    """Why a flag or a variable must not be a knob or pinned, or None."""
    reason = RESERVED_ENV.get(name.removeprefix(ENV)) if name.startswith(ENV) else RESERVED.get(name)
    if reason:
        return f"{name} is given by specsearch: {reason}"
    knob = next((knob for knob, flag in _RENAMED.items() if flag == name), None)
    return f"{name}: write it as the named knob {knob}" if knob else None


def unknown_problem(name: str, declared: frozenset[str], version: str, profile: Profile) -> str | None:
    """Why the installed SGLang would refuse a knob's flag, with the nearest spelling it has; None when it would not.

    The server accepts any unambiguous beginning of a flag. That is refused too: it breaks with the next version.
    """
    flag = spelling(flag_of(name, profile))
    if flag in declared:
        return None
    longer = sorted(candidate for candidate in declared if candidate.startswith(flag))
    if longer:
        return f"{name}: SGLang {version} has no {flag}, it could mean {' or '.join(longer)}; write one of them out"
    nearest = difflib.get_close_matches(flag, sorted(declared), n=1)
    hint = f"; the nearest it has is {nearest[0]}" if nearest else ""
    return f"{name}: SGLang {version} has no flag {flag}{hint}"
