"""The GPUs, disks, limits and tools of the node."""

import re

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.errors import FailedTrial

HOST = (
    Cause(
        re.compile(
            r"uncorrectable ECC error|uncorrectable NVLink error|fallen off the bus|GPU is lost|NVRM: Xid|"
            r"over nvlink or a hardware error|hardware stack error"
        ),
        "gpu_fault",
        FailedTrial,
        "a GPU reported a fault of its hardware",
        "Look at `dmesg` and `nvidia-smi -q`; the GPU may need a reset, or the node a repair.",
        statement=True,
    ),
    Cause(
        re.compile(r"The memory capacity is unbalanced"),
        "gpu_not_free",
        FailedTrial,
        "one GPU has much less free memory than another: something else holds memory there",
        "Look for the process that holds it with nvidia-smi.",
        starting=True,
    ),
    Cause(
        re.compile(r"No space left on device|ENOSPC|Disk quota exceeded|\[Errno 28\]"),
        "disk_full",
        FailedTrial,
        "a disk of the node is full",
        "Make room where the line says, or put the caches elsewhere (TRITON_CACHE_DIR, HF_HOME, TMPDIR).",
    ),
    Cause(
        re.compile(r"Too many open files|EMFILE|Fail(?:ed)? to create .*\[Errno 24\]"),
        "too_many_files",
        FailedTrial,
        "a process of the server may not open more files",
        "Raise the limit: `ulimit -n 65535`, or --ulimit nofile=65535 for a container.",
    ),
    Cause(
        re.compile(r"PermissionError|Permission denied|Read-only file system"),
        "permission_denied",
        FailedTrial,
        "the server may not read or write a file",
        "Give it the right, or another place for its caches (TRITON_CACHE_DIR, HF_HOME, XDG_CACHE_HOME).",
        starting=True,
    ),
    Cause(
        re.compile(
            r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|Found no NVIDIA driver|"
            r"unsupported toolchain|no CUDA-capable device|No CUDA GPUs are available|not compiled with CUDA|"
            r"non supported HW|system not yet initialized|Failed to initialize NVML|CUDA driver initialization failed"
        ),
        "host_not_fit",
        FailedTrial,
        "the driver or the GPUs of this node do not serve this build of SGLang",
        "Compare the driver that `nvidia-smi` shows with the CUDA version that torch was built for.",
        starting=True,
    ),
    Cause(
        re.compile(r"cannot open shared object file|undefined symbol|ModuleNotFoundError|\bImportError\b"),
        "software_missing",
        FailedTrial,
        "a library or Python package that this configuration needs is missing here, or is another version",
        "Install it, or add its folder to LD_LIBRARY_PATH in engine.env; another backend may do without.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"\b(?:nvcc|ninja|gcc|g\+\+|cc1plus|ptxas): (?:command )?not found|Could not find nvcc|Ninja is required|"
            r"No such file or directory: '?(?:[\w/.-]*/)?(?:nvcc|ninja|gcc|g\+\+|ptxas)\b|Failed to find C compiler|"
            r"CUDA_HOME environment variable is not set|Could not find CUDA"
        ),
        "software_missing",
        FailedTrial,
        "the tools that compile kernels are missing on this node",
        "Install ninja and the CUDA toolkit, and set CUDA_HOME and PATH in engine.env.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"No such file or directory: b?['\"]?[^'\"\n]*"
            r"(?:/\.?triton/|\.tmp\.pid_|torchinductor|flashinfer|deep_gemm|autotun|/tmp/tmp\w+/)"
        ),
        "kernel_cache",
        FailedTrial,
        "a file in a cache of compiled or tuned kernels was gone when it was wanted",
        "Does another server share or clean the cache? TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR put it elsewhere.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"Stale file handle|Input/output error|Remote I/O error|Transport endpoint is not connected|"
            r"\[Errno (?:5|107|112|116|121)\]|\(os error (?:5|107|112|116|121)\)"
        ),
        "unknown",
        FailedTrial,
        "a file system of the node failed while a file was read",
        "Is the share that holds it mounted and well? `dmesg` tells of it.",
        starting=True,
    ),
)
