"""What is decided before Ray is started, or without it."""

import os
import socket

import pytest
import ray

from specsearch.clock import SystemClock
from specsearch.errors import HostNotFit
from specsearch.executors.ray_cluster import RAY_ENVIRONMENT, Demand, ray_session
from specsearch.launch import INHERITED_AND_UNWANTED_PREFIXES
from tests.executors.ray_kit import run
from tests.executors.table import MemoryStore, Table, driver, study


def test_a_host_that_is_too_small_is_refused_without_starting_ray() -> None:
    """SR-09: asked and available are named within seconds."""
    began = SystemClock().monotonic()
    with (
        pytest.raises(HostNotFit, match="needs 8 GPUs on one node, the largest node has 4: this host has 4") as raised,
        ray_session(None, demand=Demand(8), gpus=range(4)),
    ):
        pytest.fail("a session came to be")
    assert raised.value.exit_code == 3
    assert not ray.is_initialized()
    assert SystemClock().monotonic() - began < 5


def test_a_text_that_is_no_address_is_refused_with_a_sentence() -> None:
    with pytest.raises(HostNotFit, match="foo bar"), ray_session("foo bar", demand=Demand(8), gpus=None):
        pytest.fail("a session came to be")


def test_a_ray_that_does_not_start_is_no_bug_of_ours() -> None:
    """Exit 3 with what Ray said; here it cannot make its folder."""
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = "/dev/null"
    try:
        with (
            pytest.raises(HostNotFit, match=r"a local Ray does not start: .*/dev/null") as raised,
            ray_session(None, demand=Demand(8), gpus=range(8)),
        ):
            pytest.fail("a session came to be")
    finally:
        os.environ.pop("RAY_TMPDIR") if before is None else os.environ.update(RAY_TMPDIR=before)
    assert "--executor in-process" in str(raised.value)
    assert not ray.is_initialized()


def test_an_address_where_nothing_answers_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # bound, and nobody listens
        with (
            pytest.raises(HostNotFit, match=f"no cluster lets us in at {address}"),
            ray_session(address, demand=Demand(8), gpus=None),
        ):
            pytest.fail("a session came to be")


def test_what_is_set_for_ray_never_reaches_a_server() -> None:
    """The variables have prefixes that LaunchPlan.environment takes away."""
    assert all(name.startswith(INHERITED_AND_UNWANTED_PREFIXES) for name in RAY_ENVIRONMENT)


@pytest.mark.ray
def test_trials_get_the_gpus_that_the_study_may_use_under_their_own_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would number the visible GPUs from 0, or refuse more than the user's variable lists."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    before = dict(os.environ)
    store, demand = MemoryStore(), Demand(4)
    with ray_session(None, demand=demand, gpus=(2, 3, 5, 6), include_dashboard=False) as session:
        run(driver(study(trials=1), store), Table(), demand=demand)
    assert session.is_local
    assert {row.host_facts["gpus"] for row in store.rows} == {"2,3,5,6"}
    ours = {"CUDA_VISIBLE_DEVICES", *RAY_ENVIRONMENT}
    assert {name: os.environ.get(name) for name in ours} == {name: before.get(name) for name in ours}
