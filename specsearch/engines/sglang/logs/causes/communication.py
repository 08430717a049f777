"""Ports, and what the ranks send each other."""

import re

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.errors import FailedTrial, InfeasibleTrial

_PORT_TAKEN = "a port was taken by another process"
_ANOTHER_PORT = "Nothing to do if it was once: a fresh port is taken for the next attempt."
_KERNEL_FAILED = "SGLang's custom all-reduce kernel failed on these GPUs"
_KERNEL_OFF = "Set custom_all_reduce: false, for the baseline too."

COMMUNICATION = (
    Cause(
        re.compile(r"no algorithm/protocol available|Unrecognized element token"),
        "nccl_config_error",
        InfeasibleTrial,
        "NCCL has no algorithm for one of its collectives under the NCCL_* variables of this trial",
        "Take the value that the line names out of the search space; some values serve some collectives only.",
        statement=True,
        within=("env.NCCL_*",),
    ),
    Cause(
        re.compile(
            r"EADDRINUSE|[Aa]ddress already in use|Port is already in use\. dist_init_port|"
            r"at \d+ is not available in \d+ seconds|Could not bind port \d+"
        ),
        "port_taken",
        FailedTrial,
        _PORT_TAKEN,
        _ANOTHER_PORT,
        starting=True,
    ),
    Cause(
        re.compile(r"error while attempting to bind on address|Port is already in use\. dist_init_port"),
        "port_taken",
        FailedTrial,
        _PORT_TAKEN,
        _ANOTHER_PORT,
        statement=True,
        logged=True,
        starting=True,
    ),
    Cause(
        # At the beginning of a line: what the kernel itself writes, never a path in the words of a compiler.
        re.compile(r"^Failed: Cuda error \S*custom_all_?reduce\w*\.cuh?\w*:\d+", re.MULTILINE),
        "custom_all_reduce_error",
        InfeasibleTrial,
        _KERNEL_FAILED,
        _KERNEL_OFF,
        statement=True,
        lesson="not custom_all_reduce",
    ),
    Cause(
        # In the first line of the exception's message; below it a compiler may name the file that it reads.
        re.compile(
            r"\A(?![^\n]*(?:[Bb]uild|[Cc]ompil|ninja|nvcc|No such file))[^\n]*(?:"
            r"'CustomAll[Rr]educe\w*' object has no attribute|"
            r"custom_all_?reduce\w*\.cuh?\w*:\d+|[Ee]rror[^\n]*\bcustom_all_reduce)"
        ),
        "custom_all_reduce_error",
        InfeasibleTrial,
        _KERNEL_FAILED,
        _KERNEL_OFF,
        frames=re.compile(r"File \"[^\"]*custom_all_reduce\w*\.py\""),
        lesson="not custom_all_reduce",
    ),
    Cause(
        re.compile(r"peer access is not supported|peer mapping resources exhausted|PeerAccessUnsupported"),
        "no_peer_access",
        FailedTrial,
        "the GPUs of this node cannot reach each other's memory",
        "Set NCCL_P2P_DISABLE=1 in engine.env, or let the container see the GPUs as peers (--ipc=host).",
        statement=True,
        starting=True,
    ),
    Cause(
        re.compile(r"atchdog caught collective operation timeout"),
        "nccl_timeout",
        FailedTrial,
        "a collective of NCCL was not finished by all ranks in its time limit",
        "Which rank was late, and why? With a first collective: check IOMMU/ACS, try NCCL_P2P_DISABLE=1.",
        statement=True,
    ),
)
