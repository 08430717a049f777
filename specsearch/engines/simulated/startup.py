"""Loading a model: the log lines of SGLang in their order, scaled in time, with what may go wrong at each point."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specsearch.engines.simulated.adaptive import all_steps, candidates_of
from specsearch.engines.simulated.arguments import Resolved
from specsearch.engines.simulated.faults import Fault, Faults
from specsearch.engines.simulated.logs import Log, traceback_of
from specsearch.engines.simulated.model import ALGORITHMS_OF_NVLINK, CONTEXT_GB, Machine, Memory
from specsearch.engines.simulated.processes import Crash, GpuMemory, Tree
from specsearch.engines.simulated.settings import Simulation

# Unscaled seconds: a fast local disk, and one captured batch size.
LOAD_S_PER_GB = 1.0
CAPTURE_S = 0.35
KV_S = 0.5

_MEMORY_ADVICE = """Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)
3. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)"""


@dataclass(slots=True)
class Launch:
    """Everything that loading needs to know and to tell."""

    simulation: Simulation
    seed: str  # of everything random in this launch
    resolved: Resolved
    machine: Machine
    memory: Memory
    faults: Faults
    log: Log
    tree: Tree
    gpus: GpuMemory
    crash: Crash
    command: tuple[str, ...] = ()
    captured_s: dict[str, float] = field(default_factory=dict)
    load_s: float = 0.0

    async def pass_time(self, seconds: float) -> None:
        """Let that many simulated seconds pass."""
        await asyncio.sleep(seconds * self.simulation.time_scale)

    def die_of_memory(self, what_gb: float, free_gb: float, prefix: str = "torch.OutOfMemoryError: ") -> NoReturn:
        """Crash as when an allocation fails."""
        advice = f"\n{_MEMORY_ADVICE}" if prefix.startswith("Exception") else ""
        error = (
            f"{prefix}CUDA out of memory. Tried to allocate {max(what_gb, 0.01):.2f} GiB. GPU 0 has a total capacity "
            f"of {self.machine.gpu.memory_gb:.2f} GiB of which {max(free_gb, 0.0):.2f} GiB is free.{advice}"
        )
        self.crash(traceback_of(error, 'managers/scheduler.py", line 4931, in run_scheduler_process'), serving=False)


async def load(launch: Launch) -> None:
    """Everything from the first weight to the last graph; comes back when the server may listen, or not at all."""
    await _strike(launch, "begin")
    await _load_weights(launch)
    await _strike(launch, "kv")
    await _allocate_cache(launch)
    await _strike(launch, "capture")
    await _capture_graphs(launch)
    _log_sizes(launch)


async def _load_weights(launch: Launch) -> None:
    memory, log = launch.memory, launch.log
    log.rank("Memory baseline taken. mem usage=0.00 GB")
    _check_collectives(launch)
    _tell_of_custom_all_reduce(launch)
    free = memory.total_gb - CONTEXT_GB
    models = [(launch.machine.target.architecture, memory.target_gb)]
    if launch.machine.loads_a_drafter:
        path = launch.resolved.args.speculative_draft_model_path
        models.append(
            ("LlamaForCausalLMEagle3" if path else models[0][0], memory.draft_gb if path else memory.target_gb)
        )
    _check_draft_context(launch)
    for architecture, size_gb in models:
        log.rank(f"Load weight begin. avail mem={free:.2f} GB")
        if size_gb > free:
            launch.die_of_memory(size_gb, free)
        seconds = size_gb * LOAD_S_PER_GB
        await launch.pass_time(seconds)
        free -= size_gb
        launch.load_s += seconds
        launch.gpus.hold(launch.tree, memory.total_gb - free)
        log.rank(
            f"Load weight end. elapsed={seconds:.2f} s, type={architecture}, avail mem={free:.2f} GB, "
            f"mem usage={size_gb:.2f} GB."
        )


def _check_draft_context(launch: Launch) -> None:
    """A drafter made for less text than the server takes is refused, unless a variable stretches it (LF-14)."""
    drafter, asked = launch.machine.drafter, launch.resolved.args.context_length
    own = drafter.context_length if drafter else None
    is_stretched = os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true")
    if own is not None and own < asked and not is_stretched:
        error = (
            f"ValueError: Warning: Target model's context_length ({asked}) is greater than the derived context_length "
            f"({own}). This may lead to incorrect model outputs or CUDA errors. To allow overriding this maximum, set "
            "the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        )
        launch.crash(traceback_of(error), serving=False)


def _check_collectives(launch: Launch) -> None:
    """NCCL refuses an algorithm that the node has no hardware for (LF-10)."""
    algorithm = os.environ.get("NCCL_ALGO", "").upper()
    if algorithm in ALGORITHMS_OF_NVLINK and launch.machine.tp_size > 1 and not launch.machine.gpu.nvlink:
        launch.crash(
            traceback_of(
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, invalid usage\nLast error:\n"
                "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. "
                f"NCCL_ALGO was set to {algorithm}."
            ),
            serving=False,
        )


def _tell_of_custom_all_reduce(launch: Launch) -> None:
    """Without NVLink SGLang switches its kernel off for more than two GPUs, whatever was asked."""
    machine = launch.machine
    if machine.custom_all_reduce and machine.tp_size > 2 and not machine.gpu.nvlink:
        launch.log.rank(
            "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
            "To silence this warning, specify disable_custom_all_reduce=True explicitly."
        )


async def _allocate_cache(launch: Launch) -> None:
    memory, log, args = launch.memory, launch.log, launch.resolved.args
    if (
        launch.machine.loads_a_drafter and not args.speculative_draft_model_path
    ):  # LF-13: the target was loaded as its own drafter
        name = launch.machine.target.architecture
        error = f"AttributeError: '{name}' object has no attribute 'hot_token_id'"
        launch.crash(traceback_of(error, 'speculative/eagle_worker_v2.py", line 298, in init_lm_head'), serving=False)
    if memory.kv_tokens <= 0:
        _die_of_kv_budget(launch)
    await launch.pass_time(KV_S)
    launch.gpus.hold(launch.tree, memory.total_gb - memory.after_kv_gb)
    log.rank(
        f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {memory.kv_tokens}, "
        f"K size: {memory.kv_gb / 2:.2f} GB, V size: {memory.kv_gb / 2:.2f} GB"
    )
    log.rank(f"Memory pool end. avail mem={memory.after_kv_gb:.2f} GB")


def _die_of_kv_budget(launch: Launch) -> NoReturn:
    error = (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        f"Current value: mem_fraction_static={launch.resolved.args.mem_fraction_static}"
    )
    launch.crash(traceback_of(error), serving=False)


async def _capture_graphs(launch: Launch) -> None:
    """Target, then the drafter's own decode graph, which exists for more than one step only."""
    batches, tree = launch.resolved.graph_batches, launch.machine.tree
    if not batches:
        return
    free = launch.memory.after_kv_gb
    graphs = [("target verify" if tree else "target decode", launch.machine.width, launch.memory.graph_gb)]
    drafts = launch.machine.loads_a_drafter and launch.machine.draft_graph
    if tree and drafts and tree.num_steps > 1:
        graphs.append(("draft decode", tree.eagle_topk, 0.0))
    if drafts:
        graphs.append(("draft extend", launch.machine.width, 0.0))
    for name, width, size_gb in graphs:
        sizes = ", ".join(map(str, batches))
        launch.log.rank(
            f"Capture {name} CUDA graph begin. backend=full, num_tokens_per_req={width}, bs=[{sizes}], "
            f"avail mem={free:.2f} GB"
        )
        if size_gb > free:
            launch.die_of_memory(size_gb, free, "Exception: Capture cuda graph failed: ")
        seconds = len(batches) * CAPTURE_S
        await launch.pass_time(seconds)
        free -= size_gb
        launch.captured_s[name.replace(" ", "_")] = seconds
        launch.log.rank(
            f"Capture {name} CUDA graph end. elapsed={seconds:.2f} s, mem usage={size_gb:.2f} GB, "
            f"avail mem={free:.2f} GB."
        )
    launch.gpus.hold(launch.tree, launch.memory.used_gb)
    if launch.resolved.args.speculative_adaptive:
        for steps in all_steps(candidates_of(launch.resolved.args.speculative_adaptive_config)):
            launch.log.rank(f"Built adaptive runtime state steps={steps}: elapsed={CAPTURE_S:.2f}s, mem=0.00GB")


def _log_sizes(launch: Launch) -> None:
    args, memory, captured = launch.resolved.args, launch.memory, launch.captured_s
    launch.log.rank(
        f"max_total_num_tokens={memory.kv_tokens}, chunked_prefill_size={args.chunked_prefill_size}, "
        f"max_prefill_tokens={args.max_prefill_tokens}, max_running_requests={args.max_running_requests}, "
        f"context_len={args.context_length}, available_gpu_mem={memory.after_graphs_gb:.2f} GB"
    )
    graphs = ", ".join(f"{name}={seconds:.2f}" for name, seconds in captured.items())
    launch.log.parent(
        f"Engine startup timings (s): load_weight={launch.load_s:.2f}, kv_cache_allocation={KV_S:.2f}, "
        f"scheduler_e2e={launch.load_s + KV_S + sum(captured.values()):.2f}, cuda_graph={{{graphs}}}, "
        "tokenizer_e2e=1.00"
    )


def check_warm_up(launch: Launch) -> None:
    """What only the first real pass finds out: a tree that is too small (LF-02), no room for activations."""
    tree, memory = launch.machine.tree, launch.memory
    if tree and tree.eagle_topk > 1 and launch.machine.loads_a_drafter:
        candidates = tree.eagle_topk + (tree.num_steps - 1) * tree.eagle_topk**2
        if tree.num_draft_tokens - 1 > candidates:
            frame = 'speculative/eagle_utils.py", line 110, in organize_draft_results'
            launch.crash(traceback_of("RuntimeError: selected index k out of range", frame), serving=True)
    if memory.activation_gb > memory.after_graphs_gb:
        launch.die_of_memory(memory.activation_gb, memory.after_graphs_gb)


async def _strike(launch: Launch, moment: str) -> None:
    for kind, strike in _STRIKES[moment].items():
        fault = launch.faults.get(kind)
        if fault:
            await strike(launch, fault)


async def _slow_start(launch: Launch, fault: Fault) -> None:
    """A line each interval, in real seconds, as kernels being compiled would show (LF-16)."""
    done = 0.0
    while done < fault.number("seconds"):
        pause = min(fault.number("interval_s"), fault.number("seconds") - done)
        await asyncio.sleep(pause)
        done += pause
        launch.log.rank(f"DeepGEMM warmup: {done / fault.number('seconds'):.0%}")


async def _flood(launch: Launch, fault: Fault) -> None:
    lines = int(fault.number("lines"))
    for number in range(lines):
        launch.log.raw(
            f"node:811:811 [0] NCCL INFO Channel {number:05d}/{lines} : 0[3000] -> 1[4000] via SHM/direct/direct"
        )


async def _write_shm(launch: Launch, fault: Fault) -> None:
    """Files as SGLang leaves when it is killed (RC-11)."""
    for number in range(int(fault.number("files"))):
        Path(f"/dev/shm/sglang_loads_{os.getpid()}_{number}").write_bytes(b"\0" * 4096)


async def _never_ready(launch: Launch, fault: Fault) -> None:
    if fault.text("where") == "collective":
        launch.log.raw("node:811:811 [0] NCCL INFO comm 0x55d0 rank 0 nranks 8 cudaDev 0 busId 3000 - Init COMPLETE")
    else:
        launch.log.rank(f"Load weight begin. avail mem={launch.machine.gpu.memory_gb:.2f} GB")
    await asyncio.Event().wait()


async def _die_loading(launch: Launch, fault: Fault) -> None:
    launch.log.rank(f"Load weight begin. avail mem={launch.machine.gpu.memory_gb:.2f} GB")
    launch.log.raw(traceback_of(fault.text("message"), 'model_loader/loader.py", line 1, in load_model'))
    exit_code = int(fault.number("exit_code"))
    if exit_code < 0:
        os.kill(os.getpid(), -exit_code)
    launch.tree.end()
    sys.stderr.flush()
    os._exit(exit_code)


async def _port_in_use_once(launch: Launch, fault: Fault) -> None:
    """The store's port is taken on the first attempt; the state file remembers (LF-12)."""
    state_file = Path(fault.text("state_file"))
    if not state_file.exists():
        state_file.write_text("1")
        error = (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 41823, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        )
        launch.crash(traceback_of(error), serving=False)


async def _oom_load(launch: Launch, fault: Fault) -> None:
    launch.log.rank("Load weight begin. avail mem=1.10 GB")
    launch.die_of_memory(2.0, 1.1)


async def _oom_kv(launch: Launch, fault: Fault) -> None:
    _die_of_kv_budget(launch)


async def _oom_graph(launch: Launch, fault: Fault) -> None:
    if launch.resolved.graph_batches:
        _log_capture(launch)
        launch.die_of_memory(1.27, 0.81, "Exception: Capture cuda graph failed: ")


async def _refuse_graphs(launch: Launch, fault: Fault) -> None:
    if launch.resolved.graph_batches:
        _log_capture(launch)
        error = (
            f"Exception: Capture cuda graph failed: operation not permitted when stream is capturing\n{_MEMORY_ADVICE}"
        )
        launch.crash(traceback_of(error), serving=False)


def _log_capture(launch: Launch) -> None:
    role = "target verify" if launch.machine.tree else "target decode"
    launch.log.rank(
        f"Capture {role} CUDA graph begin. backend=full, num_tokens_per_req={launch.machine.width}, avail mem=0.81 GB"
    )


Strike = Callable[[Launch, Fault], Awaitable[None]]
_STRIKES: Mapping[str, Mapping[str, Strike]] = {
    "begin": {
        "writes_shm": _write_shm,
        "log_flood": _flood,
        "slow_start": _slow_start,
        "port_in_use_once": _port_in_use_once,
        "oom_load": _oom_load,
        "dies_loading": _die_loading,
        "never_ready": _never_ready,
    },
    "kv": {"oom_kv": _oom_kv},
    "capture": {"oom_graph": _oom_graph, "graphs_refused": _refuse_graphs},
}
