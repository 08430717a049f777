"""A child of the simulated server, run as a script: it bears SGLang's name for it and waits for its end.

It is started anew and not forked, so that /proc shows it as it shows a rank of SGLang: under its title, with the
environment that the server had settled by then. The standard library alone, so that a start costs some 10 ms.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NAME = 15
_ARG_START, _ARG_END = 48, 49  # fields of /proc/PID/stat, counted from 1


def set_title(title: str) -> None:
    """Show the title in place of the command line, as far as that had room."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode(), 0, 0, 0)
    with open("/proc/self/stat", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would double the time of a start
        fields = file.read().rpartition(")")[2].split()  # the name may hold spaces; fields go on from 3
    start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
    if 0 < start < end:
        room = end - start
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


def main() -> None:
    title, parent, stubborn, new_session = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:  # SGLang's children die with their parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
    if new_session:
        os.setsid()
    set_title(title)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
