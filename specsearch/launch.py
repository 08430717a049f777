"""A launch as a value: what would be started, printable and comparable before anything is."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What Ray and Python tooling leave in a worker's environment and a server must not inherit:
# Ray forces OMP_NUM_THREADS=1, points PYTHONBREAKPOINT at its debugger, and so on.
INHERITED_AND_UNWANTED = (
    "OMP_NUM_THREADS",
    "PYTHONBREAKPOINT",
    "PL_DISABLE_FORK",
    "SPT_NOENV",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)
INHERITED_AND_UNWANTED_PREFIXES = ("RAY_", "TUNE_", "NCCL_", "SGLANG_", "SGL_", "SPECSEARCH_")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that starting an engine needs; making one starts nothing.

    `env` holds only what the plan sets itself; `environment` gives the whole.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    base_url: str

    def shell(self) -> str:
        """The line to paste in a terminal. Log, error and report print this one."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*assignments, shlex.join(self.argv)])

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The server's whole environment: the inherited one, scrubbed, then the plan's own variables."""
        kept = {
            name: value
            for name, value in inherited.items()
            if name not in INHERITED_AND_UNWANTED and not name.startswith(INHERITED_AND_UNWANTED_PREFIXES)
        }
        return {**kept, **self.env}
