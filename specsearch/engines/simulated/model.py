"""How long the simulated machine takes and what its memory holds; pure arithmetic.

    step = draft passes + target pass + host
    pass = weights or arithmetic, whichever is longer + kernels + all-reduces      (replayed from a CUDA graph)
    pass = the above or the CPU time of launching it kernel by kernel, if longer   (eager)

All times are milliseconds and all sizes decimal GB on one GPU unless the name says otherwise.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from specsearch.engines.simulated.draft_tree import TreeShape
from specsearch.engines.simulated.profiles import Curve, Drafter, Gpu, Target

# Tokens of one sequence route alike: a further one touches only this share of new experts.
EXPERT_OVERLAP = 0.30
# An EAGLE-3 drafter is one layer of the target's width: its kernels, and its launches when eager. In the origin story
# steps take about 40 ms without graphs, a quarter of which is the drafter's here.
DRAFT_PASS_FLOOR_MS = 0.16
DRAFT_PASS_EAGER_MS = 3.5
DRAFT_WEIGHTS_SHARE = 1 / 250  # of the target's weights
DRAFT_SIZE_GB = 0.002  # at least
VERIFY_HOST_MS = 0.3  # building the tree and comparing tokens
LOOKUP_MS = 0.1  # finding one request's last words in what was said before
CONTEXT_GB = 0.6  # what a CUDA context takes
ACTIVATION_COPIES = 12  # hidden-sized tensors alive per token of a prefill chunk
GRAPH_COPIES = 40  # the same per captured token


@dataclass(frozen=True, slots=True)
class Transport:
    """What the NCCL environment makes of an all-reduce: factors on its fixed and on its size-dependent part."""

    latency: float = 1.0
    transfer: float = 1.0

    @classmethod
    def of(cls, env: Mapping[str, str], *, nvlink: bool) -> "Transport":
        """Factors of the NCCL_* variables; what is not set costs 1, unknown values too."""
        latency = transfer = 1.0
        for name, values in _NCCL_FACTORS.items():
            factors = values.get(env.get(name, "").upper(), (1.0, 1.0))
            latency, transfer = latency * factors[0], transfer * factors[1]
        channels = env.get("NCCL_MAX_NCHANNELS", "")
        if channels.isdecimal() and int(channels) > 0:
            transfer *= max(1.0, 8 / int(channels))
            latency *= 1.03 if int(channels) > 16 else 1.0
        if nvlink:  # hardly any of it matters there
            latency, transfer = latency**0.3, transfer**0.3
        return cls(latency, transfer)


# LL trades bandwidth for latency, Simple the reverse, LL128 sits between; a ring suits eight GPUs behind PCIe
# switches. The tendencies are NCCL's, the sizes a choice that makes 1 and 16 verified tokens want different ones.
_NCCL_FACTORS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "NCCL_PROTO": {"LL": (0.68, 1.55), "LL128": (0.88, 1.05), "SIMPLE": (1.25, 0.95)},
    "NCCL_ALGO": {"RING": (0.93, 0.97), "TREE": (1.12, 1.15)},
    "NCCL_P2P_LEVEL": {"SYS": (0.95, 0.93), "LOC": (1.3, 1.4)},
    "NCCL_P2P_DISABLE": {"1": (1.3, 1.4)},
    "NCCL_NTHREADS": {"512": (1.0, 0.97), "64": (1.05, 1.2)},
}
# NCCL has no such path on a PCIe node and refuses the first collective.
ALGORITHMS_OF_NVLINK = frozenset({"NVLS", "NVLSTREE", "COLLNETDIRECT", "COLLNETCHAIN"})


def interpolate(curve: Curve, elements: float) -> float:
    """The curve at that size, continued on its outer slopes, never below its first value."""
    for (low, low_us), (high, high_us) in itertools.pairwise(curve):
        if elements <= high or high == curve[-1][0]:
            value = low_us + (high_us - low_us) * (elements - low) / (high - low)
            return max(value, curve[0][1])
    raise ValueError("a curve needs two points")


@dataclass(frozen=True, slots=True)
class Machine:
    """One launch: hardware, models and the settings that decide how long a step takes."""

    gpu: Gpu
    target: Target
    tp_size: int = 8
    drafter: Drafter | None = None
    tree: TreeShape | None = None  # None: plain decoding
    graph_batches: tuple[int, ...] = ()  # captured batch sizes; empty: graphs off
    custom_all_reduce: bool = True
    transport: Transport = Transport()
    is_ngram: bool = False  # guesses are looked up, no drafter is loaded
    draft_graph: bool = True  # whether the drafter's own passes are captured with the target's

    @property
    def width(self) -> int:
        """Tokens of one request that the target computes in one step."""
        return self.tree.num_draft_tokens if self.tree else 1

    @property
    def loads_a_drafter(self) -> bool:
        return self.tree is not None and not self.is_ngram

    def in_graph(self, batch: int) -> bool:
        """Whether a decode step of that many requests replays a captured graph."""
        return bool(self.graph_batches) and batch <= max(self.graph_batches)

    def all_reduce_ms(self, tokens: int) -> float:
        """One all-reduce of the hidden states of that many tokens."""
        if self.tp_size == 1:
            return 0.0
        elements = tokens * self.target.hidden
        if self.custom_all_reduce and self.gpu.custom_us:
            return interpolate(self.gpu.custom_us, elements) / 1e3
        fixed = self.gpu.nccl_us[0][1]
        sized = interpolate(self.gpu.nccl_us, elements) - fixed
        return (fixed * self.transport.latency + sized * self.transport.transfer) / 1e3

    def step_ms(self, batch: int, context_tokens: int = 0) -> float:
        """One decode step of `batch` requests that hold `context_tokens` together, noise left out."""
        graph = self.in_graph(batch)
        target = self._target_pass_ms(batch, context_tokens, graph)
        if self.tree is None:
            return target + self.target.host_ms
        draft = LOOKUP_MS * batch if self.is_ngram else self._draft_ms(batch, self.tree, graph and self.draft_graph)
        return target + draft + self.target.host_ms + VERIFY_HOST_MS

    def prefill_ms(self, tokens: int) -> float:
        """One prefill batch of that many new tokens, launched eagerly, the drafter's included."""
        arithmetic = self._arithmetic_ms(tokens)
        reduces = 2 * self.target.layers * self.all_reduce_ms(max(tokens, 1))
        draft = DRAFT_PASS_EAGER_MS * self._scale if self.loads_a_drafter else 0.0
        return max(self._weights_ms(1) + arithmetic + reduces, self.target.eager_ms) + draft + self.target.host_ms

    @property
    def _scale(self) -> float:
        """How heavy the target is to launch, relative to the one that the drafter's constants were set for."""
        return self.target.eager_ms / 30

    def _target_pass_ms(self, batch: int, context_tokens: int, graph: bool) -> float:
        tokens = batch * self.width
        memory = self._weights_ms(batch) + context_tokens * self.kv_gb_per_token / self.gpu.bandwidth_gb_s * 1e3
        floor = self.target.graph_floor_ms * self.gpu.kernel_gap
        reduces = 2 * self.target.layers * self.all_reduce_ms(tokens)
        on_gpu = max(memory, self._arithmetic_ms(tokens)) + floor + reduces
        return on_gpu if graph else max(on_gpu, self.target.eager_ms)

    def _draft_ms(self, batch: int, tree: TreeShape, graph: bool) -> float:
        """The extend pass over the accepted tokens proposes depth 1, each further depth is a pass of its own."""
        cost = self.drafter.relative_cost if self.drafter else 1.0
        weights = self.draft_weights_gb / self.gpu.bandwidth_gb_s * 1e3
        floor = DRAFT_PASS_FLOOR_MS * self._scale * self.gpu.kernel_gap
        passes = [batch * self.width] + [batch * tree.eagle_topk] * (tree.num_steps - 1)
        total = 0.0
        for tokens in passes:
            on_gpu = weights + floor + 2 * self.all_reduce_ms(tokens)
            total += on_gpu if graph else max(on_gpu, DRAFT_PASS_EAGER_MS * self._scale)
        return total * cost

    def _weights_ms(self, batch: int) -> float:
        routed = batch * (1 + (self.width - 1) * EXPERT_OVERLAP)
        touched = 1 - math.pow(1 - self.target.experts_per_token, routed)
        read_gb = (self.target.dense_gb + self.target.expert_gb * touched) / self.tp_size
        return read_gb / self.gpu.bandwidth_gb_s * 1e3

    def _arithmetic_ms(self, tokens: int) -> float:
        flops = 2 * self.target.active_parameters * tokens
        return flops / (self.tp_size * self.gpu.tflops * 1e12) * 1e3

    @property
    def draft_weights_gb(self) -> float:
        return max(self.target.weights_gb * DRAFT_WEIGHTS_SHARE, DRAFT_SIZE_GB) / self.tp_size

    @property
    def kv_gb_per_token(self) -> float:
        share = 1 if self.target.kv_replicated else self.tp_size
        return self.target.kv_bytes_per_token / share / 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """What one GPU holds; `kv_gb` at or below 0 means that the static fraction leaves no room for a cache."""

    total_gb: float
    target_gb: float
    draft_gb: float
    kv_gb: float
    kv_tokens: int
    graph_gb: float
    activation_gb: float

    @property
    def after_weights_gb(self) -> float:
        return self.total_gb - CONTEXT_GB - self.target_gb - self.draft_gb

    @property
    def after_kv_gb(self) -> float:
        return self.after_weights_gb - self.kv_gb

    @property
    def after_graphs_gb(self) -> float:
        return self.after_kv_gb - self.graph_gb

    @property
    def used_gb(self) -> float:
        return self.total_gb - self.after_graphs_gb


def memory_of(
    machine: Machine, *, mem_fraction_static: float, prefill_tokens: int, max_total_tokens: int | None
) -> Memory:
    """The memory of one GPU of the machine."""
    total = machine.gpu.memory_gb
    target = machine.target.weights_gb / machine.tp_size
    draft = machine.draft_weights_gb if machine.loads_a_drafter else 0.0
    kv = (total - CONTEXT_GB) * mem_fraction_static - target - draft
    per_token = machine.kv_gb_per_token * (1 + 1 / machine.target.layers if machine.loads_a_drafter else 1)
    tokens = max(0, int(kv / per_token))
    if max_total_tokens is not None and tokens > max_total_tokens:
        tokens, kv = max_total_tokens, max_total_tokens * per_token
    return Memory(
        total_gb=total,
        target_gb=target,
        draft_gb=draft,
        kv_gb=kv,
        kv_tokens=tokens,
        graph_gb=graph_gb(machine, max(machine.graph_batches, default=0)),
        activation_gb=prefill_tokens * machine.target.hidden * 2 * ACTIVATION_COPIES / 1e9,
    )


def graph_gb(machine: Machine, largest_batch: int) -> float:
    """What the captured graphs take: buffers for every token of the largest batch (LF-01)."""
    per_token = machine.target.vocabulary * 4 / machine.tp_size + machine.target.hidden * 2 * GRAPH_COPIES
    return largest_batch * machine.width * per_token / 1e9


def default_fraction(machine: Machine, *, prefill_tokens: int, largest_batch: int) -> float:
    """The static fraction SGLang would choose: all but room for graphs, a prefill chunk and a reserve."""
    activation = prefill_tokens * machine.target.hidden * 2 * ACTIVATION_COPIES / 1e9
    reserve = 2.0 + 1.2 * (graph_gb(machine, largest_batch) + activation)
    return round(max(0.1, 1 - reserve / machine.gpu.memory_gb), 3)
