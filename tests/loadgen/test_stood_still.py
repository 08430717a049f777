"""A repeat during which specsearch itself did not run is not a measurement of the server."""

import time

import pytest
from misbehaving_server import honest, serving

from specsearch.config import Limits
from specsearch.errors import FailedTrial
from specsearch.loadgen import measure_repeat
from specsearch.trial import StopFlag
from specsearch.workload import LoadPoint, Workload


def test_a_repeat_in_which_the_load_generator_stood_still_is_refused() -> None:
    """As after Ctrl-Z, a paused container or on a host that has no time for it: here its loop is held up once."""
    point = LoadPoint(Workload("stories", ("Tell a story.", "Tell another one.")), 2, output_tokens=40, requests=2)
    slept = []

    def sleep_once(done: int, speed: float) -> None:
        if not slept:
            slept.append(time.sleep(1.8))

    refused = pytest.raises(FailedTrial, match=r"stood still for 1\.\d s")
    with serving(honest(pause_s=0.04)) as server, refused as raised:
        measure_repeat(
            point,
            server.base_url,
            limits=Limits(request_s=20, stall_s=20),
            stop=StopFlag(),
            alive=lambda: None,
            on_progress=sleep_once,
        )
    assert raised.value.reason == "stood_still"
