"""What was written down of all supported versions of SGLang, and the commands that are put to them."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specsearch.config import StudyConfig, load_study
from specsearch.engines._base import NO_PINS
from specsearch.engines.sglang import SGLangEngine
from specsearch.engines.sglang.installed.profiles import release
from specsearch.search_space import Point

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "sglang_versions"
SHIM = ROOT / "tests" / "real" / "shim"
KIMI = ROOT / "search_spaces" / "kimi-k2.5-eagle3-8gpu.yaml"
VERSIONS = tuple(sorted((path.stem for path in DATA.glob("0.*.txt")), key=lambda name: (release(name), name)))

RESULTS = DATA / "resolved.json"

Command = tuple[str, ...]


def declared(version: str) -> frozenset[str]:
    """The flags of a version."""
    return frozenset(line.split()[0] for line in _lines(version))


def unread(version: str) -> list[str]:
    """Those that no code of it reads, with underscores."""
    return [line.split()[0][2:].replace("-", "_") for line in _lines(version) if line.endswith(" unread")]


def _lines(version: str) -> list[str]:
    return (DATA / f"{version}.txt").read_text().splitlines()


def engine(version: str, study: StudyConfig | None = None) -> SGLangEngine:
    """A driver that takes itself to drive this version; the model is one without weights."""
    config = replace((study or load_study(KIMI)).engine, python=None, version=version, model=str(DATA / "kimi"))
    return SGLangEngine(config, load_study(KIMI).load_points)


# What a baseline may resolve to and every later trial is pinned to.
PINS: Point = {
    "page_size": 1,
    "context_length": 32768,
    "chunked_prefill_size": 8192,
    "prefill_attention_backend": "triton",
    "decode_attention_backend": "triton",
    "cuda_graph_bs": "1 2 4 8 16 32",
}


def arguments(engine: SGLangEngine, point: Point, pins: Point = NO_PINS) -> Command:
    """What SGLang's parser gets in a launch of this point."""
    plan = engine.plan(
        point, port=30000, log_path=Path("log"), tmpdir=Path("tmp"), gpu_indices=range(8), trial="token", pins=pins
    )
    return plan.argv[plan.argv.index("sglang.launch_server") + 1 :]


def kimi_commands(version: str) -> dict[str, Command]:
    """The shipped Kimi-K2.5 space: the baseline, its seed points, and these with switches turned off."""
    study = load_study(KIMI)
    driver = engine(version, study)
    space = replace(study.space, rules=driver.rules)
    drafter = str(DATA / "kimi-eagle3")
    points = {"baseline": space.start_baseline(study.baseline)}
    for number, seed in enumerate(study.seed_points, 1):
        points[f"seed point {number}"] = {**space.canonical(seed), "draft_model": drafter}
    largest = {**points["seed point 1"], "cuda_graph_max_bs": 32}
    points["graphs up to 32"] = largest
    points["baseline, no graphs"] = {**points["baseline"], "cuda_graph": False}
    points["seed point 1, no graphs"] = {**points["seed point 1"], "cuda_graph": False}
    if driver.rules.profile.no_decode_graph:
        points["seed point 1, no decode graphs"] = {**points["seed point 1"], "decode_cuda_graph": False}
    commands = {name: arguments(driver, point) for name, point in points.items()}
    return {**commands, "seed point 1, pinned": arguments(driver, points["seed point 1"], pins=PINS)}


_COMMON = ("--model-path", str(DATA / "kimi"), "--tp-size", "8", "--max-running-requests", "48")
_DRAFTER = ("--speculative-draft-model-path", str(DATA / "kimi-eagle3"))
_EAGLE3 = ("--speculative-algorithm", "EAGLE3", *_DRAFTER)
_CHAIN = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
_TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16")
_STANDALONE = ("--speculative-algorithm", "STANDALONE", *_DRAFTER)
# What profiles say of a version is seen in what it makes of these.
QUESTIONS: Mapping[str, Command] = {
    "plain": (*_COMMON, "--attention-backend", "triton"),
    "chain": (*_COMMON, "--attention-backend", "triton", *_EAGLE3, *_CHAIN),
    "tree": (*_COMMON, "--attention-backend", "triton", *_EAGLE3, *_TREE),
    "standalone": (*_COMMON, "--attention-backend", "triton", *_STANDALONE, *_CHAIN),
    "ngram": (*_COMMON, "--attention-backend", "flashinfer", "--speculative-algorithm", "NGRAM"),
    "unknown algorithm": (*_COMMON, "--attention-backend", "triton", "--speculative-algorithm", "NOSUCH"),
    "small letters": (
        *(*_COMMON, "--attention-backend", "triton"),
        *("--speculative-algorithm", "eagle3", *_DRAFTER, *_TREE),
    ),
    **{
        f"tree in pages, {backend}": (*_COMMON, "--attention-backend", backend, "--page-size", "64", *_EAGLE3, *_TREE)
        for backend in ("flashinfer", "fa3", "triton", "trtllm_mla")
    },
    "old graph flag": (*_COMMON, "--attention-backend", "triton", "--cuda-graph-max-bs", "8"),
}  # fmt: skip


def parse(python: str, commands: Sequence[Command], packages: Sequence[Path]) -> list[dict[str, object]]:
    """What the SGLang on these paths makes of command lines, by its own parser and resolution."""
    fakes = DATA / "bin"
    answer = subprocess.run(
        [python, str(DATA / "parse.py")],
        input=json.dumps(commands),
        env={
            **os.environ,
            "PATH": f"{fakes}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(map(str, (*packages, SHIM))),
            "HF_HUB_OFFLINE": "1",
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    told = [line.partition(MARK)[2] for line in answer.stdout.splitlines() if line.startswith(MARK)]
    if len(told) != len(commands):
        raise RuntimeError(f"{len(commands)} commands and {len(told)} answers:\n{answer.stderr[-3000:]}")
    return [json.loads(line) for line in told]


MARK = "parsed-by-sglang "
