"""Tight loops are found, text that only looks regular is left alone (ME-04)."""

import pytest
from replies import COLLAPSED, PROSE, SOUND

from specsearch.loadgen.degenerate import COLLAPSED_SHARE, collapsed_share, is_degenerate


@pytest.mark.parametrize("name", SOUND)
def test_sound_replies_are_left_alone_by_a_wide_margin(name: str) -> None:
    assert not is_degenerate(SOUND[name])
    assert collapsed_share(SOUND[name]) <= COLLAPSED_SHARE / 2


@pytest.mark.parametrize("name", COLLAPSED)
def test_collapsed_replies_are_found(name: str) -> None:
    assert is_degenerate(COLLAPSED[name]), collapsed_share(COLLAPSED[name])


def test_a_loop_counts_from_where_it_makes_up_two_fifths() -> None:
    words = len(PROSE.split())
    assert not is_degenerate(PROSE + " of the town" * (words // 12))  # a fifth
    assert is_degenerate(PROSE + " of the town" * (words // 3))  # a half


def test_a_loop_of_many_lines_is_left_alone() -> None:
    """Small models repeat whole passages in plain decoding, too; nothing is broken then."""
    passage = "\n".join(
        f"* The module {name} supports sockets. (Contributed by {name.title()} Lee.)" for name in "abcd"
    )
    assert not is_degenerate((passage + "\n") * 8)
