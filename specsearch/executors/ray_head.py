"""The process that owns a local Ray: it starts Ray's daemons, and ends them when the study that wanted them ends.

    study ══ pipe ══► head ──► gcs_server, raylet, dashboard … ──► workers

It has a session of its own, so that what ends the study's process group (`timeout`, a closing terminal) leaves Ray
alone: the study takes its servers down through Ray. It holds the reading end of a pipe whose writing end only the
study has: the end of that file is the end of the study. A daemon that is gone is told at once, where Ray's own
clients would wait for a minute.
"""

import json
import os
import select
import signal
import sys
from typing import Any

from specsearch.clock import SystemClock, wait_until
from specsearch.host.guard import GUARD, environment_of, process_table, send

MARK = "SPECSEARCH_RAY"  # in every process of a local Ray: which one it belongs to; in its head and in guards, too
HEAD = "SPECSEARCH_RAY_HEAD"  # in the head alone
ORDERLY = b"."  # what the study writes before it closes the pipe, when nothing of it runs any more
_LOOK_S = 0.25
_END_S = 5.0
_POLL_S = 0.05


def main() -> None:
    """Start what stdin asks for, report it, and stay until the study is gone or a daemon is."""
    life, report = int(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda *_: None
        )  # only the study ends it; unlike "ignore" the daemons do not inherit this
    asked = json.load(sys.stdin)
    del os.environ[HEAD]
    try:
        node = _start(asked)
    except Exception as error:  # noqa: BLE001 - told to the study, which says it
        _tell(report, {"error": str(error)})
        return
    _tell(report, {"address": node.gcs_address, "ip": node.node_ip_address, "dashboard": node.webui_url})
    gone = _stay(node, life)
    if gone:
        _tell(report, {"gone": gone})
    elif os.read(life, 1) == ORDERLY:
        node.kill_all_processes(check_alive=False, allow_graceful=True)
    kill_marked(os.environ[MARK])


def kill_marked(mark: str) -> None:
    """End what is left of the local Ray with this mark; guards end by themselves, and their servers first."""
    wait_until(lambda: not _kill(mark), timeout_s=_END_S, poll_s=_POLL_S, clock=SystemClock())


def _kill(mark: str) -> bool:
    """Whether there was anything to kill."""
    found = False
    for stat in process_table().values():
        if stat.pid == os.getpid() or not stat.is_alive:
            continue
        variables = environment_of(stat.pid, b"SPECSEARCH_")
        if variables.get(MARK) == mark and GUARD not in variables:
            found = True
            send(stat, signal.SIGKILL)
    return found


def _start(asked: dict[str, Any]) -> Any:
    """As `ray.init` does for itself."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(dashboard_port=None, **asked)
    return Node(parameters, head=True, shutdown_at_exit=False, spawn_reaper=True, ray_init_cluster=True)


def _stay(node: Any, life: int) -> str | None:
    """Return when the study is gone (None), or with what Ray cannot do without and has lost."""
    while not select.select([life], [], [], _LOOK_S)[0]:
        for kind, process in node.dead_processes():
            if kind in ("gcs_server", "raylet"):
                return f"its {kind} ended with {process.returncode}"
    return None


def _tell(report: int, said: dict[str, Any]) -> None:
    try:
        os.write(report, json.dumps(said).encode() + b"\n")
    except BrokenPipeError:  # the study is gone, which the other pipe says as well
        return
