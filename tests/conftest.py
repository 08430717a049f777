"""What every test run needs before anything imports Ray."""

import os
from collections.abc import Iterator

import pytest

os.environ["RAY_AUTH_MODE"] = "disabled"  # a token file in the home folder is no business of a test


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One local Ray with 8 logical GPUs on one node, for every test of a module."""
    from specsearch.executors.ray_cluster import Demand, ray_session

    with ray_session(None, demand=Demand(8), gpus=range(8), include_dashboard=False):
        yield
