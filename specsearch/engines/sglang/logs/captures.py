"""The graphs that a log says were captured, and the one under way when it ends."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specsearch.engines.sglang.logs.lines import rank_at
from specsearch.trial import Capture

_NAME = r"(?:(?P<name>[\w -]{1,40}?) )?(?:CUDA|cuda|CPU|cpu|NPU|npu|MUSA|musa|XPU|xpu) graph"
_CAPTURE = re.compile(rf"Capture {_NAME} (?P<event>begin|end)\b(?P<rest>(?:(?!Capture )[^\n]){{0,400}})")
_SECONDS = re.compile(r"\belapsed[=:] ?(\d+(?:\.\d+)?)")
_TAKEN = re.compile(r"\bmem usage=(-?\d+(?:\.\d+)?) GB")
_AVAILABLE = re.compile(r"\bavail mem=(\d+(?:\.\d+)?) GB")
_SIZES = re.compile(r"\bbs=\[([\d, ]+)\]")


@dataclass(slots=True)
class _OfRank:
    """All captures of one graph by one rank; adaptive speculation and multi-layer drafters capture one repeatedly."""

    name: str
    rank: str
    seconds: float | None = None
    taken_gb: float | None = None
    available_gb: float | None = None
    sizes: tuple[int, ...] = ()
    has_ended: bool = False
    begun_at: int | None = None  # position of the begin that no end followed


def captures(text: str) -> Iterator[Capture]:
    """The graphs that were captured to their end; of several ranks the slowest and the fullest count."""
    by_name: dict[str, list[_OfRank]] = {}
    for one in _of_ranks(text):
        by_name.setdefault(one.name, []).append(one)
    for name, ranks in by_name.items():
        if any(one.has_ended for one in ranks) and all(one.begun_at is None for one in ranks):
            yield Capture(
                name,
                seconds=max(_known(one.seconds for one in ranks), default=None),
                memory_gb=max(_known(one.taken_gb for one in ranks), default=None),
                available_gb=min(_known(one.available_gb for one in ranks), default=None),
                sizes=next((one.sizes for one in ranks if one.sizes), ()),
            )


def capture_under_way(text: str, rank: str = "") -> tuple[str, float | None] | None:
    """(which graph, GB that were free) of the capture that began last and did not end; None when none is open.

    That of the given rank goes before those of others.
    """
    begun = [one for one in _of_ranks(text) if one.begun_at is not None]
    last = max(begun, key=lambda one: (one.rank == rank, one.begun_at or 0), default=None)
    return None if last is None else (last.name, last.available_gb)


def _of_ranks(text: str) -> Iterable[_OfRank]:
    found: dict[tuple[str, str], _OfRank] = {}
    for line in _CAPTURE.finditer(text):
        key = (rank_at(text, line.start()), line["name"] or "decode")
        one = found.setdefault(key, _OfRank(key[1], key[0]))
        rest = line["rest"]
        if line["event"] == "begin":
            one.begun_at = line.start()
            one.available_gb = min(_known((one.available_gb, _number(_AVAILABLE, rest))), default=None)
            sizes = _SIZES.search(rest)
            one.sizes = tuple(map(int, sizes[1].replace(",", " ").split())) if sizes else one.sizes
        else:
            one.begun_at, one.has_ended = None, True
            one.seconds = _sum(one.seconds, _number(_SECONDS, rest))
            one.taken_gb = _sum(one.taken_gb, _number(_TAKEN, rest))
    return found.values()


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match[1]) if match else None


def _sum(so_far: float | None, more: float | None) -> float | None:
    known = _known((so_far, more))
    return round(sum(known), 3) if known else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
