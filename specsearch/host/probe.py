"""Whether this node is fit for a study, before anything is spent on it."""

import resource
from pathlib import Path

from specsearch.errors import SpecSearchError
from specsearch.host.gpus import Gpus, NvmlGpus, busy_gpus, describe_busy, idle_readings
from specsearch.host.leftovers import disk_free_bytes, shm_total_free
from specsearch.host.processes import leftovers

# NCCL takes about 10 MB per pair of ranks and channel; 64 MiB, a container's default, is too little for any 8 GPUs.
_SHM_NEEDED_BYTES = 2**30
_DISK_NEEDED_BYTES = 2**30
_DISK_COMFORTABLE_BYTES = 10 * 2**30  # a study's server logs
_FILES_COMFORTABLE = 4096


def node_problems(
    *,
    gpu_count: int,
    results_dir: Path,
    needs_nvml: bool,
    gpus: Gpus | None = None,
    shm: tuple[int, int] | None = None,
    disk_free: int | None = None,
) -> tuple[list[str], list[str]]:
    """(what forbids a study on this node, what to know of it), as sentences.

    `gpus`, `shm` (size, free) and `disk_free` are taken from the host where they are not given.
    """
    problems, warnings = [], _small_limits()
    if needs_nvml or gpus is not None:
        problems += _gpu_problems(gpu_count, gpus)
    if needs_nvml and gpu_count > 1:
        problems += _shm_problems(*(shm or shm_total_free()))
    free = disk_free_bytes(results_dir) if disk_free is None else disk_free
    if free < _DISK_NEEDED_BYTES:
        problems.append(f"{results_dir}: {_gib(free)} of disk are free, {_gib(_DISK_NEEDED_BYTES)} are needed at least")
    elif free < _DISK_COMFORTABLE_BYTES:
        warnings.append(f"{results_dir}: only {_gib(free)} of disk are free; server logs of a long study may fill them")
    return problems, warnings + _left_behind()


def _gpu_problems(gpu_count: int, gpus: Gpus | None) -> list[str]:
    try:
        gpus = gpus or NvmlGpus()
        readings, idle = gpus.read(), idle_readings(gpus)
    except SpecSearchError as error:
        return list(getattr(error, "problems", (str(error),)))
    problems = []
    if len(readings) < gpu_count:
        problems.append(f"{gpu_count} GPUs are asked for, {len(readings)} can be seen here")
    if busy := busy_gpus(readings, idle):
        problems.append(f"{describe_busy(busy, idle)}; end what runs there, or set CUDA_VISIBLE_DEVICES")
    return problems


def _shm_problems(total: int, free: int) -> list[str]:
    if free >= _SHM_NEEDED_BYTES:
        return []
    return [
        f"/dev/shm has {_gib(free)} free of {_gib(total)}, {_gib(_SHM_NEEDED_BYTES)} are needed for several GPUs: "
        "start the container with --shm-size=16g or --ipc=host"
    ]


def _small_limits() -> list[str]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files >= _FILES_COMFORTABLE or files == resource.RLIM_INFINITY:
        return []
    return [f"a process may open {files} files only (hard limit {most}): ulimit -n {_FILES_COMFORTABLE}"]


def _left_behind() -> list[str]:
    return [
        f"{process} of trial {process.trial} was left behind by an earlier run; nothing watches it any more"
        for process in leftovers()
    ]


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
