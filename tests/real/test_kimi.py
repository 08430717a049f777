"""How far the real SGLang takes the commands of the Kimi-K2.5 space with a folder that has no weights.

The folder has the architecture of Kimi-K2.5, its quantisation and its kind of drafter in the size of a toy. What needs
a GPU is left out of the commands: eight ranks, and attention by triton.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specsearch.config import load_study
from specsearch.engines import make_engine
from specsearch.errors import InfeasibleTrial, TrialError
from specsearch.search_space import Value
from specsearch.trial import Phase
from tests.real.studies import HERE, PYTHON, ROOT, needs_sglang, not_in_a_part

pytestmark = [pytest.mark.real_sglang, needs_sglang, not_in_a_part]

TIME_LIMIT_S = 300
# What is put in the place of GPUs; without a limit the KV cache would take what memory there is.
ON_A_CPU: Mapping[str, Value] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "prefill_attention_backend": "intel_amx",
    "decode_attention_backend": "intel_amx",
    "max_total_tokens": 16384,
}


@dataclass(frozen=True)
class Ended:
    """A server that did not come up."""

    argv: tuple[str, ...]
    exit_code: int
    log: str
    error: TrialError


def start(model: Path, tmp_path: Path) -> Ended:
    """Run the server of the space's first seed point, the last command of the search by hand, to its end."""
    space = load_study(ROOT / "search_spaces" / "kimi-k2.5-eagle3-8gpu.yaml")
    cpu = load_study(HERE / "all-algorithms.yaml").engine
    config = replace(
        space.engine,
        python=PYTHON,
        model=str(model),
        tp_size=1,
        args={**space.engine.args, **ON_A_CPU},
        # Code that comes with a model is copied before it runs.
        env={**space.engine.env, **cpu.env, "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    point = {**space.space.canonical(space.seed_points[0]), "draft_model": str(HERE / "models" / "kimi-eagle3")}
    engine = make_engine(config, space.load_points)
    assert engine.rules.problems(point) == []
    log = tmp_path / "log"
    plan = engine.plan(point, port=21999, log_path=log, tmpdir=tmp_path, gpu_indices=(), trial="kimi")
    with log.open("wb") as output:
        ended = subprocess.run(
            plan.argv,
            env=plan.environment(os.environ),
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    text = log.read_text(errors="replace")
    return Ended(plan.argv, ended.returncode, text, engine.failure(text, exit_code=ended.returncode, phase=Phase.READY))


def test_with_all_but_the_weights_the_server_comes_as_far_as_reading_them(tmp_path: Path) -> None:
    """Its model is built, INT4 experts included, before a file of weights is missed."""
    ended = start(HERE / "models" / "kimi", tmp_path)
    assert "--speculative-num-draft-tokens 16" in " ".join(ended.argv)
    assert "--num-continuous-decode-steps 4" in " ".join(ended.argv)
    assert "Load weight begin" in ended.log
    assert "CompressedTensorsWNA16" in ended.log
    assert ended.exit_code == -9  # SGLang kills its own process tree
    assert isinstance(ended.error, InfeasibleTrial)
    assert ended.error.reason == "model_not_found"
    assert "Cannot find any model weights" in str(ended.error.detail)


def test_with_a_config_alone_the_arguments_pass_and_the_processor_of_images_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "kimi"
    folder.mkdir()
    shutil.copy(HERE / "models" / "kimi" / "config.json", folder)
    ended = start(folder, tmp_path)
    assert "server_args=" in ended.log, "the arguments were parsed and resolved"
    assert ended.exit_code == 1
    assert isinstance(ended.error, InfeasibleTrial)
    assert ended.error.reason == "model_not_found"
    assert "preprocessor_config.json" in str(ended.error.detail)
