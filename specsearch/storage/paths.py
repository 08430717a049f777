"""Names in a results folder, writing whole or not at all, and the lock of a live run.

    trials/t0007-1.parquet           one part per attempt; its presence is the commit
    measurements/t0007-1.parquet     its repeats; counts only when the part in trials/ exists
    .lock                            held while a run is alive
    .t0007-1.running.json            a launch that has no row yet
    .t0007-1.measured.parquet        the row it will have unless its teardown fails
    .trials-t0007-1.parquet.tmp      a part being written

Temporary names lie beside the tables and not in them: polars refuses a folder with any other kind of file.
"""

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from specsearch.clock import Clock
from specsearch.errors import StorageError

_PART = re.compile(r"t(?P<trial>\d{4,})-(?P<attempt>\d+)\.parquet")
LOCK = ".lock"


def part_name(trial: int, attempt: int) -> str:
    """The file name of one attempt in every table."""
    return f"t{trial:04d}-{attempt}.parquet"


def parse_part_name(name: str) -> tuple[int, int] | None:
    """(trial, attempt), or None for a name that is not ours."""
    match = _PART.fullmatch(name)
    return (int(match["trial"]), int(match["attempt"])) if match else None


def note_path(folder: Path, trial: int, attempt: int) -> Path:
    """Where a launch without a row is noted."""
    return folder / f".t{trial:04d}-{attempt}.running.json"


def measured_path(folder: Path, trial: int, attempt: int) -> Path:
    """Where the row of a launch waits that was measured and is being taken down."""
    return folder / f".t{trial:04d}-{attempt}.measured.parquet"


@contextlib.contextmanager
def saying(action: str) -> Iterator[None]:
    """Turn what the file system refuses into a StorageError that says what was tried and what to do."""
    try:
        yield
    except OSError as error:
        name = f" {error.filename}" if error.filename else ""
        raise StorageError(
            f"cannot {action}{name}: {error.strerror or error}; rows written before are untouched. "
            "Make room or make the folder writable, then run the same command again"
        ) from error


def write_whole(path: Path, content: bytes, temporary: Path) -> None:
    """Put a file in place so that a reader, or a power cut, sees all of it or nothing."""
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path, clock: Clock) -> Iterator[None]:
    """Hold a folder against other runs; raises StorageError that names the holder.

    The kernel drops the lock with its holder, however that died, so what a dead run leaves is no obstacle.
    """
    with saying("lock"):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "a holder that gave no name"
            raise StorageError(
                f"{folder} is in use by a live run: {holder}; wait for it, or give this study another folder"
            ) from None
        with saying("lock"):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _holder(clock).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(clock: Clock) -> str:
    started = datetime.fromtimestamp(clock.time(), UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()}, started {started}\n"
