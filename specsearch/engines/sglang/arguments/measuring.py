"""What every server is given so that it tells more, in plain decoding too; the search space has the last word.

All of it is in every version from 0.5.9 on but the incremental stream, which came with 0.5.10: `--stream-output` of
0.5.9 is no match, since it drops ids when chunks queue up and sends the whole text all the same.
"""

from collections.abc import Mapping

from specsearch.engines.sglang.installed.profiles import NEWEST, release
from specsearch.search_space import Value

VARIABLES: Mapping[str, str] = {"SGLANG_RECORD_STEP_TIME": "1"}
_INCREMENTAL = "incremental_streaming_output"
_INCREMENTAL_SINCE = (0, 5, 10)
# These change what a server writes or what its clients receive, so the command to serve with leaves them out.
OF_THE_TRIAL = frozenset({_INCREMENTAL})


def flags(version: str | None) -> dict[str, Value]:
    """Flags by their names in a search space.

    Without the incremental stream each chunk repeats the whole reply so far. Plain decoding sends a chunk per token and
    speculation one per step, so that cost would pass for a gain of speculation.
    """
    numbers = release(version or NEWEST)
    numbers = numbers if any(numbers) else release(NEWEST)  # a build from source calls itself 0.0.0
    incremental: dict[str, Value] = {_INCREMENTAL: True} if numbers >= _INCREMENTAL_SINCE else {}
    return {"enable_metrics": True, **incremental}
