"""What measuring costs the server: `python benchmarks/server_options.py PROMPTS.json [options] -- SERVER COMMAND`.

One real server is launched and its measuring options are switched while it runs: all off, each alone, and together
as specsearch uses them, in an order shuffled anew in every round. Each window is compared with the window of the same
round that had everything off, since two launches differ by more than an option costs.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from specsearch.config import Limits
from specsearch.host.ports import free_port
from specsearch.loadgen import measure_repeat
from specsearch.metrics import summarise
from specsearch.trial import StopFlag
from specsearch.workload import LoadPoint, Workload

TOGGLES = Path(__file__).parent / "server_toggles"
HOLDERS = ("SchedulerMetricsReporter", "TokenizerManager")
OFF: Mapping[str, object] = {"metrics": False, "decode_log_interval": 40, "step_time": False, "incremental": False}
AS_MEASURED: Mapping[str, object] = {"metrics": True, "decode_log_interval": 40, "step_time": True, "incremental": True}
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "everything off": OFF,
    "again everything off": OFF,  # what the comparison itself is worth
    "as specsearch measures": AS_MEASURED,
    "the same, --decode-log-interval 10": {**AS_MEASURED, "decode_log_interval": 10},
    "--incremental-streaming-output": {**OFF, "incremental": True},
}
T_95 = (
    12.7,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="a JSON list of prompts")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, nargs="+", default=[4, 16], help="per window, one for each concurrency")
    parser.add_argument("--ready-s", type=float, default=300)
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    parser.add_argument("command", nargs="+", help="the server's command without host and port")
    options = parser.parse_args()
    prompts = tuple(json.loads(options.prompts.read_text()))
    with tempfile.TemporaryDirectory() as folder, server(options.command, Path(folder), options.ready_s) as base_url:
        switch = Switch(Path(folder) / "toggles.json")
        table = {}
        for concurrency, requests in zip(options.concurrency, options.requests, strict=True):
            point = LoadPoint(Workload("prompts", prompts), concurrency, options.output_tokens, requests, 1)
            table[f"concurrency {concurrency}"] = compare(point, base_url, switch, options.rounds)
    print_table(table)
    if options.write:
        facts = {"command": options.command, "rounds": options.rounds, "output_tokens": options.output_tokens}
        options.write.write_text(json.dumps({**facts, "relative_speed": table}, indent=1) + "\n")
    return 0


class Switch:
    """Sets the options of the running server and waits until its processes have taken them."""

    def __init__(self, path: Path) -> None:
        self.path, self.sequence = path, 0

    def set(self, variant: Mapping[str, object], wait_s: float = 20) -> None:
        self.sequence += 1
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**variant, "sequence": self.sequence}))
        new.rename(self.path)
        deadline = time.monotonic() + wait_s
        while silent := [name for name in HOLDERS if self._answer(name) != str(self.sequence)]:
            if time.monotonic() > deadline:
                sys.exit(f"no {' and no '.join(silent)} of the server took the options: has it other names there?")
            time.sleep(0.01)

    def _answer(self, name: str) -> str:
        path = self.path.with_suffix(f".{name}")
        return path.read_text() if path.exists() else ""


@contextmanager
def server(command: Sequence[str], folder: Path, ready_s: float) -> Iterator[str]:
    """A server of its own session with the toggles in every process; killed with its group in the end."""
    port = free_port()
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TOGGLES), inherited])),
        "SPECSEARCH_TOGGLES": str(folder / "toggles.json"),
        "SGLANG_RECORD_STEP_TIME": "0",
    }
    argv = [*command, "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
    log = (folder / "server.log").open("w+")
    process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        base_url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + ready_s
        while not _is_ready(base_url):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                sys.exit(f"the server is not ready:\n{log.read()[-3000:]}")
            time.sleep(1)
        yield base_url
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _is_ready(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=30) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def compare(point: LoadPoint, base_url: str, switch: Switch, rounds: int) -> dict[str, dict[str, float]]:
    """Speed of every variant relative to everything off in the same round, with a 95 % interval."""
    order, chance = list(VARIANTS), random.Random(point.concurrency)
    for _ in range(3):  # the first requests of a server are slow
        _speed(point, base_url)
    ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for round_number in range(rounds):
        chance.shuffle(order)
        speeds = {}
        for name in order:
            switch.set(VARIANTS[name])
            speeds[name] = _speed(point, base_url)
        for name, speed in speeds.items():
            ratios[name].append(math.log(speed / speeds["everything off"]))
        print(
            f"{point.name} round {round_number + 1}/{rounds}: {speeds['everything off']:,.0f} tokens/s", file=sys.stderr
        )
    return {name: _interval(logs) for name, logs in ratios.items() if name != "everything off"}


def _speed(point: LoadPoint, base_url: str) -> float:
    repeat = measure_repeat(
        point, base_url, limits=Limits(), stop=StopFlag(), alive=lambda: None, on_progress=lambda done, speed: None
    )
    speed = summarise(repeat.records, repeat.duration_s).values["output_tokens_per_s"]
    if not speed:
        sys.exit("a window brought no tokens")
    return speed


def _interval(logs: Sequence[float]) -> dict[str, float]:
    mean = statistics.fmean(logs)
    half = T_95[min(len(logs) - 2, len(T_95) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return {
        name: round(math.exp(value), 4)
        for name, value in (("ratio", mean), ("low", mean - half), ("high", mean + half))
    }


def print_table(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    print(f"{'relative speed, 95 % interval':<34}" + "".join(f"{name:>28}" for name in table))
    for variant in list(VARIANTS)[1:]:
        cells = (
            f"{row[variant]['ratio']:.3f} ({row[variant]['low']:.3f}–{row[variant]['high']:.3f})"
            for row in table.values()
        )
        print(f"{variant:<34}" + "".join(f"{cell:>28}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
