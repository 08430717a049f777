"""What a model on disk is, told apart by its configuration and the names and sizes of its weights."""

import hashlib
import os
import stat
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 5_000  # a folder of more is no model, and reading it would take its time
_LARGEST_READ = 64 << 20  # bytes; an index of 100,000 tensors has about 10 MB
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def model_digest(folder: Path) -> str | None:
    """Twelve hex digits over config.json and the names and sizes of the weights; None when it is no local model.

    Links, such as those of a downloaded snapshot, are followed; of a file that cannot be read its name counts.
    """
    try:
        if not folder.is_absolute() or not folder.is_dir():
            return None
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    except (OSError, ValueError):  # ValueError: a path that no system can have
        return None
    if len(names) > MOST_ENTRIES:
        return None
    digest = hashlib.sha256()
    for name in sorted(names):
        if name == "config.json" or name.endswith(".index.json"):
            digest.update(os.fsencode(name) + b"\0" + _content(folder / name))
        elif name.endswith(_WEIGHTS):
            digest.update(os.fsencode(name) + b"\0" + _size(folder / name) + b"\0")
    return digest.hexdigest()[:12]


def read_bounded(path: Path, largest: int) -> bytes | None:
    """The bytes of a regular file of at most so many; None for any other, and for one that cannot be read."""
    try:
        found = path.stat()
        return path.read_bytes() if stat.S_ISREG(found.st_mode) and found.st_size <= largest else None
    except (OSError, ValueError):
        return None


def _content(path: Path) -> bytes:
    content = read_bounded(path, _LARGEST_READ)
    return _size(path) if content is None else content


def _size(path: Path) -> bytes:
    try:
        return str(path.stat().st_size).encode()
    except OSError:
        return b"unreadable"
