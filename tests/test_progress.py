"""Whoever watches a study learns what a trial taught."""

from io import StringIO

import pytest

from specsearch.executors.driver import TrialEnded
from specsearch.progress import ProgressDisplay
from specsearch.trial import TrialResult, TrialStatus
from tests.fakes import FakeClock
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, repeats, trial

REFUSED = trial(1, TREE_POINT, status=TrialStatus.INFEASIBLE, reason="arg_rejected", lesson="eagle_topk <= 1")


@pytest.mark.parametrize(
    ("result", "taught"),
    [
        (REFUSED, True),
        (trial(1, TREE_POINT, status=TrialStatus.FAILED, reason="hang", lesson="eagle_topk <= 1"), False),
        (trial(0, PLAIN_POINT, repeats((90.0,))), False),
    ],
)
def test_a_closed_region_is_said_when_it_closes(result: TrialResult, taught: bool) -> None:
    """LF-05."""
    stream = StringIO()
    ProgressDisplay(FakeClock(), stream)(TrialEnded(result))
    said = 'from now on "eagle_topk <= 1" holds for every trial'
    assert (said in stream.getvalue()) == taught
