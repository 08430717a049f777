"""Memory of the GPUs, of the host, and shared between processes."""

import re

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.errors import FailedTrial, InfeasibleTrial

OUT_OF_MEMORY = (
    r"\b(?:CUDA|HIP|NPU|XPU|MUSA)(?: driver)?(?: error:)? out of memory|\bOutOfMemoryError|"
    r"(?:CUBLAS|HIPBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|"
    r"(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)|(?:Cuda|HIP) failure (?:\d+ )?'out of memory'|"
    r"Triton Error \[\w+\]: out of memory|Out of memory even after retracting"
)
_NO_SHARED_MEMORY = "the node has too little shared memory"
_MORE_SHARED_MEMORY = "Give the container more of it: --shm-size 32g or --ipc=host; dead servers may have filled it."
_NO_HOST_MEMORY = "the host, not a GPU, ran out of memory"
_FREE_HOST_MEMORY = "Look at `free -g` and the limit of the container; who else uses the node's memory?"

MEMORY = (
    Cause(
        re.compile(
            r"Please try to increase --mem-fraction-static|leave no GPU memory for the KV cache|"
            r"leaves no room for the full KV pool|cannot fit ONE worst-case request|"
            r"Not enough GPU memory for hybrid|state cache is too small to serve"
        ),
        "oom_kv_budget",
        InfeasibleTrial,
        "no memory is left for the KV cache within mem_fraction_static",
        "Raise mem_fraction_static.",
        starting=True,
    ),
    Cause(
        re.compile(r"(?:Prefill|Decode) out of memory|alloc_req_slots runs out of memory|pool exhausted: need"),
        "oom_runtime",
        FailedTrial,
        "the KV cache had no room left for the running requests",
        "Raise mem_fraction_static, or lower max_running_requests.",
    ),
    Cause(
        re.compile(OUT_OF_MEMORY),
        "oom_alloc",  # told apart by when it came
        InfeasibleTrial,
        "a GPU ran out of memory while the model was loaded",
        "Lower mem_fraction_static.",
    ),
    Cause(
        re.compile(r"shared memory segment /dev/shm/nccl-|Fatal Python error: Bus error"),
        "shm_exhausted",
        FailedTrial,
        _NO_SHARED_MEMORY,
        _MORE_SHARED_MEMORY,
        statement=True,
    ),
    Cause(
        re.compile(r"No space left on device: '/(?:dev/shm|psm_)"),  # psm_: how Python names its own segments
        "shm_exhausted",
        FailedTrial,
        _NO_SHARED_MEMORY,
        _MORE_SHARED_MEMORY,
    ),
    Cause(
        re.compile(
            r"an instance of 'std::bad_alloc'|^std::bad_alloc|Out of memory: Killed process|"
            r"Memory cgroup out of memory|oom-kill:|^nvcc error\s*: '\w+' died due to signal 9\b",
            re.MULTILINE,
        ),
        "host_out_of_memory",
        FailedTrial,
        _NO_HOST_MEMORY,
        _FREE_HOST_MEMORY,
        statement=True,
    ),
    Cause(
        re.compile(
            r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)|Error: std::bad_alloc|"
            r"'\w+' died due to signal 9\b|fatal error: Killed\b|Killed signal terminated program"
        ),
        "host_out_of_memory",
        FailedTrial,
        _NO_HOST_MEMORY,
        _FREE_HOST_MEMORY,
    ),
)
