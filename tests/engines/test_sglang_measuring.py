"""The server's options that help measuring, by version."""

from pathlib import Path

import pytest

from specsearch.config import EngineConfig
from specsearch.engines.sglang import SGLangEngine
from specsearch.engines.sglang.arguments import measuring
from specsearch.search_space import Point, Value

PLAIN: Point = {"speculative_algorithm": "none"}
CHAIN: Point = {"speculative_algorithm": "NGRAM"}


def plan(point: Point = PLAIN, *, args: dict[str, Value] | None = None, env: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
    # An interpreter that is not there: the version of the file counts.
    config = EngineConfig(
        type="sglang", model="/m", python="/nowhere/python3", version="0.5.23", args=args or {}, env=env or {}
    )
    return SGLangEngine(config).plan(
        point, port=31001, log_path=Path("/l"), tmpdir=Path("/t"), gpu_indices=(0,), trial="t0000-1-a"
    )


@pytest.mark.parametrize("version", ["0.5.10", "0.5.10.post1", "0.5.17", "0.5.23", "0.6.0", "0.0.0", None])
def test_streams_are_incremental_from_0_5_10_on(version: str | None) -> None:
    assert measuring.flags(version) == {"enable_metrics": True, "incremental_streaming_output": True}


def test_0_5_9_has_everything_but_a_whole_incremental_stream() -> None:
    assert measuring.flags("0.5.9") == {"enable_metrics": True}


def test_plain_and_speculative_servers_are_given_the_same() -> None:
    for point in (PLAIN, CHAIN):
        launch = plan(point)
        assert launch.env["SGLANG_RECORD_STEP_TIME"] == "1"
        assert "--decode-log-interval" not in launch.argv  # what a shorter one costs stands in docs/measurement.md
        assert {"--enable-metrics", "--incremental-streaming-output"} <= set(launch.argv)


def test_pinned_arguments_and_knobs_win_and_stay_in_the_command_to_serve_with() -> None:
    pinned = plan(
        args={"decode_log_interval": 40, "incremental_streaming_output": False, "enable_metrics": False},
        env={"SGLANG_RECORD_STEP_TIME": "0"},
    )
    assert pinned.argv[pinned.argv.index("--decode-log-interval") + 1] == "40"
    assert not {"--enable-metrics", "--incremental-streaming-output"} & set(pinned.argv)
    assert pinned.env["SGLANG_RECORD_STEP_TIME"] == "0"
    searched = plan({**PLAIN, "decode_log_interval": 20, "env.SGLANG_RECORD_STEP_TIME": "unset"})
    assert "--decode-log-interval 20" in searched.serve()
    assert "SGLANG_RECORD_STEP_TIME" not in searched.env


def test_nobody_is_told_to_serve_with_what_only_a_trial_needs() -> None:
    """A longer log, a list that grows for ever and another stream than clients expect."""
    line = plan().serve()
    for option in ("--decode-log-interval", "--incremental-streaming-output", "SGLANG_RECORD_STEP_TIME"):
        assert option not in line
    assert "--enable-metrics" in line
