"""Starting the simulated server as a real process, talking to it and ending it with all its children."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
READY = "The server is fired up and ready to roll!"
DEADLINE_S = 30.0
EAGLE3 = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/drafters/eagle3")
CHAT = "Please tell me how the village by the river got its name and what the people do there in the winter"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def triple(num_steps: int, eagle_topk: int, num_draft_tokens: int) -> tuple[str, ...]:
    """EAGLE3 with these three numbers, as flags."""
    numbers = {"num-steps": num_steps, "eagle-topk": eagle_topk, "num-draft-tokens": num_draft_tokens}
    return (*EAGLE3, *(word for name, value in numbers.items() for word in (f"--speculative-{name}", str(value))))


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Running:
    """A started server; `log` is everything it has written."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    children: set[int] = field(default_factory=set)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def lines(self, *parts: str) -> list[str]:
        """Log lines that hold all the parts."""
        return [line for line in self.log.splitlines() if all(part in line for part in parts)]

    def wait_for(self, text: str) -> None:
        """Until the log holds a text; fails when the server ends before or takes too long."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.log:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log[-3000:]}"
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log[-3000:]}"
            time.sleep(0.01)
        self.children |= set(children_of(self.process.pid))

    def wait_for_end(self) -> int:
        """The exit code."""
        return self.process.wait(DEADLINE_S)

    def request(
        self, path: str, body: object = None, *, method: str | None = None, timeout_s: float = DEADLINE_S
    ) -> tuple[int, bytes]:
        """(HTTP status, body)."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            request = urllib.request.Request(url, data, headers, method=method)
            with _OPENER.open(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, path: str, body: object = None) -> Any:
        """The JSON of a good answer."""
        status, content = self.request(path, body)
        assert status == 200, (status, content)
        return json.loads(content)

    def generate(self, text: str = CHAT, tokens: int = 32, **more: object) -> dict[str, Any]:
        """A whole answer of exactly so many tokens."""
        answer: dict[str, Any] = self.json("/generate", asking(text, tokens) | more)
        return answer

    def stream(
        self, text: str = CHAT, tokens: int = 32, *, before_reading: Callable[[], object] = lambda: None
    ) -> list[tuple[float, dict[str, Any]]]:
        """(arrival in monotonic seconds, chunk) of a streamed answer, the closing marker left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            body = json.dumps(asking(text, tokens) | {"stream": True})
            connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
            before_reading()
            response = connection.getresponse()
            lines = ((time.monotonic(), line) for line in response if line.startswith(b"data: {"))
            return [(arrival, json.loads(line[len(b"data: ") :])) for arrival, line in lines]

    def counter(self, name: str, label: str = "") -> float:
        """A sample of /metrics."""
        text = self.request("/metrics")[1].decode()
        samples = [line for line in text.splitlines() if line.startswith(f"sglang:{name}{{") and label in line]
        assert len(samples) == 1, text
        return float(samples[0].rpartition(" ")[2])


def asking(text: str, tokens: int) -> dict[str, Any]:
    """The body of a greedy request for exactly so many tokens."""
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}


def children_of(pid: int) -> list[int]:
    """The processes below a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_end(pids: Iterable[int]) -> bool:
    """Whether all these processes end before the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    waiting = set(pids)
    while waiting and time.monotonic() < deadline:
        waiting = set(filter(is_alive, waiting))
        time.sleep(0.01)
    return not waiting


@contextlib.contextmanager
def started(
    folder: Path,
    *flags: str,
    faults: Sequence[Mapping[str, object]] = (),
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    **hardware: object,
) -> Iterator[Running]:
    """A server of the tiny target that loads in no time; everything below it is killed at the end."""
    port = port or free_port()
    simulated = {"target": "tiny", "time_scale": 0.0, "noise": 0.0} | hardware | {"faults": list(faults)}
    flags = ("--model-path", "/models/tiny", "--port", str(port), "--enable-metrics", *flags)
    log_path = folder / f"server-{port}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "specsearch.engines.simulated.server", *flags],
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SPECSEARCH_SIMULATED": json.dumps(simulated)}
            | dict(env or {}),
            start_new_session=True,
        )
    running = Running(process, port, log_path)
    try:
        yield running
    finally:
        if process.poll() is None:
            running.children |= set(children_of(process.pid))
            process.kill()
        process.wait(DEADLINE_S)
        for pid in filter(is_alive, running.children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def ready(folder: Path, *flags: str, **more: Any) -> Iterator[Running]:
    """A started server that has said that it is ready."""
    with started(folder, *flags, **more) as server:
        server.wait_for(READY)
        yield server
