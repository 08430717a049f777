"""A local Ray for one study, owned through a process of its own (ray_head)."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from specsearch.errors import HostNotFit
from specsearch.executors.ray_head import HEAD, MARK, ORDERLY, kill_marked

NO_RAY = "its logs are below /tmp/ray; `--executor in-process` runs the same study without Ray"
_START_S = 180.0  # Ray itself gives each of its daemons up to a minute; usually 5 s
_END_S = 15.0
_RUN = "import sys; sys.path[:] = {path!r}; from specsearch.executors.ray_head import main; main()"


@dataclass(slots=True)
class LocalRay:
    """A Ray that runs on this host for as long as its head has a pipe to this process."""

    address: str
    ip: str
    dashboard_url: str | None
    mark: str
    _head: "subprocess.Popen[bytes]"
    _life: int
    _report: int
    _gone: str | None = field(default=None)

    def lost(self) -> str | None:
        """What Ray cannot do without and has lost, as a sentence; None while all is well. Never waits."""
        if self._gone is None and select.select([self._report], [], [], 0)[0]:
            lines = os.read(self._report, 4096).splitlines()
            told = json.loads(lines[0])["gone"] if lines else "the process that owns it was ended"
            self._gone = f"the local Ray is gone: {told}"
        return self._gone

    def end(self, *, orderly: bool) -> None:
        """Ray is gone when this returns; `orderly` lets its daemons say goodbye to each other."""
        with contextlib.suppress(BrokenPipeError):
            if orderly:
                os.write(self._life, ORDERLY)
        os.close(self._life)
        try:
            self._head.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._head.kill()
            self._head.wait()
        os.close(self._report)
        kill_marked(self.mark)  # nothing, unless the head itself was ended


def start_local_ray(asked: Mapping[str, Any], *, meanwhile: Callable[[], object]) -> LocalRay:
    """Start a Ray with these parameters of a node; raises HostNotFit with what Ray said.

    `meanwhile` is done while Ray starts, which takes seconds.
    """
    mark = uuid.uuid4().hex
    their_life, life = os.pipe()
    report, their_report = os.pipe()
    with contextlib.ExitStack() as undo, tempfile.TemporaryFile() as errors:
        undo.callback(os.close, life)
        undo.callback(os.close, report)
        try:
            head = _start_head(asked, mark, (their_life, their_report), errors)
        finally:
            os.close(their_life)
            os.close(their_report)
        undo.callback(head.wait)
        undo.callback(head.kill)
        meanwhile()
        told = _first_report(report, head, errors)
        undo.pop_all()
    url = told["dashboard"]
    return LocalRay(told["address"], told["ip"], f"http://{url}" if url else None, mark, head, life, report)


def _start_head(
    asked: Mapping[str, Any], mark: str, pipes: tuple[int, int], errors: IO[bytes]
) -> "subprocess.Popen[bytes]":
    code = _RUN.format(path=sys.path)  # the head finds this package as this process does
    head = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, pipes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={**os.environ, MARK: mark, HEAD: mark, "SPT_NOENV": "1"},  # or setproctitle writes over the mark
        pass_fds=pipes,
        start_new_session=True,
    )
    assert head.stdin is not None
    with contextlib.suppress(BrokenPipeError), head.stdin:
        head.stdin.write(json.dumps(dict(asked)).encode())
    return head


def _first_report(report: int, head: "subprocess.Popen[bytes]", errors: IO[bytes]) -> dict[str, Any]:
    ready, _, _ = select.select([report], [], [], _START_S)
    lines = os.read(report, 65536).splitlines() if ready else []
    told: dict[str, Any] = json.loads(lines[0]) if lines else {"error": _silent(head, errors, bool(ready))}
    if "error" in told:
        raise HostNotFit("Ray", [f"a local Ray does not start: {told['error']}", NO_RAY])
    return told


def _silent(head: "subprocess.Popen[bytes]", errors: IO[bytes], ended: bool) -> str:
    if not ended:
        return f"nothing was heard of it for {_START_S:g} s"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return f"its process ended with {head.wait()}: {last}"


@contextlib.contextmanager
def local_ray(asked: Mapping[str, Any], *, meanwhile: Callable[[], object]) -> Iterator[LocalRay]:
    """A local Ray that ends with the block, and with this process."""
    made = start_local_ray(asked, meanwhile=meanwhile)
    try:
        yield made
    finally:
        made.end(orderly=made.lost() is None)
