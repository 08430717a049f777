"""What a model on disk is, told apart by its configuration and the names and sizes of its weights."""

import hashlib
from pathlib import Path


def model_digest(folder: Path) -> str | None:
    """Twelve hex digits over config.json and the names and sizes of the weights; None when it is no local model."""
    try:
        if not folder.is_absolute() or not folder.is_dir():
            return None
        digest = hashlib.sha256()
        for file in sorted(folder.iterdir()):
            if file.name == "config.json" or file.name.endswith(".index.json"):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
            elif file.suffix in (".safetensors", ".bin", ".pt", ".gguf"):
                digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
    except OSError:
        return None
    return digest.hexdigest()[:12]
