"""Why a server died: the logs of real servers, and the texts of public reports."""

from pathlib import Path

import pytest

from specsearch.engines.sglang.failures import failure
from specsearch.errors import FailedTrial, InfeasibleTrial, TrialError
from specsearch.trial import Phase

DATA = Path(__file__).parent / "data"
READY = "[2026-12-01 12:00:00] The server is fired up and ready to roll!\n"
LOADED = "[2026-12-01 10:04:10 TP0] Load weight begin. avail mem=94.02 GB\n"
SCHEDULER = "[2026-12-01 10:04:52 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
OWN_KILL = "[2026-12-01 10:04:53] Received sigquit from a child process. It usually means the child failed.\n"


def of(text: str, exit_code: int | None = -9, phase: Phase = Phase.READY) -> TrialError:
    return failure(text, exit_code=exit_code, phase=phase)


@pytest.mark.parametrize(
    ("name", "exit_code", "error", "reason", "detail"),
    [
        ("f_unknown_flag", 2, InfeasibleTrial, "arg_rejected", "unrecognized arguments: --speculative-nonsense 1"),
        (
            "f_unknown_algorithm",
            1,
            InfeasibleTrial,
            "arg_rejected",
            "ValueError: Unknown speculative algorithm name: EAGLE9",
        ),
        ("f_topk_without_steps", 1, InfeasibleTrial, "arg_rejected", "in _handle_eagle_family: AssertionError"),
        ("f_wrong_model_path", 1, InfeasibleTrial, "model_not_found", "/opt/models/nothing"),
        ("f_no_draft_path", -9, InfeasibleTrial, "missing_draft", "no attribute 'hot_token_id'"),
        ("f_tree_too_big", -9, InfeasibleTrial, "infeasible_params", "selected index k out of range"),
        ("f_port_in_use", None, FailedTrial, "port_taken", "[Errno 98]"),
    ],
)
def test_recorded_failures_are_recognised(
    name: str, exit_code: int | None, error: type[TrialError], reason: str, detail: str
) -> None:
    """LF-02, LF-12, LF-13, LF-21 and others as real servers print them."""
    found = of((DATA / f"{name}.log").read_text(), exit_code)
    assert (type(found), found.reason) == (error, reason)
    assert found.detail is not None
    assert detail in found.detail
    assert found.advice


def test_a_server_that_someone_else_stopped_did_not_crash() -> None:
    found = of((DATA / "f_memory_taken.log").read_text(), -9, Phase.MEASURE)
    assert (type(found), found.reason) == (FailedTrial, "engine_died")
    assert "someone else" in str(found)


def test_running_out_of_memory_in_a_capture_names_the_graph_and_two_knobs_only() -> None:
    """LF-01: the log of the case."""
    text = (
        "[2026-12-01 10:04:11 TP0] Load weight end. elapsed=212.41 s, type=DeepseekV3ForCausalLM, avail mem=18.02 GB.\n"
        "[2026-12-01 10:04:39 TP0] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=32, "
        "avail mem=3.11 GB\n"
        f"{SCHEDULER}"
        '  File "/opt/fake/sched.py", line 1, in run\n'
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.27 GiB. GPU 5 has a total "
        "capacity of 94.97 GiB of which 812.00 MiB is free.\n"
        "Possible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
        "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
        f"{OWN_KILL}"
    )
    found = of(text)
    assert (type(found), found.reason) == (InfeasibleTrial, "graph_capture_oom")
    assert str(found) == (
        "a GPU ran out of memory while the target verify graph was captured, 3.11 GB were free before, "
        "1.27 GiB were asked for"
    )
    assert found.advice == "Use a smaller cuda_graph_max_bs or a smaller mem_fraction_static."


def test_an_impossible_tree_is_not_taken_for_lack_of_memory_by_the_advice_below_it() -> None:
    """LF-02: the log of the case."""
    text = (
        f"{SCHEDULER}Exception: Capture cuda graph failed: selected index k out of range\n"
        "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    )
    assert of(text).reason == "infeasible_params"


def test_the_two_memory_errors_have_opposite_remedies() -> None:
    """LF-03: the texts of the case."""
    budget = of(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.84\n"
    )
    allocation = of(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity\n"
    )
    assert (budget.reason, allocation.reason) == ("oom_kv_budget", "oom_alloc")
    assert budget.advice == "Raise mem_fraction_static."
    assert allocation.advice == "Lower mem_fraction_static."
    assert isinstance(budget, InfeasibleTrial)
    assert isinstance(allocation, InfeasibleTrial)


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
    assert found.lesson == "eagle_topk <= 1"


def test_an_algorithm_that_warns_and_goes_on_with_a_chain_is_not_refused() -> None:
    """LF-05: the same words in a warning are no cause of a death."""
    warning = "WARNING DFLASH only supports speculative_eagle_topk == 1; overriding speculative_eagle_topk=4 to 1.\n"
    assert of(f"{LOADED}{warning}{SCHEDULER}RuntimeError: boom\n").reason == "engine_died"


@pytest.mark.parametrize("mistake", ["one of the arguments --a --b is required", "the tokenizer must be given"])
def test_any_usage_error_with_exit_code_2_is_the_command_lines(mistake: str) -> None:
    """LF-06: whatever the parser's words are; the same text without its exit code decides nothing."""
    text = f"usage: sglang serve [-h]\n             [--a A]\nsglang serve: error: {mistake}\n"
    found = of(text, 2)
    assert (type(found), found.reason) == (InfeasibleTrial, "arg_rejected")
    assert found.detail == f"sglang serve: error: {mistake}"
    assert of(text, 1).reason == "engine_died"


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
    text = LOADED + SCHEDULER + "ImportError: libcudart.so.13: cannot open shared object file\n" + OWN_KILL
    found = of(text, -9)
    assert (type(found), found.reason) == (FailedTrial, "engine_died")
    assert found.detail == "ImportError: libcudart.so.13: cannot open shared object file"
    child = of(LOADED + "Rank 3 scheduler died during initialization (exit code: -11). If exit code is -9\n", 1)
    assert child.detail == "Rank 3 scheduler died during initialization (exit code: -11)"
