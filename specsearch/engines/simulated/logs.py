"""SGLang's log: `[2026-01-31 09:00:00 TP0] message` on stderr, the web server's lines on stdout."""

import sys
import time
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Log:
    """Writes whole lines at once; ranks are named only where there are several."""

    ranks: bool

    def parent(self, message: str) -> None:
        """A line of the HTTP process."""
        self._write(sys.stderr, "", message)

    def rank(self, message: str, rank: int = 0) -> None:
        """A line of a scheduler."""
        self._write(sys.stderr, f" TP{rank}" if self.ranks else "", message)

    def web(self, message: str, level: str = "INFO") -> None:
        """A line of the web server."""
        self._write(sys.stdout, "", f"{level + ':':<10}{message}")

    def raw(self, text: str) -> None:
        """Lines without a prefix, as tracebacks and libraries write them."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    @staticmethod
    def _write(output: TextIO, rank: str, message: str) -> None:
        output.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {message}\n")
        output.flush()


def traceback_of(error: str, *frames: str) -> str:
    """A traceback as a scheduler logs it, its last line the error."""
    lines = [f'  File "sglang/srt/{frame}' for frame in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, error])
