"""What the GPUs of this host hold and who holds it: NVML through nvidia-ml-py, and waiting until memory is free.

A pid that comes from NVML is only ever shown. Inside a container it may be a number of another world.
"""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from specsearch.clock import Clock, wait_until
from specsearch.errors import AbortedTrial, FailedTrial, HostNotFit, MemoryNotReleased
from specsearch.host.processes import command_of
from specsearch.trial import StopFlag

FREE_LIMIT_BYTES = 256 * 2**20  # a single CUDA context that was left behind holds 300 to 600 MiB
_IDLE_LIMIT_BYTES = 2 * 2**30  # no driver reserves as much on an idle card
_DEVICE_FILES = ("/dev/nvidia", "/dev/dxg")
NEEDED_NAMES = (
    "NVMLError",
    "nvmlInit",
    "nvmlMemory_v2",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
)
# Absent, mixed from two distributions, or as old as Python 2.
_BROKEN_MODULE = (ImportError, SyntaxError, AttributeError, NameError)
_OUTSIDE = "owner outside this container: run nvidia-smi on the host"
_NOBODY = f"no process is listed: not given back yet, or {_OUTSIDE}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that NVML lists; `command` is None when no process here can be the one that is meant."""

    pid: int
    used_bytes: int | None
    command: str | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment.

    With method v2 `used_bytes` leaves out what the driver reserves; v1 cannot tell the two apart.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None
    method: Literal["v2", "v1"]
    holders: tuple[Holder, ...] = ()
    mig: bool = False
    utilization: float | None = None  # 0 to 1
    power_w: float | None = None


class Gpus(Protocol):
    """Some GPUs of this host."""

    def read(self) -> list[GpuReading]:
        """A reading of each, in ascending order of their indices."""

    def driver_version(self) -> str:
        """Such as `580.65.06`."""

    def cuda_version(self) -> str | None:
        """The newest CUDA the driver supports, such as `13.0`; None where no CUDA is behind the GPUs."""


class NvmlGpus:
    """The GPUs with these NVML indices; without indices those that CUDA_VISIBLE_DEVICES leaves visible."""

    def __init__(
        self,
        indices: Iterable[int] | None = None,
        nvml: Any = None,  # the module pynvml, or a fake of it
        command_of_holder: Callable[[int], str | None] | None = None,
    ) -> None:
        self._nvml = nvml if nvml is not None else load_nvml()
        self._command_of_holder = command_of_holder or holder_command
        chosen = visible_gpu_indices(os.environ, self._nvml) if indices is None else indices
        self._handles = {index: self._handle(index) for index in sorted(set(chosen))}

    def read(self) -> list[GpuReading]:
        return [self._read(index, handle) for index, handle in self._handles.items()]

    def driver_version(self) -> str:
        return _text(self._optional("nvmlSystemGetDriverVersion") or "unknown")

    def cuda_version(self) -> str | None:
        version = self._optional("nvmlSystemGetCudaDriverVersion")
        return f"{version // 1000}.{version % 1000 // 10}" if version else None

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            count = self._nvml.nvmlDeviceGetCount()
            raise HostNotFit("GPUs", [f"GPU {index} is asked for, this host has {count}: {error}"]) from None

    def _read(self, index: int, handle: Any) -> GpuReading:
        nvml = self._nvml
        try:
            total, used, reserved, method = self._memory(handle)
            uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as error:
            raise FailedTrial("gpu_lost", f"GPU {index} does not answer NVML: {error}") from None
        load, milliwatts = (
            self._optional(f"nvmlDeviceGet{fact}", handle) for fact in ("UtilizationRates", "PowerUsage")
        )
        return GpuReading(
            index=index,
            uuid=uuid,
            name=name,
            total_bytes=total,
            used_bytes=used,
            reserved_bytes=reserved,
            method=method,
            holders=self._holders(handle),
            mig=(self._optional("nvmlDeviceGetMigMode", handle) or [0])[0] == 1,
            utilization=None if load is None else load.gpu / 100,
            power_w=None if milliwatts is None else milliwatts / 1000,
        )

    def _memory(self, handle: Any) -> tuple[int, int, int | None, Literal["v2", "v1"]]:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):  # FunctionNotFound, NotSupported, Unknown, version mismatch
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            return int(memory.total), int(memory.used), int(memory.reserved), "v2"
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), int(memory.used), None, "v1"

    def _holders(self, handle: Any) -> tuple[Holder, ...]:
        processes = [process for kind in ("Compute", "Graphics") for process in self._processes(kind, handle)]
        return tuple(
            Holder(process.pid, process.usedGpuMemory, self._command_of_holder(process.pid))
            for process in {process.pid: process for process in processes}.values()
        )

    def _processes(self, kind: str, handle: Any) -> list[Any]:
        for version in ("", "_v3", "_v2"):
            listed = self._optional(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
            if listed is not None:
                return list(listed)
        return []

    def _optional(self, call: str, *arguments: Any) -> Any:
        """What the call gives; None where the module, the driver or the card does not offer it."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return getattr(self._nvml, call)(*arguments)
        return None


def load_nvml() -> Any:
    """The module pynvml, started; raises HostNotFit with a sentence where that is impossible."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the old distribution says at import that it is deprecated
        try:
            nvml: Any = importlib.import_module("pynvml")
        except _BROKEN_MODULE as error:
            raise HostNotFit(
                "NVML",
                [
                    f"the module pynvml of nvidia-ml-py cannot be imported ({type(error).__name__}: {error}): pip "
                    "uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
                ],
            ) from None
    missing = [name for name in NEEDED_NAMES if not hasattr(nvml, name)]
    if missing:
        raise HostNotFit(
            "NVML",
            [
                f"the module pynvml at {getattr(nvml, '__file__', '?')} lacks {', '.join(missing)}: it comes from the "
                "deprecated distribution pynvml, not from nvidia-ml-py; pip uninstall pynvml, then pip install "
                "--force-reinstall nvidia-ml-py"
            ],
        )
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise HostNotFit("NVML", [f"no NVIDIA driver answers on this host: {error}"]) from None
    return nvml


def visible_gpu_indices(env: Mapping[str, str], nvml: Any) -> tuple[int, ...]:
    """NVML indices of the GPUs that CUDA_VISIBLE_DEVICES names by index or UUID, ascending; all where it is not set.

    An index is taken as NVML's, which is CUDA's on a host of equal cards, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    uuids = [
        _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i))) for i in range(nvml.nvmlDeviceGetCount())
    ]
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return tuple(range(len(uuids)))
    words = [word.strip() for word in value.split(",") if word.strip()]
    if "-1" in words:  # CUDA ignores what follows the first impossible entry; this one is used to hide everything
        words = words[: words.index("-1")]
    return tuple(sorted({_visible_index(word, uuids) for word in words}))


def _visible_index(word: str, uuids: Sequence[str]) -> int:
    if word.startswith("MIG-"):
        raise HostNotFit("CUDA_VISIBLE_DEVICES", [f"{word} is a slice of a GPU; tensor parallelism needs whole ones"])
    if word.isdigit() and int(word) < len(uuids):
        return int(word)
    matches = [index for index, uuid in enumerate(uuids) if not word.isdigit() and uuid.startswith(word)]
    if len(matches) != 1:
        raise HostNotFit("CUDA_VISIBLE_DEVICES", [f"{word} is none of the {len(uuids)} GPUs of this host"])
    return matches[0]


def holder_command(pid: int, device_files: tuple[str, ...] = _DEVICE_FILES) -> str | None:
    """The command of a process NVML names; None when the number must mean a process outside this container.

    Pid 1 is a container's own first process, and who holds GPU memory has a GPU's device file open.
    """
    command = command_of(pid) if pid > 1 else None
    try:
        opened = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()] if command else []
    except PermissionError:
        return command  # somebody else's: cannot be told
    except OSError:
        return None
    return command if any(path.startswith(device_files) for path in opened) else None


def idle_readings(gpus: Gpus) -> dict[str, int]:
    """Bytes that each GPU (by UUID) counts as used while nothing runs on it; needed where only v1 can be read.

    A v1 reading is believed when nobody is listed and it is below 2 GiB: a job that runs already is not idleness.
    """
    readings = gpus.read()
    _require_whole(readings)
    return {
        reading.uuid: reading.used_bytes
        for reading in readings
        if reading.method == "v1" and not reading.holders and reading.used_bytes < _IDLE_LIMIT_BYTES
    }


def held_bytes(reading: GpuReading, idle: Mapping[str, int]) -> int:
    """What somebody holds on the GPU; a v2 reading leaves out the driver's share and needs no idle reading."""
    return reading.used_bytes - (idle.get(reading.uuid, 0) if reading.method == "v1" else 0)


def busy_gpus(
    readings: Iterable[GpuReading], idle: Mapping[str, int], limit_bytes: int = FREE_LIMIT_BYTES
) -> list[GpuReading]:
    """The GPUs on which more than the limit is held, the fullest first."""
    held = functools.partial(held_bytes, idle=idle)
    return sorted((one for one in readings if held(one) > limit_bytes), key=held, reverse=True)


def describe_busy(busy: Sequence[GpuReading], idle: Mapping[str, int], limit_bytes: int = FREE_LIMIT_BYTES) -> str:
    """Which GPU holds most, what is allowed, who holds it, and the others."""
    worst, *others = (f"GPU {one.index} holds {_gib(held_bytes(one, idle))} ({_owners(one)})" for one in busy)
    return "; ".join([f"{worst}, at most {_gib(limit_bytes)} counts as free", *others])


def wait_until_free(
    gpus: Gpus,
    idle: Mapping[str, int],
    *,
    limit_bytes: int = FREE_LIMIT_BYTES,
    timeout_s: float,
    poll_s: float,
    clock: Clock,
    stop: StopFlag | None = None,
) -> float:
    """Seconds waited until every GPU was free; raises FailedTrial (`gpu_not_free`) that names GPUs and holders.

    Raises AbortedTrial when the stop flag is set meanwhile, HostNotFit for a GPU cut into MIG slices.
    """
    began = clock.monotonic()
    busy = _wait(
        gpus, idle, limit_bytes, timeout_s, poll_s, clock, lambda: stop is not None and stop.reason is not None
    )
    if not busy:
        return clock.monotonic() - began
    if stop is not None and stop.reason is not None:
        raise AbortedTrial(stop.reason, "stopped while waiting for free GPUs")
    raise FailedTrial(
        "gpu_not_free",
        f"after {timeout_s:g} s {describe_busy(busy, idle, limit_bytes)}",
        advice="end what holds the memory, or leave these GPUs out with CUDA_VISIBLE_DEVICES",
    )


def wait_until_released(
    gpus: Gpus,
    idle: Mapping[str, int],
    *,
    limit_bytes: int = FREE_LIMIT_BYTES,
    timeout_s: float,
    poll_s: float,
    clock: Clock,
    stop: StopFlag | None = None,
) -> float:
    """Seconds until what our server held was given back on every GPU; raises MemoryNotReleased otherwise.

    A hard stop looks once more and waits no longer.
    """
    began = clock.monotonic()
    busy = _wait(gpus, idle, limit_bytes, timeout_s, poll_s, clock, lambda: stop is not None and stop.hard)
    waited_s = clock.monotonic() - began
    if busy:
        raise MemoryNotReleased(f"{waited_s:.0f} s after the server ended {describe_busy(busy, idle, limit_bytes)}")
    return waited_s


def _wait(
    gpus: Gpus,
    idle: Mapping[str, int],
    limit_bytes: int,
    timeout_s: float,
    poll_s: float,
    clock: Clock,
    give_up: Callable[[], bool],
) -> list[GpuReading]:
    """The GPUs that are busy at the end of the wait."""
    busy: list[GpuReading] = []

    def is_over() -> bool:
        nonlocal busy
        readings = gpus.read()
        _require_whole(readings)
        busy = busy_gpus(readings, idle, limit_bytes)
        return not busy or give_up()

    wait_until(is_over, timeout_s=timeout_s, poll_s=poll_s, clock=clock)
    return busy


def _require_whole(readings: Iterable[GpuReading]) -> None:
    if sliced := [reading.index for reading in readings if reading.mig]:
        raise HostNotFit(
            "GPUs", [f"GPU {index} is in MIG mode; specsearch needs whole GPUs (nvidia-smi -mig 0)" for index in sliced]
        )


def _owners(reading: GpuReading) -> str:
    known = [str(holder) for holder in reading.holders if holder.command]
    return ", ".join(known) or (_OUTSIDE if reading.holders else _NOBODY)


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
