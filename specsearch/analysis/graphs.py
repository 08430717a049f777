"""Proof of graphs: which ones a server captured, and how much of the decoding ran in them."""

from collections.abc import Sequence
from dataclasses import dataclass

from specsearch.search_space import ALGORITHM, Point, is_plain
from specsearch.trial import Capture, TrialResult

LEAST_COVERED = 0.95  # of the decode passes; a trial below does not say what graphs bring
_WITHOUT_A_DRAFTER = ("NGRAM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUse:
    """The graphs of one trial."""

    trial: int
    captured: tuple[Capture, ...]
    draft_captured: bool | None  # None: no drafter, or the log tells of no graph at all
    used_share: float | None  # of the target's decode passes, in the repeat with the least; None: not counted

    @property
    def is_told(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.captured or self.used_share)


def graph_use(row: TrialResult) -> GraphUse:
    """What is known of a trial's graphs."""
    drafts = not is_plain(row.point) and str(row.point.get(ALGORITHM)).upper() not in _WITHOUT_A_DRAFTER
    shares = [share for m in row.measurements if (share := m.values.get("cuda_graph_share")) is not None]
    named = [capture.name.startswith("draft") for capture in row.captures]
    return GraphUse(
        trial=row.number,
        captured=tuple(row.captures),
        draft_captured=any(named) if drafts and named else None,
        used_share=min(shares, default=None),
    )


def judges_graphs(row: TrialResult) -> bool:
    """Whether a trial says what graphs bring: not when it asked for them and decoding fell out of them."""
    share = graph_use(row).used_share
    return without_graphs(row.point) or share is None or share >= LEAST_COVERED


def without_graphs(point: Point) -> bool:
    """Whether a point asks for decoding without graphs."""
    return point.get("cuda_graph") is False or point.get("decode_cuda_graph") is False


def sizes_text(sizes: Sequence[int]) -> str:
    """`1 2 4 8`, or the range of a longer list with its length."""
    if len(sizes) <= 4:
        return " ".join(map(str, sizes)) or "–"
    return f"{min(sizes)}–{max(sizes)} ({len(sizes)} sizes)"
