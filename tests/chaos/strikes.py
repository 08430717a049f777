"""Striking: who a victim is, and what is done to it."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.chaos.scene import Run, Scene, Seen, send, wait_until

SIGNALS: Mapping[str, int] = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "int": signal.SIGINT,
    "hup": signal.SIGHUP,
}
_APPEARS_S = 1.0  # a child that was just forked has no name yet


def victims(name: str, scene: Scene, run: Run) -> list[int]:
    """The processes of that role; empty when there is none at this moment."""
    if name == "driver":
        return [run.process.pid]
    seen = scene.processes()
    if name == "everything":
        return [process.pid for process in seen]
    if name == "guard+driver":
        return [*(process.pid for process in seen if process.is_guard), run.process.pid]
    guards = {process.pid for process in seen if process.is_guard}
    leaders = {process.pid for process in seen if process.is_served and process.parent in guards}
    return [process.pid for process in seen if _ROLES[name](process, guards, leaders)][:1]


def _ray_process(beginning: str) -> Callable[[Seen, set[int], set[int]], bool]:
    return lambda seen, guards, leaders: not seen.is_served and not seen.is_guard and seen.name.startswith(beginning)


_ROLES: Mapping[str, Callable[[Seen, set[int], set[int]], bool]] = {
    "guard": lambda seen, guards, leaders: seen.is_guard,
    "leader": lambda seen, guards, leaders: seen.pid in leaders,
    "rank": lambda seen, guards, leaders: seen.parent in leaders and seen.name.startswith("sglang::sched"),
    "helper": lambda seen, guards, leaders: seen.parent in leaders and seen.name.startswith("sglang::detok"),
    "worker": _ray_process("ray::SpecsearchTrial"),
    "orders": _ray_process("ray::SpecsearchOrders"),
    "raylet": _ray_process("raylet"),
    "gcs": _ray_process("gcs_server"),
    "head": lambda seen, guards, leaders: "SPECSEARCH_RAY_HEAD" in seen.env and seen.name.startswith("python"),
}


def strike(name: str, act: str, scene: Scene, run: Run) -> list[int]:
    """Send the signal; returns who was struck."""
    if name == "group":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid, SIGNALS[act])
        return [run.process.pid]
    struck: list[int] = []
    wait_until(lambda: bool(struck.extend(victims(name, scene, run)) or struck), _APPEARS_S)
    if len(struck) > 1:
        send(struck, signal.SIGSTOP)  # so that none of them sees another one die
    send(struck, SIGNALS[act])
    return struck


@contextlib.contextmanager
def broken_disk(act: str, scene: Scene, writer: int) -> Iterator[None]:
    """The results folder as it must not be, until the block ends."""
    with _BREAKS[act](scene.results, writer):
        yield


@contextlib.contextmanager
def _full(results: Path, writer: int) -> Iterator[None]:
    """The folder lies on a file system of its own (`on_its_own_disk`); it shrinks to what is in it."""
    used = os.statvfs(results)
    _mount("-o", f"remount,size={(used.f_blocks - used.f_bfree) * used.f_frsize}", str(results))
    try:
        yield
    finally:
        _mount("-o", "remount,size=2g", str(results))


@contextlib.contextmanager
def _too_large(results: Path, writer: int) -> Iterator[None]:
    """No file of the writer may grow, as with a quota or on a disk that is full but for a few bytes."""
    soft, hard = resource.prlimit(writer, resource.RLIMIT_FSIZE)
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(writer, resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def _read_only(results: Path, writer: int) -> Iterator[None]:
    """A mount of the folder over itself; permissions would not keep root out."""
    if os.geteuid():
        modes = {path: path.stat().st_mode for path in (results, *filter(Path.is_dir, results.rglob("*")))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    _mount("--bind", str(results), str(results))
    try:
        _mount("-o", "remount,ro,bind", str(results))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(results)], check=True)


@contextlib.contextmanager
def _moved(results: Path, writer: int) -> Iterator[None]:
    away = results.with_name("moved")
    results.rename(away)
    try:
        yield
    finally:
        if results.exists():  # made anew by somebody who did not notice
            shutil.rmtree(results)
        away.rename(results)


_BREAKS = {"full": _full, "too_large": _too_large, "read_only": _read_only, "moved": _moved}


@contextlib.contextmanager
def on_its_own_disk(results: Path, *, wanted: bool) -> Iterator[None]:
    """A small file system for the folder, where that is wanted."""
    results.mkdir(exist_ok=True)
    if wanted:
        _mount("-t", "tmpfs", "-o", "size=2g", "specsearch-chaos", str(results))
    try:
        yield
    finally:
        if wanted:
            subprocess.run(["umount", "--lazy", str(results)], check=True)


def needs_mounts(act: str) -> bool:
    """Whether the accident is made by mounting something; permissions do for users other than root."""
    return act == "full" or (act == "read_only" and os.geteuid() == 0)


def can_mount(folder: Path) -> bool:
    """Whether this user may mount file systems."""
    try:
        with on_its_own_disk(folder / "probe", wanted=True):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
