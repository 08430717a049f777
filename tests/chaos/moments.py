"""Following a run to a phase: by its notes, its server's processes and its server's log."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.scene import Scene, wait_until

# The write or removal by which a moment is known exactly: what the process is held at.
HELD_AT: Mapping[str, str] = {
    "claim": r"os\.rename .*/\.t{trial:04d}-1\.running\.tmp$",
    "gpus_free": r"os\.rename .*/\.t{trial:04d}-1\.running\.tmp$",
    "row_write": r"os\.rename .*/\.trials-t{trial:04d}-1\.parquet\.tmp$",
    "note": r"open .*/\.t{trial:04d}-1\.running\.tmp$",
    "measured": r"open .*/\.t{trial:04d}-1\.measured\.tmp$",
    "measurements": r"open .*/\.measurements-t{trial:04d}-1\.parquet\.tmp$",
    "trials": r"open .*/\.trials-t{trial:04d}-1\.parquet\.tmp$",
    "forget": r"os\.remove .*/\.t{trial:04d}-1\.running\.json$",
    "log": r"open .*/logs/t{trial:04d}-1\.log$",
    "ledger": r"open .*/\.simulated-gpus/.*/gpu0/\.\d+\.json",
    "study_log": r"open .*/\.t{trial:04d}-1\.running\.tmp$",
}
# What the server's log says once a phase has begun.
_LOGGED: Mapping[str, Callable[[str], bool]] = {
    "load": lambda log: "Load weight begin" in log,
    "capture": lambda log: " CUDA graph begin" in log or "max_total_num_tokens=" in log,
    "ready": lambda log: "Application startup complete" in log,
    "verify": lambda log: '"GET /server_info' in log,
    "warm_up": lambda log: '"POST /generate' in log,
    "measure": lambda log: "Cache flushed" in log,
    "teardown": lambda log: '"POST /abort_request' in log,
}
KEPT_MEMORY = "{kind: memory_kept, release_after_s: 1.5}"  # gives the phase memory_free some length
DEAF = "{kind: ignores_sigterm}"  # gives the phase teardown some length, and leaves nothing to a server's good will
STRANGER_BYTES = 40 << 30


@dataclass(frozen=True, slots=True)
class Hold:
    """Where a process of the run waits to be struck."""

    folder: Path

    def environment(self, pattern: str) -> dict[str, str]:
        return {
            "CHAOS_HOLD": f"{pattern}|{self.folder}",
            "PYTHONPATH": f"{Path(__file__).parent / 'preload'}:{Path(__file__).parents[2]}",
        }

    @property
    def pid(self) -> int | None:
        """The process that waits; None while none does."""
        path = self.folder / "at"
        return int(path.read_text()) if path.exists() and path.read_text() else None

    def let_go(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "go").touch()


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody else's memory on the first GPU, which the phase gpus_free waits for."""

    path: Path

    def come(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"bytes": STRANGER_BYTES, "foreign": True, "pid": 1, "command": "a stranger"}))

    def go(self) -> None:
        self.path.unlink(missing_ok=True)


def reach(phase: str, scene: Scene, trial: int, alive: Callable[[], bool], seconds: float) -> bool:
    """Wait for a phase of a trial; False when it passed unseen, or the run ended before."""
    is_there = _condition(phase, scene, trial)
    over = lambda: not alive() or scene.has_row(trial)  # noqa: E731
    reached = False

    def look() -> bool:
        nonlocal reached
        reached = is_there()
        return reached or over()

    return wait_until(look, seconds) and reached


def _condition(phase: str, scene: Scene, trial: int) -> Callable[[], bool]:
    if phase == "launch":
        return lambda: any(process.trial == trial for process in scene.processes())
    if phase == "memory_free":
        return lambda: "Gracefully exiting" in scene.log_of(trial) and not any(p.is_served for p in scene.processes())
    return lambda: _LOGGED[phase](scene.log_of(trial))
