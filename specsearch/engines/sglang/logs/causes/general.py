"""What is known only in general; whatever is more specific stands before it."""

import re

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.errors import FailedTrial, InfeasibleTrial

CAPTURE_FAILED = r"Capture (?:[\w-]+ ){1,4}graph failed"  # of decoding, of a prefill, of a CPU

GENERAL = (
    Cause(
        re.compile(CAPTURE_FAILED),
        "graph_capture_failed",
        InfeasibleTrial,
        "capturing a CUDA graph failed",
        "Search with cuda_graph: false, or with another attention backend.",
        starting=True,
    ),
    Cause(
        re.compile(r"atchdog timeout \(self\.watchdog_timeout=[\d.]+(?:, self\.soft=False)?\)"),
        "watchdog_timeout",
        FailedTrial,
        "one step took longer than SGLang's watchdog allows",
        "The log may say what it waited for; raise watchdog_timeout if a step may take that long.",
        statement=True,
        logged=True,
    ),
    Cause(
        re.compile(
            r"(?:CUDA|HIP|cuDNN|NVRTC)(?: driver)? error: |AcceleratorError|device-side assert|"
            r"(?:CUBLAS|CUDNN)_STATUS_|cudaError[A-Z]|illegal memory access"
        ),
        "cuda_error",
        FailedTrial,
        "a computation on a GPU failed while the server started",
        "CUDA_LAUNCH_BLOCKING=1 in engine.env makes the traceback name the kernel.",
        starting=True,
    ),
    Cause(
        re.compile(r"\bNCCL [Ee]rror|\bnccl[A-Z]\w*Error|\bncclInvalid\w+"),
        "nccl_error",
        FailedTrial,
        "the communication between the ranks failed",
        "NCCL_DEBUG=WARN in engine.env makes NCCL say why.",
        starting=True,
        symptom=True,
    ),
    Cause(
        re.compile(r"Fatal Python error: "),
        "native_crash",
        FailedTrial,
        "a process of the server crashed in native code",
        "The lines below it in the log name the extension module.",
        starting=True,
        symptom=True,
    ),
)

WARM_UP_FAILED = Cause(
    re.compile(r"warmup error"),
    "warm_up_failed",
    FailedTrial,
    "the server's own first request failed or took too long",
    "The log of the scheduler has the cause; SGLANG_WARMUP_TIMEOUT sets the limit.",
    starting=True,
    symptom=True,
)
