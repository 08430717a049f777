"""A search-space file that loads, and ways to load and break it."""

from pathlib import Path

import pytest

from specsearch._search_space_file.document import FOLLOWING
from specsearch.config import StudyConfig, load_study
from specsearch.errors import ConfigError

GOOD = """\
name: good
engine:
  type: sglang
  model: ./target
  tp_size: 2
  args: {mem_fraction_static: 0.85, trust_remote_code: true}
  env: {NCCL_DEBUG: WARN}
parameters:
  speculative_algorithm: {type: choice, values: [none, EAGLE3]}
  draft_model: {type: choice, values: [./drafter], when: {speculative_algorithm: [EAGLE3]}}
  num_steps: {type: int, low: 1, high: 5, when: {speculative_algorithm: [EAGLE3]}}
  eagle_topk: {type: choice, values: [1, 2, 4], when: {speculative_algorithm: [EAGLE3]}}
  num_draft_tokens: {type: int, low: 2, high: 16, log: true, when: {speculative_algorithm: [EAGLE3]}}
  cuda_graph: {type: choice, values: [true, false]}
  env.NCCL_PROTO: {type: choice, values: [unset, LL, Simple]}
constraints: [num_draft_tokens <= 8 or eagle_topk > 1]
seed_points:
  - {speculative_algorithm: EAGLE3, num_steps: 3, eagle_topk: 4, num_draft_tokens: 16}
workloads:
  mine: {file: ./mine.jsonl}
load_points:
  - {workload: mine, concurrency: 1}
  - {workload: mine, concurrency: 8, output_tokens: 48, requests: 16, repeats: 2}
objective: {metric: output_tokens_per_s, at: mine@1, subject_to: [ttft_p99_ms <= 500]}
budget: {trials: 12, wall_time: 8h}
"""

# The line of GOOD that is its seed point.
SEED = "  - {speculative_algorithm: EAGLE3, num_steps: 3, eagle_topk: 4, num_draft_tokens: 16}\n"


def load(folder: Path, text: str) -> StudyConfig:
    """The study that a text means when it lies in a folder, beside `mine.jsonl`."""
    prompts = folder / "mine.jsonl"
    if not prompts.exists():
        prompts.write_text('{"prompt": "one"}\n{"text": "two"}\n\n"three"\n')
    path = folder / "space.yaml"
    path.write_text(text)
    return load_study(path)


def problems(folder: Path, text: str) -> list[str]:
    """What is said of a text that must not load, without the line about what follows."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    assert caught.value.exit_code == 2
    *found, following = caught.value.problems
    assert following == FOLLOWING
    return found


def edited(old: str, new: str) -> str:
    """GOOD with one edit."""
    assert GOOD.count(old) == 1, f"{old!r} is there {GOOD.count(old)} times"
    return GOOD.replace(old, new)


def without(*beginnings: str) -> str:
    """GOOD without the lines that begin so."""
    return "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(beginnings))
