"""What a killed server leaves in shared memory and temporary folders, and how much room there is."""

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specsearch.errors import FailedTrial

SHARED_MEMORY = Path("/dev/shm")

# Names that NCCL, PyTorch, CUDA, Python's multiprocessing and SGLang give to what they leave behind.
_FAMILIES = (
    "nccl-",
    "psm_",
    "sgl_shm_",
    "sglang_loads_",
    "torch_",
    "cuda.shm.",
    "sem.mp-",
    "sem.loky-",
    "multi_tokenizer_args_",
)
# An AF_UNIX path has 107 bytes; the longest below TMPDIR are multiprocessing's: `/pymp-xxxxxxxx/listener-xxxxxxxx`.
_LONGEST_TMPDIR = 107 - 33
_TMPDIR = "ss-"
_LOCK = ".in-use"

_owned: dict[Path, int] = {}  # folder → file descriptor that holds its lock


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The names that were there before a launch; what appeared since and belongs to nobody can be removed."""

    folders: tuple[Path, ...]
    before: frozenset[Path]

    @classmethod
    def snapshot(cls, *folders: Path) -> "Leftovers":
        """Remember what is there now; without folders, in /dev/shm."""
        chosen = folders or (SHARED_MEMORY,)
        return cls(chosen, frozenset(_names(chosen)))

    def remove(self) -> list[Path]:
        """Remove what appeared since, is ours, is of a known family and is used by no process; returns it."""
        candidates = [path for path in _names(self.folders) if path not in self.before and _may_be_a_servers(path)]
        used = _files_in_use() if candidates else set()
        removed = [path for path in candidates if str(path) not in used and not _is_open_elsewhere(path)]
        for path in removed:
            path.unlink(missing_ok=True)
        return removed


def make_tmpdir(base: Path, trial: str) -> Path:
    """A new folder for a trial's TMPDIR, short enough for the sockets that are made in it; those of dead runs go.

    Where the base is too deep for that, the folder is made in /tmp. Raises FailedTrial (`launch_failed`) where none can
    be made.
    """
    prefix = f"{_TMPDIR}{re.sub(r'[^A-Za-z0-9]+', '-', trial)[:12]}-"
    fits = len(os.fsencode(base.absolute() / prefix)) + 8 <= _LONGEST_TMPDIR  # 8: what mkdtemp appends
    base = base.absolute() if fits else Path("/tmp")
    try:
        base.mkdir(parents=True, exist_ok=True)
        remove_left_folders(_TMPDIR, base)
        return own_folder(prefix, base)
    except OSError as error:
        raise FailedTrial("launch_failed", f"no temporary folder can be made in {base}: {error.strerror}") from error


def remove_tmpdir(tmpdir: Path) -> None:
    """Remove it with all that is in it; what somebody else protects stays."""
    disown_folder(tmpdir)


def own_folder(prefix: str, base: Path) -> Path:
    """A new folder that is this process's as long as it lives: a lock in it goes with its holder, however that died."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=base))  # until it is locked
    descriptor = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    folder = hidden.rename(base / hidden.name.removeprefix("."))
    _owned[folder] = descriptor
    return folder


def disown_folder(folder: Path) -> None:
    """Remove a folder of `own_folder` with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    descriptor = _owned.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def remove_left_folders(prefix: str, base: Path) -> None:
    """Remove what processes that are gone have made by `own_folder`; whatever was not made by it stays."""
    for folder in base.glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def disk_free_bytes(path: Path) -> int:
    """Bytes that can still be written where the path is or will be."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def shm_total_free(folder: Path = SHARED_MEMORY) -> tuple[int, int]:
    """(size, free) of shared memory in bytes; zeros where there is none."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _names(folders: Iterable[Path]) -> list[Path]:
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())


def _may_be_a_servers(path: Path) -> bool:
    try:
        return path.name.startswith(_FAMILIES) and path.lstat().st_uid == os.geteuid() and path.is_file()
    except OSError:
        return False


def _files_in_use() -> set[str]:
    """Every file that a process we can look into has open or mapped."""
    used: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text(errors="replace")
            used.update(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line)
            used.update(str(link.readlink()) for link in (process / "fd").iterdir())
        except OSError:
            continue
    return used


def _is_open_elsewhere(path: Path) -> bool:
    """Whether any process of the kernel has it open or mapped, also one of another container (`--ipc=host`).

    The kernel grants a write lease only on a file that nobody else uses.
    """
    try:
        with path.open("rb") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)  # anything else: leases are not offered here
    return False
