"""What the commands share: the console script, error sentences, exit codes."""

import argparse
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TextIO

from specsearch import __version__
from specsearch.errors import SpecSearchError, StorageError

COMMANDS = {
    "tune": "search the settings of a space and say which are fastest",
    "check": "is this node, this engine, this drafter and this space fit?",
    "report": "the verdict again, from the rows of a results folder",
}
EXIT_CODES = """\
exit codes: 0 a verdict (check: fit) · 1 no trial can be ranked · 2 wrong configuration or usage ·
3 the host or cluster is not fit · 4 the results folder cannot be used · 70 a bug of specsearch ·
129 hung up · 130 interrupted · 143 terminated"""


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """The parser of one command with what all of them have."""
    made = argparse.ArgumentParser(
        prog=f"python -m specsearch.{command}",
        description=description,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--format", choices=("text", "json"), default="text", help="text for people, json for machines")
    made.add_argument("--traceback", action="store_true", help="show where an error was raised")
    made.add_argument("--version", action="version", version=f"specsearch {__version__}")
    return made


def run_command(
    build_parser: Callable[[], argparse.ArgumentParser],
    run: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, run, and turn errors into a sentence on stderr and an exit code."""
    _open_what_is_closed()
    _write_anything()
    arguments = build_parser().parse_args(argv)
    code = _run(run, arguments)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        if not _flushes(stream):  # Python would try once more at its end, and end with a code of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    if any(thread.daemon and thread.name.startswith("specsearch-") for thread in threading.enumerate()):
        os._exit(code)  # it hangs in a library, for whose exit handlers Python would wait, or crash under it
    return code


def _run(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    try:
        code = run(arguments)
        show()
        return code
    except SpecSearchError as error:
        if arguments.traceback:
            traceback.print_exc()
        _complain(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        return _reader_gone()
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes an exit code
        with suppress(OSError):
            traceback.print_exc()
        _complain(f"error: this is a bug of specsearch: {type(error).__name__}: {error}")
        return 70


def show(text: str | None = None) -> None:
    """Print to standard output, whole; raises StorageError when it cannot be written, as on a full disk."""
    try:
        if text is not None:
            print(text)
        if sys.stdout is not None:  # None where it is closed
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write to standard output: {error.strerror}; what was stored before is untouched, and the same "
            "command prints it again"
        ) from error


def _complain(sentence: str) -> None:
    with suppress(OSError):  # where nobody can be told, the exit code still says it
        print(sentence, file=sys.stderr, flush=True)


def _flushes(stream: TextIO | None) -> bool:
    """Whether everything printed there has left."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return False
    return True


def _open_what_is_closed() -> None:
    """Or the next file gets the number of a closed standard stream, and with it what libraries write there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stderr is None:  # print would take standard output instead, which may be read by a machine
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the process lives


def _write_anything() -> None:
    """A terminal that lacks a character, or a file name that is no text, must not cost a verdict."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            stream.reconfigure(errors="backslashreplace")


def _reader_gone() -> int:
    """Whoever read our output has left (`| head`): end without a word, with the code of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
    return 128 + signal.SIGPIPE


def main() -> int:
    """The console script: `specsearch COMMAND …`."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        try:
            return _usage(sys.argv[1:])
        except BrokenPipeError:
            return _reader_gone()
    command = sys.argv[1]
    module = import_module(f"specsearch.{command}")
    return run_command(module.build_parser, module.run, sys.argv[2:])


def _usage(words: Sequence[str]) -> int:
    wanted = bool(words) and words[0] in ("-h", "--help", "--version")
    if words[:1] == ["--version"]:
        print(f"specsearch {__version__}")
        return 0
    lines = ["usage: specsearch COMMAND …", "", *(f"  {name:<8} {what}" for name, what in COMMANDS.items())]
    lines += ["", "specsearch COMMAND --help says more.", EXIT_CODES]
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr, flush=True)
    if words and not wanted:
        print(f"error: {words[0]!r} is no command; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
    return 0 if wanted else 2
