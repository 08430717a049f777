"""The facts about a host that make two measurements comparable or not."""

import functools
import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path

import specsearch
from specsearch.errors import SpecSearchError
from specsearch.host.gpus import Gpus

_TOPOLOGY_TIMEOUT_S = 10.0  # takes about 1 s on 8 GPUs


def host_facts(gpus: Gpus | None) -> dict[str, str]:
    """What this host is; a fact that cannot be had is left out, nothing is raised."""
    facts = {
        "hostname": socket.gethostname(),
        "kernel": platform.release(),
        "cpu_model": _cpu_model(),
        "cpu_count": str(len(os.sched_getaffinity(0))),  # those that we may use
        "memory_gib": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f}",
        "container": "yes" if _is_container() else "no",
        "python": platform.python_version(),
        "specsearch": specsearch.__version__,
    }
    if gpus is not None:
        facts |= _gpu_facts(gpus)
    return {name: value for name, value in facts.items() if value}


def _gpu_facts(gpus: Gpus) -> dict[str, str]:
    try:
        readings, driver, cuda = gpus.read(), gpus.driver_version(), gpus.cuda_version()
    except SpecSearchError:
        return {}
    return {
        "gpu_count": str(len(readings)),
        "gpu_names": ", ".join(sorted({reading.name for reading in readings})),
        "gpu_memory_gib": ", ".join(sorted({f"{reading.total_bytes / 2**30:.0f}" for reading in readings})),
        "memory_method": ", ".join(sorted({reading.method for reading in readings})),
        "driver": driver,
        "cuda_driver": cuda or "",
        "gpu_topology": _topology() if cuda and len(readings) > 1 else "",
    }


@functools.cache
def _topology() -> str:
    """What `nvidia-smi topo -m` says; asked once per process."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        done = subprocess.run([command, "topo", "-m"], capture_output=True, text=True, timeout=_TOPOLOGY_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _is_container() -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    words = ("docker", "containerd", "kubepods", "libpod", "lxc")
    return any(mark.exists() for mark in marks) or any(word in _read(Path("/proc/1/cgroup")) for word in words)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
