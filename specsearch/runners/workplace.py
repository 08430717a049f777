"""Where trials run: the node's GPUs and the folders; which GPU readings go with which engine."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specsearch.config import StudyConfig
from specsearch.host.gpus import Gpus, NvmlGpus, idle_readings, load_nvml, visible_gpu_indices
from specsearch.host.simulated_gpus import SimulatedGpus


@dataclass(frozen=True, slots=True, eq=False)
class Workplace:
    """One place in which trials run one after the other; picklable."""

    config: StudyConfig
    logs_dir: Path  # absolute
    gpu_indices: tuple[int, ...]  # ascending; empty where the engine runs on the CPU
    node: str = "local"

    @property
    def simulated_gpus_dir(self) -> Path:
        """Where the simulated engine keeps account of the memory that it pretends to hold."""
        return self.logs_dir.parent / ".simulated-gpus" / self.node


def gpus_per_trial(config: StudyConfig) -> int:
    """GPUs that one trial owns: the tensor-parallel size, none for an engine pinned to the CPU."""
    return 0 if config.engine.args.get("device") == "cpu" else config.engine.tp_size


def gpus_of(workplace: Workplace) -> Gpus:
    """The readings of the GPUs that a trial here owns."""
    return _GPUS[workplace.config.engine.type].readings(workplace)


def gpu_environment(workplace: Workplace) -> Mapping[str, str]:
    """What tells a server which GPUs are its own, in the same order in every trial."""
    return _GPUS[workplace.config.engine.type].environment(workplace)


def uses_nvml(config: StudyConfig) -> bool:
    """Whether the engine's GPUs are real ones."""
    return _GPUS[config.engine.type].nvml


def local_gpus(config: StudyConfig) -> tuple[int, ...]:
    """The GPUs of this host that a study here may use, ascending; raises HostNotFit where they cannot be read."""
    return _GPUS[config.engine.type].on_this_host(config) if gpus_per_trial(config) else ()


def idle_of(workplace: Workplace) -> Mapping[str, int]:
    """The idle readings of these GPUs by UUID, taken once per process before anything of ours runs there."""
    key = (workplace.logs_dir, workplace.node, workplace.gpu_indices)
    if key not in _IDLE:
        _IDLE[key] = idle_readings(gpus_of(workplace))
    return _IDLE[key]


_IDLE: dict[tuple[Path, str, tuple[int, ...]], Mapping[str, int]] = {}


def _simulated_gpus(workplace: Workplace) -> Gpus:
    return SimulatedGpus(workplace.simulated_gpus_dir, workplace.gpu_indices)


def _real_gpus(workplace: Workplace) -> Gpus:
    return NvmlGpus(workplace.gpu_indices, load_nvml()) if workplace.gpu_indices else _simulated_gpus(workplace)


def _simulated_environment(workplace: Workplace) -> Mapping[str, str]:
    return {
        "SPECSEARCH_SIMULATED_GPUS": str(workplace.simulated_gpus_dir),
        "SPECSEARCH_SIMULATED_GPU_INDICES": ",".join(map(str, workplace.gpu_indices)),
    }


def _real_environment(workplace: Workplace) -> Mapping[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, workplace.gpu_indices))} if workplace.gpu_indices else {}


def _simulated_gpus_here(config: StudyConfig) -> tuple[int, ...]:
    needed = config.engine.tp_size * config.cluster.trials_per_node
    return tuple(range(config.engine.simulated.gpus or needed))


def _real_gpus_here(config: StudyConfig) -> tuple[int, ...]:
    return visible_gpu_indices(os.environ, load_nvml())


class _Kind(NamedTuple):
    nvml: bool
    on_this_host: Callable[[StudyConfig], tuple[int, ...]]
    readings: Callable[[Workplace], Gpus]
    environment: Callable[[Workplace], Mapping[str, str]]


_GPUS: Mapping[str, _Kind] = {
    "sglang": _Kind(True, _real_gpus_here, _real_gpus, _real_environment),
    "simulated": _Kind(False, _simulated_gpus_here, _simulated_gpus, _simulated_environment),
}
