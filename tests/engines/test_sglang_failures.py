"""Why a server died: rules that hold for many logs at once; test_sglang_corpus.py has the logs."""

import pytest

from specsearch.engines.sglang.logs.failures import failure
from specsearch.errors import FailedTrial, InfeasibleTrial, TrialError
from specsearch.trial import Phase

READY = "[2026-12-01 12:00:00] The server is fired up and ready to roll!\n"
LOADED = "[2026-12-01 10:04:10 TP0] Load weight begin. avail mem=94.02 GB\n"
SCHEDULER = "[2026-12-01 10:04:52 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
OWN_KILL = "[2026-12-01 10:04:53] Received sigquit from a child process. It usually means the child failed.\n"


def of(text: str, exit_code: int | None = -9, phase: Phase = Phase.READY) -> TrialError:
    return failure(text, exit_code=exit_code, phase=phase)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: speculative_eagle_topk > 1 with page_size > 1 is only supported on ('flashinfer', 'fa3', 'triton')"
        "; got attention_backend='trtllm_mla'. Use page_size == 1 or one of those backends.",
        "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
        "--cuda-graph-max-bs-prefill",
        "ValueError: chunked_prefill_size must be a multiple of page_size",
    ],
)
def test_refused_arguments_keep_the_line_that_refused_them(line: str) -> None:
    """LF-05, LF-06"""
    found = of(f'Traceback (most recent call last):\n  File "x.py", line 9, in f\n    raise it\n{line}\n', 1)
    assert (type(found), found.reason, found.detail) == (InfeasibleTrial, "arg_rejected", line)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Currently FlashMLA only supports topk=1 for speculative decoding",
        "ValueError: Currently Flashinfer MLA only supports topk=1 for speculative decoding",
        "NotImplementedError: Lightning (seg_la) linear-attention backend does not support speculative decoding with "
        "topk > 1 (got topk=4); seg_la verifies a draft tree as a chain. Use --speculative-eagle-topk 1.",
        "NotImplementedError: AiterAttnBackend SPEC_V2 path currently supports topk <= 1 only. ",
        "AssertionError: MTP Topk > 1 not supported for DeepSeek V4",
        "ValueError: Qwen QSA target verification supports only speculative_eagle_topk=1",
        "ValueError: --speculative-use-rejection-sampling requires --speculative-eagle-topk=1.",
        "ValueError: Frozen-KV MTP topk > 1 currently supports triton and trtllm_mha attention backends, got fa3.",
        "Exception: Capture cuda graph failed: FlashAttention backend doesn't support topk > 1 speculative decoding "
        "with page size > 1 sliding window attention",
    ],
)
def test_a_tree_that_is_refused_after_the_weights_is_refused_all_the_same(line: str) -> None:
    """LF-05: backends and draft workers say it in words of their own, some only while a graph is captured."""
    found = of(f"{LOADED}{SCHEDULER}{line}\n{OWN_KILL}")
    assert (type(found), found.reason, found.detail) == (InfeasibleTrial, "arg_rejected", line.strip())
    # These backends exist only where more than one step is drafted: a tree of one step was not refused.
    draft_backend = "MLA only supports topk=1" in line
    assert found.lesson == ("eagle_topk <= 1 or num_steps <= 1" if draft_backend else "eagle_topk <= 1")
    assert {"draft_model", "speculative_*"} <= {*found.within}  # what was shown was shown of this algorithm and drafter


def test_an_algorithm_that_warns_and_goes_on_with_a_chain_is_not_refused() -> None:
    """LF-05: the same words in a warning are no cause of a death."""
    warning = "WARNING DFLASH only supports speculative_eagle_topk == 1; overriding speculative_eagle_topk=4 to 1.\n"
    assert of(f"{LOADED}{warning}{SCHEDULER}RuntimeError: boom\n").reason == "unknown"


@pytest.mark.parametrize("mistake", ["one of the arguments --a --b is required", "the tokenizer must be given"])
def test_any_usage_error_with_exit_code_2_is_the_command_lines(mistake: str) -> None:
    """LF-06: whatever the parser's words are; the same text without its exit code decides nothing."""
    text = f"usage: sglang serve [-h]\n             [--a A]\nsglang serve: error: {mistake}\n"
    found = of(text, 2)
    assert (type(found), found.reason) == (InfeasibleTrial, "arg_rejected")
    assert found.detail == f"sglang serve: error: {mistake}"
    assert of(text, 1).reason == "engine_died"  # no exception, no known words


@pytest.mark.parametrize("kind", ["cuda", "CPU", "prefill CUDA"])
def test_a_failed_capture_is_known_whatever_was_captured(kind: str) -> None:
    """LF-02: the impossible tree before it, and memory, keep their own reasons on every kind of graph."""

    def reason(what: str) -> str:
        return of(f"{LOADED}{SCHEDULER}Exception: Capture {kind} graph failed: {what}\n").reason

    assert reason("boom") == "graph_capture_failed"
    assert reason("selected index k out of range") == "infeasible_params"
    assert reason("CUDA out of memory. Tried to allocate 2.00 GiB") == "graph_capture_oom"


def test_a_target_without_eagle3_closes_the_algorithm_and_is_not_tried_again() -> None:
    line = (
        "ValueError: Model GPT2LMHeadModel does not implement set_eagle3_layers_to_capture, "
        "which EAGLE3 aux hidden-state capture requires."
    )
    found = of(LOADED + SCHEDULER + line + "\n")
    assert (type(found), found.reason, found.detail) == (InfeasibleTrial, "arg_rejected", line)
    assert found.lesson == "speculative_algorithm != 'EAGLE3'"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: Runtime check failed at /x/jit_kernel/include/sgl_kernel/distributed/custom_all_reduce.cuh:37: "
        "CUDA error: invalid argument\nException: Capture cuda graph failed: ...\n",
        "AttributeError: 'CustomAllReduceV2' object has no attribute 'obj'\n",
    ],
)
def test_custom_all_reduce_is_blamed_where_it_is_named(text: str) -> None:
    """LF-07"""
    begin = "[2026-12-01 10:31:02 TP1] Capture target verify CUDA graph begin. backend=full, avail mem=8.53 GB\n"
    found = of(LOADED + begin + text)
    assert (type(found), found.reason) == (InfeasibleTrial, "custom_all_reduce_error")
    assert found.advice is not None
    assert "custom_all_reduce: false" in found.advice


def test_custom_all_reduce_that_turned_itself_off_is_not_blamed() -> None:
    harmless = "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.\n"
    assert (
        of(LOADED + harmless + SCHEDULER + "Exception: Capture cuda graph failed: boom\n").reason
        == "graph_capture_failed"
    )


def test_an_nccl_value_that_serves_no_collective_is_the_configurations_fault() -> None:
    """LF-10: the text of the case."""
    text = (
        "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:1, invalid usage\nLast error:\n"
        "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. "
        "NCCL_ALGO was set to NVLS.\n"
    )
    found = of(text, 1)
    assert (type(found), found.reason) == (InfeasibleTrial, "nccl_config_error")
    assert found.detail is not None
    assert "NCCL_ALGO was set to NVLS" in found.detail


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [("Error while creating shared memory segment /dev/shm/nccl-qW3zVd (size 9637888)\n", 1), (LOADED, -7)],
)
def test_too_little_shared_memory_is_the_hosts_fault(text: str, exit_code: int) -> None:
    """LF-11"""
    found = of(text, exit_code)
    assert (type(found), found.reason) == (FailedTrial, "shm_exhausted")
    assert found.advice is not None
    assert "--shm-size" in found.advice


@pytest.mark.parametrize(
    "text",
    [
        "[2026-12-01 11:02:40] Port is already in use. dist_init_port=23456 port_base=23457 nccl_port=28001\n",
        "ValueError: nccl_port at 28001 is not available in 30 seconds. nccl_port is used by a process already.\n",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 41823, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    ],
)
def test_a_taken_internal_port_is_retried(text: str) -> None:
    """LF-12"""
    found = of(text, 1)
    assert (type(found), found.reason) == (FailedTrial, "port_taken")


@pytest.mark.parametrize("exit_code", [1, -9])
def test_a_drafter_of_shorter_context_is_told_with_the_risk_of_the_override(exit_code: int) -> None:
    """LF-14: the text of the case."""
    text = (
        "ValueError: Warning: Target model's context_length (131072) is greater than the derived context_length "
        "(2048). This may lead to incorrect model outputs or CUDA errors.\n"
    )
    found = of(LOADED + text, exit_code)
    assert (type(found), found.reason) == (InfeasibleTrial, "draft_context_too_short")
    assert found.advice is not None
    assert "crash" in found.advice


def test_unequal_free_memory_means_that_a_gpu_is_not_free() -> None:
    text = "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n"
    found = of(text, 1)
    assert (type(found), found.reason) == (FailedTrial, "gpu_not_free")


CRASH = (
    "[2026-12-01 12:00:44 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
)


@pytest.mark.parametrize("exit_code", [-9, None])
def test_a_crash_under_load_is_a_runtime_crash_even_while_the_main_process_lives(exit_code: int | None) -> None:
    """LF-18: the log of the case."""
    found = of(READY + CRASH, exit_code, Phase.MEASURE)
    assert (type(found), found.reason) == (FailedTrial, "runtime_crash")
    assert found.detail == "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def test_running_out_of_memory_under_load_is_told_apart_from_loading() -> None:
    """LF-18"""
    text = READY + SCHEDULER + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.\n"
    found = of(text, -9, Phase.MEASURE)
    assert (type(found), found.reason) == (FailedTrial, "oom_runtime")


def test_words_of_the_start_explain_nothing_once_the_server_was_ready() -> None:
    retried_bind = "[2026-12-01 11:59:00] Address already in use, trying the next port\n"
    assert of(retried_bind + READY + CRASH, -9, Phase.MEASURE).reason == "runtime_crash"


def test_a_silent_server_hangs_and_a_killed_one_was_killed() -> None:
    assert of(LOADED, None).reason == "hang"
    assert of(READY, None, Phase.MEASURE).reason == "hang"
    killed = of(LOADED, -9)
    assert (type(killed), killed.reason) == (FailedTrial, "engine_died")
    assert "killed from outside" in str(killed)


def test_what_nobody_knows_keeps_its_decisive_line_and_is_the_hosts_until_shown_otherwise() -> None:
    text = LOADED + SCHEDULER + "ZeroDivisionError: integer division or modulo by zero\n" + OWN_KILL
    found = of(text, -9)
    assert (type(found), found.reason) == (FailedTrial, "unknown")
    assert found.detail == "ZeroDivisionError: integer division or modulo by zero"


def test_an_end_without_a_word_is_not_unknown_but_a_death_of_which_only_the_exit_code_is_known() -> None:
    child = of(LOADED + "Rank 3 scheduler died during initialization (exit code: -11). If exit code is -9\n", 1)
    assert (type(child), child.reason) == (FailedTrial, "engine_died")
    assert child.detail == "Rank 3 scheduler died during initialization (exit code: -11)"
    assert child.facts == {"rank": "3", "exit_code": "-11", "phase": "weights"}
    assert of(LOADED, 1).reason == of(LOADED + OWN_KILL, -9).reason == "engine_died"


def test_running_out_of_memory_in_a_capture_names_the_graph_and_two_knobs_only() -> None:
    """LF-01"""
    begin = "[2026-12-01 10:04:39 TP0] Capture target verify CUDA graph begin. backend=full, avail mem=3.11 GB\n"
    what = (
        "CUDA out of memory. Tried to allocate 1.27 GiB. GPU 5 has a total capacity of 94 GiB of which 1 MiB is free."
    )
    found = of(f"{LOADED}{begin}{SCHEDULER}Exception: Capture cuda graph failed: {what}\n{OWN_KILL}")
    assert str(found) == (
        "a GPU ran out of memory while the target verify graph was captured, 3.11 GB were free before, "
        "1.27 GiB were asked for"
    )
    assert found.advice == "Use a smaller cuda_graph_max_bs or a smaller mem_fraction_static."


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.84",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.84. Raise "
        "--mem-fraction-static above 0.871 (minimum viable = 1 - available/pre = 0.8702).",
        "RuntimeError: The DSV4 SWA pool cap (4096 tokens, 1.20 GB) leaves no room for the full KV pool within the "
        "available 1.00 GB. Reduce --max-running-requests, or increase --mem-fraction-static.",
    ],
)
def test_the_two_memory_errors_have_opposite_remedies(line: str) -> None:
    """LF-03: in the words of 0.5.9 and of 0.5.14 and later."""
    budget = of(f"{LOADED}{SCHEDULER}{line}\n")
    allocation = of(f"{LOADED}{SCHEDULER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert (budget.reason, allocation.reason) == ("oom_kv_budget", "oom_alloc")
    assert (budget.advice, allocation.advice) == ("Raise mem_fraction_static.", "Lower mem_fraction_static.")
    assert isinstance(budget, InfeasibleTrial)
    assert isinstance(allocation, InfeasibleTrial)


def test_a_drafter_may_have_no_need_of_what_the_target_does_not_give() -> None:
    """Another drafter was not shown to fail, so the lesson is bound to this one."""
    line = "ValueError: Model X does not implement set_eagle3_layers_to_capture, which EAGLE3 needs."
    found = of(LOADED + SCHEDULER + line + "\n")
    assert (found.lesson, found.within) == ("speculative_algorithm != 'EAGLE3'", ("draft_model",))


def test_an_exception_that_was_caught_is_no_cause_of_a_servers_silence() -> None:
    """Only what ends a process explains why a living server does not answer."""
    caught = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nPermissionError: [Errno 13] x\n'
    assert of(LOADED + caught, None).reason == "hang"
    assert of(LOADED + caught, 1).reason == "permission_denied"


def test_one_endless_line_of_an_exception_is_cut() -> None:
    found = of(f"{LOADED}{SCHEDULER}ValueError: {'x' * 5000}\n{OWN_KILL}")
    assert found.detail is not None
    assert len(found.detail) < 1100


@pytest.mark.parametrize("code", [-11, -6, -4, 139])
def test_a_rank_that_crashes_in_native_code_says_so(code: int) -> None:
    told = f"Fatal Python error: Segmentation fault\nSubprocess scheduler_2 (pid=7) crashed with exit code {code}.\n"
    found = of(LOADED + told + OWN_KILL)
    assert (type(found), found.reason) == (FailedTrial, "native_crash")
    assert found.facts == {"exit_code": str(code), "process": "scheduler_2", "phase": "weights"}
    assert of(READY + told + OWN_KILL, -9, Phase.MEASURE).reason == "runtime_crash"


@pytest.mark.parametrize(
    "error",
    [
        "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode",
        "unrecognized arguments: --cuda-graph-max-bs 8",
    ],
)
def test_a_flag_that_the_version_lacks_is_named(error: str) -> None:
    """LF-06: the study stops at it, since the other trials have the flag as well."""
    text = f"usage: sglang serve [-h] ...\nsglang serve: error: {error}\n"
    found = failure(text, exit_code=2, phase=Phase.READY)
    assert (found.reason, found.facts["flag"]) == ("arg_rejected", "--cuda-graph-max-bs")
