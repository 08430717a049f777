"""GPUs that are files: the memory of a simulated GPU is the sum of what processes have written down for it.

What a process that simulates GPU memory does, without importing this package:

    <state_dir>/gpu<index>/<pid>.json     {"bytes": int, "command": str, "start_time": int, "release_after_s": float}

- It finds `<state_dir>` in SPECSEARCH_SIMULATED_GPUS and its indices in SPECSEARCH_SIMULATED_GPU_INDICES (`0,1,2`).
- It makes the folder `gpu<index>` where there is none, writes to a name that begins with a dot and renames that; to
  change the number it does the same again; to give the memory back it removes the file.
- `start_time` is field 22 of /proc/<pid>/stat: a pid that is used again does not hold the old memory.
- A file whose process is alive counts. Once a reader has seen the process dead, the file counts for another
  `release_after_s` seconds (default 0: given back at once; negative: never), then the reader removes it. The moment
  when it was first seen dead stands in `<pid>.dead` beside it, in seconds since the epoch, so that all readers agree.
- `{"bytes": int, "foreign": true}` in a file of any name that ends with .json is somebody else's memory: it counts as
  long as the file is there. With `pid` and `command` it has a holder that can be named.
- A file that cannot be read as such counts as a full GPU, so that a mistake is never taken for free memory.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specsearch.clock import Clock, SystemClock
from specsearch.host.gpus import GpuReading, Holder
from specsearch.host.guard import read_stat

SIMULATED_TOTAL_BYTES = 96 * 2**30  # as an RTX PRO 6000 has


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """Simulated GPUs with these indices; several readers of one folder agree."""

    state_dir: Path
    indices: tuple[int, ...]
    name: str = "simulated GPU"
    total_bytes: int = SIMULATED_TOTAL_BYTES
    clock: Clock = field(default_factory=SystemClock)

    def read(self) -> list[GpuReading]:
        return [self._read(index) for index in sorted(set(self.indices))]

    def driver_version(self) -> str:
        return "simulated"

    def cuda_version(self) -> str | None:
        return None

    def _read(self, index: int) -> GpuReading:
        holders = [holder for path in self._files(index) if (holder := self._holder(path))]
        return GpuReading(
            index=index,
            uuid=f"SIMULATED-{index}",
            name=self.name,
            total_bytes=self.total_bytes,
            used_bytes=min(self.total_bytes, sum(holder.used_bytes or 0 for holder in holders)),
            reserved_bytes=0,
            method="v2",
            holders=tuple(holder for holder in holders if holder.command),
        )

    def _files(self, index: int) -> Iterable[Path]:
        paths = (self.state_dir / f"gpu{index}").glob("*.json")
        return sorted(path for path in paths if not path.name.startswith("."))

    def _holder(self, path: Path) -> Holder | None:
        """Whose memory the file stands for; without a command where nobody alive holds it, None where it is free."""
        try:
            claim = json.loads(path.read_text())
            claimed, foreign = int(claim["bytes"]), bool(claim.get("foreign"))
            pid, start_time = (0, 0) if foreign else (int(path.stem), int(claim["start_time"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return Holder(0, self.total_bytes, f"unreadable file {path.name}")
        if foreign:
            return Holder(int(claim.get("pid", 0)), claimed, claim.get("command"))
        if _is_alive(pid, start_time):
            return Holder(pid, claimed, str(claim.get("command", "")) or "?")
        return Holder(pid, claimed, None) if self._is_held_by_the_dead(path, claim) else None

    def _is_held_by_the_dead(self, path: Path, claim: Mapping[str, Any]) -> bool:
        release_after_s = float(claim.get("release_after_s", 0.0))
        seen_dead = path.with_suffix(".dead")
        now = self.clock.time()
        # There already, or the disk is full or read-only: then it counts as seen only now, and time does not free it.
        with contextlib.suppress(OSError), seen_dead.open("x") as file:
            file.write(repr(now))
        if release_after_s < 0 or now < _read_number(seen_dead, now) + release_after_s:
            return True
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            seen_dead.unlink(missing_ok=True)
        return False


def _is_alive(pid: int, start_time: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.start_time == start_time and stat.is_alive


def _read_number(path: Path, otherwise: float) -> float:
    try:
        number = float(path.read_text())
    except (OSError, ValueError):  # another reader is about to write it, or has just removed it
        return otherwise
    return number if math.isfinite(number) else otherwise
