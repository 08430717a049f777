"""SGLang's own adaptive speculation, which moves the number of draft steps while it serves.

It runs with one kind of configuration only; everywhere else SGLang switches it off with a warning, and what is measured
is the fixed number of steps. So a point with it that would not have it is refused.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

from specsearch.engines.sglang.arguments.asked import Asked, at_release, is_false
from specsearch.engines.sglang.models.checkpoint import is_file, read_json
from specsearch.engines.sglang.models.drafter import architectures
from specsearch.search_space import Value

ADAPTIVE, CONFIG = "speculative_adaptive", "speculative_adaptive_config"
_SINCE = (0, 5, 11)
_BY_BATCH = (0, 5, 13)  # the file lists candidates for ranges of batch sizes; before, one list for all
_CHOOSES = (0, 5, 14)  # steps and top-k may be left out, and a step count of 0 (no draft) is a candidate
_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")
# The candidates without a file, all batch sizes together, by the version that began with them.
_DEFAULTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((0, 5, 11), (1, 3, 7)),
    ((0, 5, 14), (0, 1, 3, 7)),
    ((0, 5, 20), (0, 1, 3, 5, 7)),
)
_WITHOUT = ("enable_multi_layer_eagle", "enable_two_batch_overlap", "enable_pdmux")
_WIDE_BY_DEFAULT = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")  # SGLang itself takes top-k 4


def is_adaptive(settings: Mapping[str, Value]) -> bool:
    """Whether adaptive speculation is asked for."""
    return settings.get(ADAPTIVE) is True


def first_steps(path: str | None, release: tuple[int, ...]) -> int | None:
    """The number of steps with which SGLang would begin by itself: the middle candidate; None where none is known."""
    steps = _candidates(path, release)
    return None if isinstance(steps, str) else steps[len(steps) // 2]


def adaptive_problems(asked: Asked) -> Iterator[str]:
    """Why SGLang would refuse adaptive speculation or silently do without it."""
    if asked.release < _SINCE:
        yield f"{ADAPTIVE} came with SGLang {'.'.join(map(str, _SINCE))}; leave it out"
        return
    for reason in _reasons_to_switch_it_off(asked):
        yield f"{ADAPTIVE} would be switched off without an error: {reason}"
    steps, candidates = asked.whole("num_steps"), _candidates(asked.text(CONFIG), asked.release)
    if isinstance(candidates, str):
        yield candidates
    elif steps is not None and asked.release >= _BY_BATCH and steps not in candidates:
        yield f"num_steps {steps} is none of the steps that {ADAPTIVE} moves among ({_list(candidates)}): use one"


def _reasons_to_switch_it_off(asked: Asked) -> Iterator[str]:
    if asked.algorithm not in _ALGORITHMS:
        yield f"it has EAGLE and EAGLE3 only, not {asked.algorithm}"
    top_k = asked.whole("eagle_topk")
    if top_k is not None and top_k != 1:
        yield f"it drafts chains only, not a tree of eagle_topk {top_k}; use eagle_topk 1"
    elif top_k is None and asked.release < _CHOOSES and _is_wide_by_default(asked):
        yield "SGLang would choose eagle_topk 4 for this target; give num_steps, eagle_topk 1 and num_draft_tokens"
    if asked.attention_dp:
        yield "it cannot be together with data-parallel attention"
    for switch in _WITHOUT:
        if asked.is_on(switch):
            yield f"it cannot be together with {switch}"
    if asked.release < (0, 5, 12) and not (
        asked.is_on("disable_overlap_schedule") or is_false(asked.environment.get("SGLANG_ENABLE_SPEC_V2"))
    ):
        yield "in 0.5.11 it needs disable_overlap_schedule: true"


def _is_wide_by_default(asked: Asked) -> bool:
    return asked.target is not None and any(name in _WIDE_BY_DEFAULT for name in architectures(asked.target))


@lru_cache(maxsize=32)  # asked for at every point of a space
def _candidates(path: str | None, release: tuple[int, ...]) -> tuple[int, ...] | str:
    """The step counts among which it moves; a sentence where the file does not give them."""
    if path is None:
        return at_release(_DEFAULTS, release)
    if not is_file(Path(path)):
        return f"{CONFIG} {path} does not exist on this host; correct it or leave it out"
    config = read_json(Path(path))
    if config is None:
        return f"{CONFIG} {path} is not a JSON object; see SGLang's documentation of adaptive speculation"
    return _by_batch(config, path, release) if release >= _BY_BATCH else _single_list(config, path)


def _by_batch(config: Mapping[str, object], path: str, release: tuple[int, ...]) -> tuple[int, ...] | str:
    smallest = 0 if release >= _CHOOSES else 1
    found: set[int] = set()
    for batch in filter(_is_batch, config):
        entry = config[batch]
        steps = entry.get("candidate_steps") if isinstance(entry, dict) else None
        if not _are_steps(steps, smallest):
            return (
                f"{CONFIG} {path}: the candidate_steps of batch size {batch} must be a list of whole numbers "
                f"from {smallest} on, saw {_shown(steps)}"
            )
        found.update(steps)
    if not found:
        return (
            f'{CONFIG} {path} names no batch size; it needs one or more, such as {{"1": {{"candidate_steps": [1, 3]}}}}'
        )
    return tuple(sorted(found))


def _single_list(config: Mapping[str, object], path: str) -> tuple[int, ...] | str:
    steps = config.get("candidate_steps", [1, 3, 7])
    if not _are_steps(steps, 1) or len(set(steps)) < 2:
        return (
            f"{CONFIG} {path}: candidate_steps must be a list of two or more whole numbers from 1 on, "
            f"saw {_shown(steps)}"
        )
    return tuple(sorted(set(steps)))


def _is_batch(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)[:60]


def _are_steps(steps: object, smallest: int) -> TypeGuard[list[int]]:
    return isinstance(steps, list) and bool(steps) and all(type(step) is int and step >= smallest for step in steps)


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
