"""A token that the search space gives to its servers stands in nothing that is printed or stored."""

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from specsearch.config import load_study, to_fingerprint_fields
from tests.command import run, space

SECRETS = ("hf_abcdef", "sk-abcdef", "hunter2")
ENV = (
    "env: {HF_TOKEN: hf_abcdef, OPENAI_API_KEY: sk-abcdef, HTTPS_PROXY: 'http://me:hunter2@proxy:1', NCCL_DEBUG: WARN}"
)


@pytest.fixture
def with_secrets(tmp_path: Path) -> Path:
    path = space(tmp_path)
    path.write_text(path.read_text().replace("tp_size: 8,", f"tp_size: 8, {ENV},"))
    return path


def told(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_dry_run_shows_where_secrets_go_and_not_what_they_are(with_secrets: Path, style: str) -> None:
    ended = run("tune", with_secrets, "--dry-run", "--format", style)
    assert ended.code == 0, ended.err
    assert told(ended.out + ended.err) == []
    if style == "json":
        env = json.loads(ended.out)["plans"][0]["env"]
        assert (env["HF_TOKEN"], env["NCCL_DEBUG"]) == ("$HF_TOKEN", "WARN")
    assert 'HF_TOKEN="$HF_TOKEN"' in ended.out.replace("\\", "")


def test_a_study_stores_and_reports_no_secret(with_secrets: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    ended = run("tune", with_secrets, "--executor", "in-process", "--results", results, "--trials", "1")
    assert ended.code == 0, ended.err
    assert told(ended.out + ended.err) == []
    assert told(run("report", results).out) == []
    for table in ("trials", "measurements"):
        rows = ds.dataset(results / table).to_table().to_pylist()
        assert rows
        assert told(str(rows)) == []
    texts = [path.read_bytes() for path in results.rglob("*") if path.is_file()]
    assert told("".join(text.decode(errors="replace") for text in texts)) == []


def test_another_token_makes_no_other_study_and_another_setting_does(with_secrets: Path) -> None:
    before = to_fingerprint_fields(load_study(with_secrets))
    assert before["engine.env.NCCL_DEBUG"] == "WARN"
    with_secrets.write_text(with_secrets.read_text().replace("hf_abcdef", "hf_other"))
    assert to_fingerprint_fields(load_study(with_secrets)) == before
    with_secrets.write_text(with_secrets.read_text().replace("WARN", "INFO"))
    assert to_fingerprint_fields(load_study(with_secrets)) != before
