"""Holds a process at one moment that no observer could hit: before a file is opened, renamed or removed.

Python imports this by itself where the folder is on PYTHONPATH; nothing of the program under test is changed. It
listens to the interpreter's audit events. CHAOS_HOLD is `PATTERN|FOLDER`: the first event `EVENT PATH` that matches
makes `at` in the folder, with the process's number in it, and waits until there is a file `go`.
"""

import os
import re
import sys
import time
from pathlib import Path

_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir")


def _listen(pattern: "re.Pattern[str]", folder: Path) -> None:
    def hold(event: str, arguments: tuple[object, ...]) -> None:
        if event not in _EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        if pattern.search(f"{event} {os.fspath(arguments[0])}") and _is_first(folder):
            while not (folder / "go").exists():
                time.sleep(0.01)

    sys.addaudithook(hold)


def _is_first(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / "at", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True


if "CHAOS_HOLD" in os.environ:
    _pattern, _, _folder = os.environ["CHAOS_HOLD"].rpartition("|")
    _listen(re.compile(_pattern), Path(_folder))
