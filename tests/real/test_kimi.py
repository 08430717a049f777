"""How far the real SGLang takes the commands of the Kimi-K2.5 space with a folder that has no weights.

The folder has the architecture of Kimi-K2.5, its quantisation and its kind of drafter in the size of a toy. What needs
a GPU is left out of the commands: eight ranks, and attention by triton.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch.clock import SystemClock
from specsearch.config import StudyConfig, load_study
from specsearch.engines import make_engine
from specsearch.runners.server import run_trial
from specsearch.runners.workplace import Workplace
from specsearch.search_space import Point, Value
from specsearch.trial import Phase, StopFlag, TrialKind, TrialRequest, TrialResult, TrialStatus
from tests.real.studies import HERE, PYTHON, ROOT, Watched, marked, needs_sglang, not_in_a_part

pytestmark = [pytest.mark.real_sglang, needs_sglang, not_in_a_part]

# What is put in the place of GPUs; without a limit the KV cache would take what memory there is.
ON_A_CPU: Mapping[str, Value] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "prefill_attention_backend": "intel_amx",
    "decode_attention_backend": "intel_amx",
    "max_total_tokens": 16384,
}


def kimi(model: Path, scratch: Path) -> tuple[StudyConfig, Point]:
    """The space on a CPU with this model, and its first seed point: the last command of the search by hand."""
    space = load_study(ROOT / "search_spaces" / "kimi-k2.5-eagle3-8gpu.yaml")
    environment = load_study(HERE / "all-algorithms.yaml").engine.env
    engine = replace(
        space.engine,
        python=PYTHON,
        model=str(model),
        tp_size=1,
        args={**space.engine.args, **ON_A_CPU},
        # Code that comes with a model is copied before it runs.
        env={**space.engine.env, **environment, "HF_MODULES_CACHE": str(scratch / "modules")},
    )
    point = {**space.space.canonical(space.seed_points[0]), "draft_model": str(HERE / "models" / "kimi-eagle3")}
    return replace(space, engine=engine), point


def launch(model: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TrialResult, str]:
    """The trial as it ended, and the log of its server; nothing of it is left."""
    config, point = kimi(model, scratch)
    assert make_engine(config.engine, config.load_points).rules.problems(point) == []
    monkeypatch.setenv("TRIAL_UNDER_TEST", str(scratch))
    watched = Watched(f"TRIAL_UNDER_TEST={scratch}")
    result = run_trial(
        TrialRequest(number=0, attempt=1, kind=TrialKind.SEED, point=point),
        Workplace(config, scratch / "logs", gpu_indices=()),
        clock=SystemClock(),
        stop=StopFlag(),
        on_progress=lambda _: watched.look(),
    )
    assert any("sglang.launch_server" in command for command in watched.processes.values())
    assert marked(watched.mark) == {}
    assert result.log_path is not None
    return result, Path(result.log_path).read_text(errors="replace")


def test_with_all_but_the_weights_the_server_comes_as_far_as_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is built, INT4 experts included, before a file of weights is missed."""
    result, log = launch(HERE / "models" / "kimi", tmp_path, monkeypatch)
    assert "--speculative-num-draft-tokens 16" in str(result.command)
    assert "--num-continuous-decode-steps 4" in str(result.command)
    assert "Load weight begin" in log
    assert "CompressedTensorsWNA16" in log
    assert (result.status, result.reason) == (TrialStatus.INFEASIBLE, "model_not_found")
    assert "Cannot find any model weights" in str(result.detail)
    assert (result.phase, result.exit_code) == (Phase.READY, -9)  # SGLang kills its own process tree


def test_with_a_config_alone_the_arguments_pass_and_the_processor_of_images_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kimi"
    folder.mkdir()
    shutil.copy(HERE / "models" / "kimi" / "config.json", folder)
    result, log = launch(folder, tmp_path, monkeypatch)
    assert "server_args=" in log, "the arguments were parsed and resolved"
    assert "Load weight begin" not in log
    assert (result.status, result.reason) == (TrialStatus.INFEASIBLE, "model_not_found")
    assert "preprocessor_config.json" in str(result.detail)
    assert (result.phase, result.exit_code) == (Phase.READY, 1)
