"""From knobs to the command line: how each named knob and any other flag is spelled."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping

from specsearch import reserved
from specsearch.engines.sglang.installed.version import Profile, spelling
from specsearch.launch import is_secret
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
_NEGATED = {
    "cuda_graph": "disable_cuda_graph",
    "decode_cuda_graph": "disable_decode_cuda_graph",
    "custom_all_reduce": "disable_custom_all_reduce",
}
_LISTS = ("cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill")  # written "1 2 4"

# Flags that another one took the place of, in one version or another.
_MOVED: tuple[tuple[str, str], ...] = (
    ("stream_output", "incremental_streaming_output"),
    ("enable_piecewise_cuda_graph", "cuda_graph_backend_prefill: tc_piecewise"),
    ("enforce_piecewise_cuda_graph", "cuda_graph_backend_prefill: tc_piecewise"),
    ("enable_breakable_cuda_graph", "cuda_graph_backend_prefill: breakable"),
    ("disable_piecewise_cuda_graph", "cuda_graph_backend_prefill: disabled"),
    ("piecewise_cuda_graph_tokens", "cuda_graph_bs_prefill"),
    ("piecewise_cuda_graph_max_tokens", "cuda_graph_max_bs_prefill"),
    ("speculative_dflash_draft_window_size", "speculative_draft_window_size"),
    ("nsa_prefill_backend", "dsa_prefill_backend"),
    ("nsa_decode_backend", "dsa_decode_backend"),
    ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"),
    ("enable_prefill_context_parallel", "enable_prefill_cp"),
    ("prefill_cp_mode", "cp_strategy"),
)


def flag_of(name: str, profile: Profile) -> str:
    """The flag, written with underscores, that carries a knob in this version."""
    by_version = {
        "cuda_graph_max_bs": profile.graph_max_bs,
        "cuda_graph_bs": profile.graph_bs,
        "decode_cuda_graph": profile.no_decode_graph,
    }
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
        if name in _NEGATED and isinstance(value, bool):
            value = not value
        elif name == ALGORITHM:
            value = str(value).upper()  # some versions refuse small letters
        flags[flag_of(name, profile)] = value
    return flags


def argv_of(flags: Mapping[str, Value], declared: Collection[str] | None = None) -> tuple[str, ...]:
    """The command line of flags: true is a bare flag, false and `unset` are none, a list is several words.

    Where the flags that the installed version declares are known, false is `--no-x` of those that have that.
    """
    return tuple(word for name in sorted(flags) for word in _words(name, flags[name], declared or ()))


def _words(name: str, value: Value, declared: Collection[str]) -> Iterator[str]:
    negated = spelling(f"no_{name}")
    if value is False and negated in declared:
        yield negated
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
    variable = name.removeprefix(ENV) if name.startswith(ENV) else None
    problem = reserved.variable_problem(variable) if variable else reserved.flag_problem(name)
    if problem:
        return f"{name}: {problem}" if name in reserved.OTHER_SPELLINGS else f"{name} {problem}"
    knob = next((knob for knob, flag in _RENAMED.items() if flag == name), None)
    return f"{name}: write it as the named knob {knob}" if knob else None


def value_problem(name: str, values: Iterable[Value]) -> str | None:
    """Why a flag must not have one of these values, the first such one named, or None."""
    problems = (reserved.value_problem(name, value) for value in values if value != UNSET)
    return next((f"{name} {problem}" for problem in problems if problem), None)


def secret_problem(name: str, values: Iterable[Value]) -> str | None:
    """Why a variable must not be a knob: it looks like a secret, by its name or by one of its values; or None."""
    if name.startswith(ENV) and any(is_secret(name.removeprefix(ENV), str(value)) for value in values):
        return f"{name}: {reserved.SECRET_SEARCHED}"
    return None


def missing_problem(name: str, version: str, profile: Profile) -> str | None:
    """Why a named knob does not exist in a version, whatever flags that declares; None when it does."""
    if name == "decode_cuda_graph" and profile.no_decode_graph is None:
        return (
            f"{name}: SGLang {version} cannot turn off the graphs of decoding alone, which came with 0.5.14; "
            "search cuda_graph, which turns off all"
        )
    return None


def unknown_problem(name: str, declared: frozenset[str], version: str, profile: Profile) -> str | None:
    """Why the installed SGLang would refuse a knob's flag, with the nearest spelling it has; None when it would not.

    The server accepts any unambiguous beginning of a flag. That is refused too: it breaks with the next version.
    """
    flag = spelling(flag_of(name, profile))
    if flag in declared:
        return None
    moved = [other for pair in _MOVED for old, other in (pair, pair[::-1]) if spelling(old.partition(":")[0]) == flag]
    there = [other for other in moved if spelling(other.partition(":")[0]) in declared]
    if there:
        return f"{name}: SGLang {version} has no flag {flag}; there it is {' or '.join(there)}"
    longer = sorted(candidate for candidate in declared if candidate.startswith(flag))
    if longer:
        return f"{name}: SGLang {version} has no {flag}, it could mean {' or '.join(longer)}; write one of them out"
    nearest = difflib.get_close_matches(flag, sorted(declared), n=1)
    hint = f"; the nearest it has is {nearest[0]}" if nearest else ""
    return f"{name}: SGLang {version} has no flag {flag}{hint}"
