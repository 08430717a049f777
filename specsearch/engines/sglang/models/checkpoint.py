"""What lies on this host of a model: its folder, its configuration, the names and shapes of its tensors.

A model is a folder or a name on the Hugging Face hub, which is looked up in the local cache only: nothing is fetched,
and what cannot be read is None.
"""

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from specsearch.model_files import model_digest, read_bounded

Config = Mapping[str, object]
Tensors = Mapping[str, tuple[int, ...]]  # name → shape; () where only the name is known

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+]*://")  # an object store or a server, which SGLang reads by itself
_LARGEST_CONFIG = 16 << 20
_LARGEST_HEADER = 16 << 20  # bytes; that of a drafter has a few KB, of one with 100,000 tensors about 10 MB
_MOST_SHARDS = 4  # files whose header is read; a drafter has one
_FLOATS = ("F64", "F32", "F16", "BF16", "F8_")  # other types pack several numbers into one, so that shapes differ
# Where a multimodal model keeps the configuration of its language part.
_LANGUAGE_PARTS = ("text_config", "language_config", "llm_config")


def config_path(model: str, environment: Mapping[str, str], revision: object = None) -> Path | None:
    """Where the `config.json` of a model lies: in its folder or in the local Hugging Face cache; None: nowhere."""
    folder = _expanded(model)
    if folder is not None and is_file(folder / "config.json"):
        return folder / "config.json"
    if not is_hub_id(model):
        return None
    repository = hub_cache(environment) / f"models--{model.replace('/', '--')}"
    for commit in _commits(repository, str(revision or "main")):
        cached = repository / "snapshots" / commit / "config.json"
        if is_file(cached):
            return cached
    return None


def is_hub_id(model: str) -> bool:
    """Whether a model that is no local folder could be a name on the Hugging Face hub."""
    folder = _expanded(model)
    return _HUB_ID.fullmatch(model) is not None and not (folder is not None and _exists(folder))


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The folder in which Hugging Face keeps what it has downloaded."""
    places = (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"))
    for name, below in (*places, ("XDG_CACHE_HOME", "huggingface/hub")):
        told = environment.get(name) or os.environ.get(name)
        folder = _expanded(told) if told else None
        if folder is not None:
            return folder / below
    return (_expanded("~") or Path("/")) / ".cache" / "huggingface" / "hub"


def read_config(model: str, environment: Mapping[str, str], revision: object = None) -> Config | None:
    """The model's configuration with that of its language part on top; None where it cannot be read."""
    path = config_path(model, environment, revision)
    return _config_of(path, _version_of(path)) if path else None


def read_tensors(model: str, environment: Mapping[str, str], revision: object = None) -> Tensors:
    """Names and, where they are cheap to have, shapes of a model's tensors; empty where they cannot be read."""
    path = config_path(model, environment, revision)
    return _tensors_of(path.parent, _version_of(path.parent)) if path else {}


def model_facts(role: str, model: str, revision: object, environment: Mapping[str, str]) -> dict[str, str]:
    """`ROLE.digest` of configuration and weights and `ROLE.revision`, as far as they can be told on this host."""
    path = config_path(model, environment, revision)
    digest = model_digest(path.parent.absolute()) if path else None
    from_the_hub = path is not None and path.parent.parent.name == "snapshots"
    told = path.parent.name if path and from_the_hub else revision
    facts = {f"{role}.digest": digest, f"{role}.revision": told}
    return {name: str(value) for name, value in facts.items() if value is not None}


def missing_config(role: str, model: str, environment: Mapping[str, str], revision: object = None) -> str | None:
    """What keeps a model's configuration from being read, as a sentence; None where it was read."""
    path = config_path(model, environment, revision)
    if path is None and is_hub_id(model):
        at = f" at revision {revision}" if revision else ""
        return f"{role} {model} is neither a folder nor in {hub_cache(environment)}{at}: nothing about it is checked"
    if path is None and is_elsewhere(model):
        return f"{role} {model} has no config.json of its own on this host: nothing about it is checked"
    if path is None:
        return f"{role} {model} has no config.json: is the path right, and is it visible on this host?"
    readable = read_config(model, environment, revision) is not None
    return None if readable else f"{role} {model}: {path} is not a JSON object"


def is_elsewhere(model: str) -> bool:
    """Whether a model is a single file or lies in an object store, so that it has no folder to look into."""
    path = _expanded(model)
    return _ELSEWHERE.match(model) is not None or (path is not None and is_file(path))


def _commits(repository: Path, revision: str) -> Iterator[str]:
    """The snapshots that a revision may stand for: what its reference says, or the commit that it is."""
    if ".." in Path(revision).parts or Path(revision).is_absolute():
        return
    text = read_bounded(repository / "refs" / revision, 200)
    named = text.decode(errors="replace").strip() if text else ""
    if re.fullmatch(r"\w+", named):
        yield named
    if _COMMIT.fullmatch(revision):
        yield revision


def _expanded(text: str) -> Path | None:
    """The path with its `~` resolved; None where there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return None


def is_file(path: Path) -> bool:
    """Whether a file is there for us to read."""
    try:
        return path.is_file()
    except OSError:  # a folder that may not be looked into, a name that is too long
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # something is there, and it is not for us


def _version_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def read_json(path: Path) -> dict[str, object] | None:
    """The JSON object in a file of reasonable size; None where there is none."""
    return _json_of(read_bounded(path, _LARGEST_CONFIG))


def _json_of(content: bytes | None) -> dict[str, object] | None:
    try:
        value = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@lru_cache(maxsize=256)
def _config_of(path: Path, version: tuple[int, int]) -> Config | None:
    config = _json_of(read_bounded(path, _LARGEST_CONFIG))
    if config is None:
        return None
    for name in _LANGUAGE_PARTS:
        part = config.get(name)
        if isinstance(part, dict):
            return {**config, **part, "architectures": config.get("architectures") or part.get("architectures")}
    return config


@lru_cache(maxsize=64)
def _tensors_of(folder: Path, version: tuple[int, int]) -> Tensors:
    indexed = _indexed(folder)
    if not indexed:
        return _shapes(_single_files(folder))
    decisive = {file for name, file in indexed.items() if is_fusion(name)}
    shapes = _shapes(folder / file for file in sorted(decisive) if Path(file).name == file)
    return {**dict.fromkeys(indexed, ()), **shapes}


def is_fusion(name: str) -> bool:
    """Whether a tensor is the weight by which a head joins hidden states, and its shape is worth a look."""
    return name in ("fc.weight", "model.fc.weight") or name.rpartition(".")[2] in ("d2t", "t2d")


def _indexed(folder: Path) -> dict[str, str]:
    """Tensor → file, as the index of a model in several files says."""
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        index = _json_of(read_bounded(folder / name, _LARGEST_CONFIG))
        weights = index.get("weight_map") if index else None
        if isinstance(weights, dict):
            return {tensor: file for tensor, file in weights.items() if isinstance(file, str)}
    return {}


def _single_files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.safetensors"))[:_MOST_SHARDS]
    except OSError:
        return []


def _shapes(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for file in list(files)[:_MOST_SHARDS]:
        for name, entry in (_header(file) or {}).items():
            if name != "__metadata__" and isinstance(entry, dict):
                found[name] = _shape(entry)
    return found


def _header(file: Path) -> dict[str, object] | None:
    """The header of a safetensors file: eight bytes that say its length, then JSON."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            return _json_of(stream.read(length)) if length <= _LARGEST_HEADER else None
    except (OSError, struct.error):
        return None


def _shape(entry: Mapping[str, object]) -> tuple[int, ...]:
    kind, shape = entry.get("dtype"), entry.get("shape")
    plain = isinstance(kind, str) and (kind.startswith(_FLOATS) or kind in ("I64", "I32", "BOOL"))
    if not plain or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return ()
    return tuple(shape)
