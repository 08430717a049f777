"""What can be read of a model on this host, and that nothing else is tried."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsearch.engines.sglang.models.checkpoint import (
    config_path,
    hub_cache,
    missing_config,
    model_facts,
    read_config,
    read_tensors,
)
from specsearch.model_files import MOST_ENTRIES, model_digest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def safetensors(path: Path, shapes: Mapping[str, list[int]], dtype: str = "BF16") -> None:
    """A file with a true header and no data behind it."""
    header = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


class Hub:
    """A local hub cache with one downloaded model, its files links to blobs as there."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "hub"
        self.repository = self.cache / "models--org--model"
        self.snapshot(COMMIT, {"hidden_size": 1})
        self.refer("main", COMMIT)

    def snapshot(self, commit: str, config: Mapping[str, object]) -> Path:
        blobs, snapshot = self.repository / "blobs", self.repository / "snapshots" / commit
        blobs.mkdir(parents=True, exist_ok=True)
        snapshot.mkdir(parents=True)
        for name, content in (("config.json", json.dumps(config)), ("model.safetensors", "weights")):
            blob = blobs / f"{commit[:8]}-{name}"
            blob.write_text(content)
            (snapshot / name).symlink_to(blob)
        return snapshot

    def refer(self, revision: str, commit: str) -> None:
        reference = self.repository / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


@pytest.mark.parametrize("place", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_cache_is_where_hugging_face_looks_for_it(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    below = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}.get(place, "")
    assert hub_cache({place: str(tmp_path)}) == tmp_path / below


def test_a_revision_is_a_reference_or_a_commit(hub: Hub) -> None:
    other = "f" * 40
    hub.snapshot(other, {"hidden_size": 2})
    hub.refer("v2", other)
    hub.refer("refs/pr/1", other)
    environment = {"HF_HUB_CACHE": str(hub.cache)}
    sizes = {
        revision: (read_config("org/model", environment, revision) or {}).get("hidden_size")
        for revision in (None, "main", "v2", "refs/pr/1", other, COMMIT, "v3", "../v2", "/v2", "e" * 40)
    }
    assert sizes == {
        None: 1,
        "main": 1,
        "v2": 2,
        "refs/pr/1": 2,
        other: 2,
        COMMIT: 1,
        **dict.fromkeys(("v3", "../v2", "/v2", "e" * 40)),
    }


def test_facts_hold_the_commit_of_a_download_and_a_digest_over_its_links(hub: Hub, tmp_path: Path) -> None:
    environment = {"HF_HUB_CACHE": str(hub.cache)}
    facts = model_facts("model", "org/model", "main", environment)
    assert facts["model.revision"] == COMMIT
    local = tmp_path / "copy"
    local.mkdir()
    for name in ("config.json", "model.safetensors"):
        (local / name).write_bytes((hub.repository / "snapshots" / COMMIT / name).read_bytes())
    assert facts["model.digest"] == model_digest(local), "a copy of the same files is the same model"


def test_facts_of_a_model_that_is_not_here_are_what_was_asked(tmp_path: Path) -> None:
    assert model_facts("model", "org/other", "v1", {"HF_HUB_CACHE": str(tmp_path)}) == {"model.revision": "v1"}
    assert model_facts("model", "/nowhere", None, {}) == {}


def test_what_is_missing_is_told_with_the_revision(hub: Hub, tmp_path: Path) -> None:
    environment = {"HF_HUB_CACHE": str(hub.cache)}
    assert missing_config("engine.model", "org/model", environment) is None
    assert "at revision v9" in (missing_config("engine.model", "org/model", environment, "v9") or "")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert "nothing about it is checked" in (missing_config("engine.model", str(tmp_path / "m.gguf"), {}) or "")
    assert "nothing about it is checked" in (missing_config("engine.model", "s3://bucket/model", {}) or "")
    assert "is the path right" in (missing_config("engine.model", "/nowhere/model", {}) or "")


def test_the_header_of_a_safetensors_file_is_read_without_its_data(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    safetensors(tmp_path / "model.safetensors", {"fc.weight": [8, 24], "norm.weight": [8]})
    assert read_tensors(str(tmp_path), {}) == {"fc.weight": (8, 24), "norm.weight": (8,)}


def test_the_shape_of_packed_weights_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    safetensors(tmp_path / "model.safetensors", {"fc.weight": [8, 12]}, dtype="U8")
    assert read_tensors(str(tmp_path), {}) == {"fc.weight": ()}


def test_of_a_model_in_several_files_the_index_names_the_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"fc.weight": "a.safetensors", "norm.weight": "b.safetensors", "x": "../c.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    safetensors(tmp_path / "a.safetensors", {"fc.weight": [8, 24]})
    assert read_tensors(str(tmp_path), {}) == {"fc.weight": (8, 24), "norm.weight": (), "x": ()}


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\xff" * 8 + b"{}", struct.pack("<Q", 1 << 40), struct.pack("<Q", 3) + b"[1]", b"<html>"]
)
def test_weights_that_are_no_safetensors_have_no_tensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    assert read_tensors(str(tmp_path), {}) == {}


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    os.mkfifo(tmp_path / "model.safetensors")
    assert read_config(str(tmp_path), {}) is None
    assert read_tensors(str(tmp_path), {}) == {}
    assert model_digest(tmp_path) is not None


def test_a_language_part_lies_on_top_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("text_config", "language_config", "llm_config"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"hidden_size": 1, name: {"hidden_size": 7}}))
        assert (read_config(str(folder), {}) or {})["hidden_size"] == 7


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_content_of_a_configuration_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_bytes(content)
    assert read_config(str(folder), {}) is None or json.loads(content) is not None


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 10_000 + "}", "{} {}"])
def test_deep_nesting_and_huge_numbers_are_no_configuration(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert read_config(str(tmp_path), {}) is None


@given(model=st.text(max_size=300))
def test_no_name_of_a_model_raises(model: str) -> None:
    environment = {"HF_HUB_CACHE": "/nowhere", "HF_HOME": "~nobody-at-all/x"}
    config_path(model, environment, model)
    missing_config("draft_model", model, environment)


def test_a_folder_that_may_not_be_looked_into_is_no_model(tmp_path: Path) -> None:
    assert config_path(f"{tmp_path}/{'x' * 5000}", {}) is None, "a name that no file system takes"
    assert config_path("~nobody-at-all/model", {}) is None


def test_a_digest_tells_weights_apart_and_survives_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"1")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"22")
    whole = model_digest(tmp_path)
    (tmp_path / "README.md").write_text("no weights")
    assert model_digest(tmp_path) == whole, "other files do not count"
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    (tmp_path / "model-00002-of-00002.safetensors").symlink_to(tmp_path / "gone")
    broken = model_digest(tmp_path)
    assert broken is not None
    assert broken != whole


def test_a_folder_of_very_many_files_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for number in range(MOST_ENTRIES):
        (tmp_path / f"{number}").touch()
    assert model_digest(tmp_path) is None


def test_only_a_local_folder_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [model_digest(Path(path)) for path in ("org/model", "/nowhere", f"{tmp_path}/file", "/a\0b")] == [None] * 4
