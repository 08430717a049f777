"""What SGLang's log says, whatever its version; ME-09 throughout: a field that is not there is not a zero."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsearch.engines.sglang.logs.captures import capture_under_way
from specsearch.engines.sglang.logs.failures import failure
from specsearch.engines.sglang.logs.lines import Line, lines, rank_at, without_colours
from specsearch.engines.sglang.logs.log import read_log
from specsearch.trial import Phase

THREE_STYLES = """\
[2026-12-01 15:00:00 TP0] Decode batch, #running-req: 8, #token: 9120, token usage: 0.01, accept len: 2.13, \
accept rate: 0.38, cuda graph: True, gen throughput (token/s): 412.77, #queue-req: 0
[2026-12-01 15:00:01.221 DP0 TP0] Decode batch [4412], #running-req: 8, #token: 9300, token usage: 0.01, \
accept len: 2.20, accept rate: 0.40, cuda graph: True, gen throughput (token/s): 410.10, #queue-req: 0, \
est. decode TFLOPS/s (per GPU): 12.10
2026-12-01 15:00:02 INFO 3131 [DP0 TP0 scheduler.py:757] Decode batch, #running-req: 8, #token: 9410, \
token usage: 0.01, accept len: 2.08, accept rate: 0.36, npu graph: True, gen throughput (token/s): 401.00, #queue-req: 0
"""
# What a log is made of, for logs made by chance.
PIECES = (
    *("[2026-12-01 15:00:00 TP3] ", "[rank1]: ", "\x1b[31m", "\r", "\n", "  ", "\x00", "…", "\udcff"),
    *("Scheduler hit an exception: ", "Traceback (most recent call last):", 'File "x.py", line 1, in f', "^^^"),
    *("During handling of the above exception, another exception occurred:", "Exception ignored in: <f>"),
    *("AssertionError", "ValueError: bad", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    *("Capture cuda graph failed: ", "Capture draft CUDA graph begin. avail mem=1.00 GB", "Decode batch"),
    *("Capture draft CUDA graph end.", "#queue-req: 1", "SIGTERM received", "#running-req: 3"),
    *("terminate called after throwing an instance of", "Rank 3 scheduler died during initialization (exit code: -9)"),
)  # fmt: skip


def test_three_styles_of_prefix_are_read_alike() -> None:
    """ME-09: the lines of the case."""
    facts = read_log(THREE_STYLES)
    assert (facts.decode_lines, facts.decode_lines_that_tell, facts.decode_lines_in_graph) == (3, 3, 3)
    assert [line.rank for line in lines(THREE_STYLES)] == ["TP0", "DP0 TP0", "DP0 TP0"]


def test_colours_and_two_ranks_on_one_line_are_no_obstacle() -> None:
    first, second, third = THREE_STYLES.splitlines()
    text = f"\x1b[32m{first}\x1b[0m{second}\n{third.replace('npu graph: True', 'cpu graph: False')}\n"
    facts = read_log(text)
    assert (facts.decode_lines, facts.decode_lines_that_tell, facts.decode_lines_in_graph) == (3, 3, 2)


def test_a_line_without_the_graph_field_counts_as_a_line_that_does_not_tell() -> None:
    facts = read_log("[2026-12-01 15:00:00] Decode batch. #running-req: 1, #token: 5, gen throughput (token/s): 56.7\n")
    assert (facts.decode_lines, facts.decode_lines_that_tell) == (1, 0)


def test_a_prefill_line_behind_a_decode_line_lends_it_no_field() -> None:
    decode = "[2026-12-01 15:00:00 TP0] Decode batch, #running-req: 1, #token: 5, #queue-req: 0"
    prefill = "[2026-12-01 15:00:00 TP1] Prefill batch, #new-seq: 1, #queue-req: 7, cuda graph: False"
    facts = read_log(f"{decode}{prefill}\n")
    assert (facts.decode_lines, facts.decode_lines_that_tell, facts.decode_lines_with_queue) == (1, 0, 0)


def test_captures_of_several_ranks_and_of_old_versions_are_timed_by_the_slowest() -> None:
    text = (
        "[2026-12-01 10:00:00 TP0] Capture cuda graph end. Time elapsed: 21.50 s. mem usage=1.2 GB. avail mem=3 GB.\n"
        "[2026-12-01 10:00:00 TP1] Capture cuda graph end. Time elapsed: 22.00 s. mem usage=1.2 GB. avail mem=3 GB.\n"
        "[2026-12-01 10:00:09 TP0] Capture draft cuda graph end. Time elapsed: 3.00 s. mem usage=0.2 GB.\n"
    )
    assert read_log(text).graph_capture_s == 25.0
    assert [(one.name, one.seconds) for one in read_log(text).captures] == [("decode", 22.0), ("draft", 3.0)]
    on_one_line = text.replace("\n", "")
    assert read_log(on_one_line) == read_log(text)


def test_a_graph_that_one_rank_still_captures_is_no_capture_yet() -> None:
    """The first rank to end says nothing of the others."""
    begin = "[2026-12-01 10:00:00 {0}] Capture target verify CUDA graph begin. bs=[1, 2], avail mem={1} GB\n"
    end = "[2026-12-01 10:00:09 TP0] Capture target verify CUDA graph end. elapsed=9.00 s, mem usage=1.00 GB.\n"
    text = begin.format("TP0", 9.5) + begin.format("TP1", 8.5) + end
    assert read_log(text).captures == ()
    assert capture_under_way(text) == ("target verify", 8.5)
    assert capture_under_way(text + end.replace("TP0", "TP1")) is None
    assert capture_under_way("nothing") is None


def test_the_names_of_graphs_may_have_dashes_and_steps() -> None:
    text = (
        "Capture Frozen-KV MTP draft cuda graph begin.\nCapture Frozen-KV MTP draft cuda graph end.\n"
        "Capture draft extend CUDA graph begin. step=1, avail mem=9.00 GB\n"
        "Capture draft extend CUDA graph end. step=1, elapsed=1.00 s, mem usage=0.10 GB, avail mem=8.90 GB.\n"
        "Capture draft extend CUDA graph begin. step=0, avail mem=8.90 GB\n"
        "Capture draft extend CUDA graph end. step=0, elapsed=2.00 s, mem usage=0.20 GB, avail mem=8.70 GB.\n"
    )
    first, second = read_log(text).captures
    assert (first.name, first.seconds) == ("Frozen-KV MTP draft", None)
    assert (second.name, second.seconds, second.memory_gb, second.available_gb) == ("draft extend", 3.0, 0.3, 8.9)


def test_memory_at_the_start_is_that_before_the_first_weights_of_the_fullest_gpu() -> None:
    """The drafter's weights are loaded after the target's: what is free then is not what was free."""
    text = (
        "[2026-12-01 10:00:00 TP0] Load weight begin. avail mem=139.00 GB\n"
        "[2026-12-01 10:00:00 TP1] Load weight begin. avail mem=90.00 GB\n"
        "[2026-12-01 10:01:00 TP0] Load weight begin. avail mem=18.00 GB\n"
    )
    assert read_log(text).memory_free_gb == 90.0


def test_a_target_on_two_ranks_is_not_taken_for_its_own_drafter() -> None:
    """LF-13: only the same rank's second load of the same model tells."""
    args = "server_args=ServerArgs(speculative_algorithm='EAGLE3')\n"
    end = "[2026-12-01 10:00:00 {0}] Load weight end. elapsed=1.00 s, type=LlamaForCausalLM, avail mem=9.00 GB.\n"
    assert read_log(args + end.format("TP0") + end.format("TP1")).warnings == ()
    assert len(read_log(args + end.format("TP0") * 2).warnings) == 1


def test_every_kind_of_prefix_names_its_rank() -> None:
    text = "[2026-12-01 15:00:00 DP0 PP1 TP3 EP3] a\n[rank6]: ValueError: b\n[rank7]:[E1201 x.cpp:1] c\nd\n"
    text += "[15:00:00 TP1] e"
    assert [(line.rank, line.text, line.is_logged, line.is_uncaught) for line in lines(text)] == [
        ("DP0 PP1 TP3 EP3", "a", True, False),
        ("6", "ValueError: b", False, True),
        ("7", "[E1201 x.cpp:1] c", True, False),
        ("", "d", False, False),
        ("TP1", "e", True, False),
    ]
    assert rank_at(text, text.index("a")) == "DP0 PP1 TP3 EP3"
    assert rank_at(text, text.index("d\n")) == ""


def test_a_line_within_a_line_is_a_line_of_its_own() -> None:
    found = list(lines("[2026-12-01 15:00:00 TP0] half a li[2026-12-01 15:00:00 TP1] whole\n"))
    assert found == [
        Line(0, "half a li", "TP0", is_logged=True),
        Line(35, "whole", "TP1", is_logged=True),
    ]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=40))
def test_whatever_a_log_holds_it_is_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    read_log(text)
    for exit_code in (None, -9, 1, 2):
        found = failure(text, exit_code=exit_code, phase=Phase.READY)
        assert found.reason
        assert found.detail is None or found.detail in without_colours(text) or found.detail.endswith("AssertionError")


def test_a_long_log_is_read_in_well_under_a_second_a_megabyte() -> None:
    """The runner reads it again and again while the server starts. About 0.02 s/MB, and 0.1 s/MB for a death."""
    line = THREE_STYLES.splitlines(keepends=True)[0]
    for piece in (
        line,
        "node:1:1 [0] NCCL INFO Channel 00/0 : 0[3000] -> 1[2000] via P2P/IPC\n",
        "x" * 100,
        f"{line[:27]}Capture draft CUDA graph begin.",
    ):
        text = piece * (4_000_000 // len(piece))
        began = time.process_time()
        read_log(text)
        failure(text, exit_code=-9, phase=Phase.READY)
        assert time.process_time() - began < 4.0


@pytest.mark.parametrize(
    "line",
    [
        "[2026-12-01 10:00:00 TP0] sglang is using nccl==2.28.3",
        "[Gloo] Rank 0 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7",
        "NCCL version 2.27.5+cuda12.9",
        "node:811:811 [0] RCCL INFO comm 0x55d0 rank 0 nranks 8 - Init COMPLETE",
        "[2026-12-01 10:00:00 TP0] Init torch distributed begin.",
    ],
)
def test_a_log_that_ends_with_the_groups_of_ranks_ends_in_a_collective(line: str) -> None:
    """LF-09: without NCCL_DEBUG the last line before a first collective is SGLang's or Gloo's."""
    assert read_log(f"[2026-12-01 09:59:00] server_args=ServerArgs(…)\n{line}\n").in_collective
    later = f"{line}\n[2026-12-01 10:00:05 TP0] Load weight begin. avail mem=94.02 GB\n"
    assert not read_log(later).in_collective


@pytest.mark.parametrize(
    "text",
    [
        "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs.",
        "CustomAllReduceV2 is disabled because your platform lacks GPU P2P capability or P2P test failed.",
        "CustomAllreduce is disabled due to an unsupported world size: 6.",
        "Setup Custom allreduce failed with CUDA error. To silence this warning, specify --disable-custom-all-reduce.",
    ],
)
def test_a_custom_kernel_that_is_off_is_known_by_every_version_s_words(text: str) -> None:
    assert read_log(f"[2026-12-01 10:00:00 TP0] {text}\n").settings["custom_all_reduce"] == "false"
