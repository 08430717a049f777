"""What can be simulated: GPUs, target models and drafters, each a few physical figures.

Sizes are decimal GB, bandwidths and FLOP rates what kernels achieve rather than what a data sheet promises.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Curve = tuple[tuple[int, float], ...]  # (elements of two bytes, µs), rising


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node of eight, and how the eight reduce a tensor together."""

    name: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops: float
    nvlink: bool
    kernel_gap: float  # time between kernels of a replayed graph, relative to the RTX PRO 6000
    nccl_us: Curve
    custom_us: Curve | None  # SGLang's own kernel; it switches itself off without NVLink


@dataclass(frozen=True, slots=True)
class Target:
    """A model to be served; `expert_gb` is read in the share that the tokens of a step route to."""

    name: str
    architecture: str
    layers: int
    hidden: int
    vocabulary: int
    dense_gb: float
    expert_gb: float
    experts_per_token: float  # share of the experts one token uses
    active_parameters: float
    kv_bytes_per_token: int  # on one GPU, if replicated; else of the whole model
    kv_replicated: bool
    graph_floor_ms: float  # what the kernels of a pass cost beyond memory traffic and all-reduces
    eager_ms: float  # CPU time of launching a pass kernel by kernel
    host_ms: float  # scheduling and sampling around a pass
    context_length: int

    @property
    def weights_gb(self) -> float:
        return self.dense_gb + self.expert_gb


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft model; `skill` scales the chance that its first guess is the target's token."""

    name: str
    skill: float
    relative_cost: float = 1.0
    is_eagle3: bool = True  # such a drafter is fed nothing useful under the algorithm EAGLE
    context_length: int | None = None  # tokens it was made for, beyond which it guesses badly; None: any


# All-reduce of 8 GPUs: the figures at 8 K, 64 K and 128 K elements are AIConfigurator's (NCCL 2.29.2, and SGLang's
# kernel in graph mode on H200); the outer ones continue the slopes.
GPUS: Mapping[str, Gpu] = {
    "rtx-pro-6000": Gpu(
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory_gb=95.0,
        bandwidth_gb_s=1150,
        tflops=110,
        nvlink=False,
        kernel_gap=1.0,
        nccl_us=((1024, 25.0), (8192, 27.0), (32768, 34.5), (65536, 48.0), (131072, 85.0), (1048576, 222.0)),
        custom_us=None,
    ),
    "h200": Gpu(
        name="NVIDIA H200",
        memory_gb=139.0,
        bandwidth_gb_s=3400,
        tflops=400,
        nvlink=True,
        kernel_gap=0.8,
        nccl_us=((1024, 16.0), (8192, 18.0), (65536, 21.0), (131072, 21.0), (1048576, 37.0)),
        custom_us=((1024, 3.3), (8192, 3.7), (65536, 6.7), (131072, 8.0), (1048576, 30.0)),
    ),
}

TARGETS: Mapping[str, Target] = {
    "kimi-k2.5": Target(
        name="kimi-k2.5",
        architecture="KimiK25ForConditionalGeneration",
        layers=61,
        hidden=7168,
        vocabulary=163840,
        dense_gb=22.0,
        expert_gb=573.0,
        experts_per_token=8 / 384,
        active_parameters=32e9,
        kv_bytes_per_token=61 * 576 * 2,  # multi-head latent attention: every GPU holds the whole latent
        kv_replicated=True,
        graph_floor_ms=4.65,
        eager_ms=30.0,
        host_ms=0.6,
        context_length=131072,
    ),
    "llama-8b": Target(
        name="llama-8b",
        architecture="LlamaForCausalLM",
        layers=32,
        hidden=4096,
        vocabulary=128256,
        dense_gb=16.0,
        expert_gb=0.0,
        experts_per_token=0.0,
        active_parameters=8e9,
        kv_bytes_per_token=131072,
        kv_replicated=False,
        graph_floor_ms=0.8,
        eager_ms=9.0,
        host_ms=0.5,
        context_length=131072,
    ),
    "tiny": Target(  # for tests: a step well under a millisecond, loaded in a blink
        name="tiny",
        architecture="LlamaForCausalLM",
        layers=2,
        hidden=256,
        vocabulary=4096,
        dense_gb=0.05,
        expert_gb=0.0,
        experts_per_token=0.0,
        active_parameters=2.5e7,
        kv_bytes_per_token=4096,
        kv_replicated=False,
        graph_floor_ms=0.4,
        eager_ms=1.6,
        host_ms=0.1,
        context_length=8192,
    ),
}

DRAFTERS: Mapping[str, Drafter] = {
    "eagle3": Drafter("eagle3", skill=1.0),
    "other": Drafter("other", skill=0.82),  # made for a sibling of the target
    "weak": Drafter("weak", skill=0.45),
    "short-context": Drafter("short-context", skill=1.0, context_length=256),
    "small-model": Drafter("small-model", skill=1.1, relative_cost=4.0, is_eagle3=False),  # for STANDALONE
}


def drafter_of(path: str | None, otherwise: str) -> Drafter:
    """The drafter a path names (`./drafters/weak` is the weak one), else the named default."""
    last = (path or "").rstrip("/").rpartition("/")[2].lower()
    return DRAFTERS.get(last) or DRAFTERS[otherwise]
