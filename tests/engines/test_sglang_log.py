"""What SGLang's log says, whatever its version; ME-09 throughout: a field that is not there is not a zero."""

from pathlib import Path

import pytest

from specsearch.engines.sglang.log import capture_under_way, exception_line, read_log

DATA = Path(__file__).parent / "data"

THREE_STYLES = """\
[2026-12-01 15:00:00 TP0] Decode batch, #running-req: 8, #token: 9120, token usage: 0.01, accept len: 2.13, \
accept rate: 0.38, cuda graph: True, gen throughput (token/s): 412.77, #queue-req: 0
[2026-12-01 15:00:01.221 DP0 TP0] Decode batch [4412], #running-req: 8, #token: 9300, token usage: 0.01, \
accept len: 2.20, accept rate: 0.40, cuda graph: True, gen throughput (token/s): 410.10, #queue-req: 0, \
est. decode TFLOPS/s (per GPU): 12.10
2026-12-01 15:00:02 INFO 3131 [DP0 TP0 scheduler.py:757] Decode batch, #running-req: 8, #token: 9410, \
token usage: 0.01, accept len: 2.08, accept rate: 0.36, npu graph: True, gen throughput (token/s): 401.00, #queue-req: 0
"""


def recorded(name: str) -> str:
    return (DATA / name).read_text()


def test_three_styles_of_prefix_are_read_alike() -> None:
    """ME-09: the lines of the case."""
    facts = read_log(THREE_STYLES)
    assert (facts.decode_lines, facts.decode_lines_that_tell, facts.decode_lines_in_graph) == (3, 3, 3)


def test_colours_and_two_ranks_on_one_line_are_no_obstacle() -> None:
    first, second, third = THREE_STYLES.splitlines()
    text = f"\x1b[32m{first}\x1b[0m{second}\n{third.replace('npu graph: True', 'cpu graph: False')}\n"
    facts = read_log(text)
    assert (facts.decode_lines, facts.decode_lines_that_tell, facts.decode_lines_in_graph) == (3, 3, 2)


def test_a_line_without_the_graph_field_counts_as_a_line_that_does_not_tell() -> None:
    facts = read_log("[2026-12-01 15:00:00] Decode batch. #running-req: 1, #token: 5, gen throughput (token/s): 56.7\n")
    assert (facts.decode_lines, facts.decode_lines_that_tell) == (1, 0)


def test_the_share_of_batches_outside_a_graph_shows() -> None:
    """SM-06: the lines of the case."""
    text = (
        "[2026-12-01 13:40:01 TP0] Decode batch, #running-req: 24, #token: 22100, cuda graph: True, #queue-req: 0\n"
        "[2026-12-01 13:40:09 TP0] Decode batch, #running-req: 67, #token: 61990, cuda graph: False, #queue-req: 0\n"
    )
    facts = read_log(text)
    assert (facts.decode_lines_in_graph, facts.decode_lines_that_tell) == (1, 2)


@pytest.mark.parametrize(
    ("name", "in_graph", "capture_s"),
    [
        ("tree_0.5.17.log", 6, 12.34),
        ("plain_eager_0.5.17.log", 0, None),
        ("tree_cpu_0.5.23.log", 0, None),
        ("adjusted_0.5.17.log", 6, 4.0),
    ],
)
def test_recorded_servers_tell_graphs_and_readiness(name: str, in_graph: int, capture_s: float | None) -> None:
    facts = read_log(recorded(name))
    assert facts.ready
    assert not facts.hopeless
    assert (facts.decode_lines, facts.decode_lines_that_tell, facts.decode_lines_in_graph) == (6, 6, in_graph)
    assert facts.graph_capture_s == capture_s


def test_captures_of_several_ranks_and_of_old_versions_are_timed_by_the_slowest() -> None:
    text = (
        "[2026-12-01 10:00:00 TP0] Capture cuda graph end. Time elapsed: 21.50 s. mem usage=1.2 GB. avail mem=3 GB.\n"
        "[2026-12-01 10:00:00 TP1] Capture cuda graph end. Time elapsed: 22.00 s. mem usage=1.2 GB. avail mem=3 GB.\n"
        "[2026-12-01 10:00:09 TP0] Capture draft cuda graph end. Time elapsed: 3.00 s. mem usage=0.2 GB.\n"
    )
    assert read_log(text).graph_capture_s == 25.0


def test_a_server_that_could_not_bind_is_hopeless_though_it_lives() -> None:
    """ME-01: it stays alive with its GPU memory and never answers."""
    facts = read_log(recorded("f_port_in_use.log"))
    assert facts.hopeless
    assert not facts.ready


def test_what_the_server_changed_in_passing_is_a_warning() -> None:
    assert read_log(recorded("adjusted_0.5.17.log")).warnings == (
        "the server replaced num_draft_tokens by num_steps + 1, since eagle_topk is 1",
    )
    text = (
        "Max running requests is reset to 48 for speculative decoding. You can override this by …\n"
        "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.\n"
        "Overriding the draft model's max_position_embeddings to 131072.\n"
    )
    limited, all_reduce, stretched = read_log(text).warnings
    assert "48 running requests" in limited
    assert "PCIe-only" in all_reduce
    assert "131072" in stretched


def test_a_target_that_was_loaded_as_its_own_drafter_is_noticed() -> None:
    """LF-13"""
    (warning,) = read_log(recorded("f_no_draft_path.log")).warnings
    assert "both LlamaForCausalLM" in warning
    assert read_log(recorded("tree_0.5.17.log")).warnings == ()


def test_only_a_capture_that_did_not_end_is_under_way() -> None:
    assert capture_under_way(recorded("tree_0.5.17.log")) is None
    begun, _, _ = recorded("tree_0.5.17.log").partition("Capture draft decode CUDA graph end")
    assert capture_under_way(begun) == ("draft decode", 110.92)
    assert capture_under_way("nothing") is None


def test_the_exception_that_ended_the_server_is_the_first_that_a_scheduler_hit() -> None:
    text = (
        "ImportError: no module named helion\n"
        "[2026-12-01 12:00:44 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "RuntimeError: NCCL communicator was aborted\n"
    )
    assert exception_line(text) == "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    assert exception_line("all is well\n") is None
