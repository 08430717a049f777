"""A launch as a value: what would be started, printable and comparable before anything is."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    `env` holds only what the plan sets itself, `unset` what the server must not inherit; `environment` gives the whole.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    base_url: str
    unset: tuple[str, ...] = ()
    serve_argv: tuple[str, ...] = ()  # argv without what only the trial needs: its port, its token

    def serve(self) -> str:
        """The line to serve with: the same configuration without what belongs to this trial and this host."""
        return replace(self, argv=self.serve_argv or self.argv, env=_without_own(self.env)).shell()

    def shell(self) -> str:
        """The line to paste in a terminal. Log, error and report print this one."""
        removals = ["env", *(f"-u {name}" for name in self.unset)] if self.unset else []
        assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*removals, *assignments, shlex.join(self.argv)])

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The server's whole environment: the inherited one, scrubbed, then the plan's own variables."""
        kept = {
            name: value
            for name, value in inherited.items()
            if name not in INHERITED_AND_UNWANTED
            and name not in self.unset
            and not name.startswith(INHERITED_AND_UNWANTED_PREFIXES)
        }
        return {**kept, **self.env}


def _without_own(env: Mapping[str, str]) -> dict[str, str]:
    own = ("CUDA_VISIBLE_DEVICES", "TMPDIR", "SPECSEARCH_SIMULATED_GPUS", "SPECSEARCH_SIMULATED_GPU_INDICES")
    return {name: value for name, value in env.items() if name not in own}
