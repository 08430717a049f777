"""A container runtime as docker is seen from outside, without isolation: a daemon, and a client that can be killed.

What runs in a container is the daemon's child and not the client's, inherits no variable, and lives on when its client
is killed. The client hands SIGTERM on and ends with the exit code of the container. `docker kill NAME` ends all of it.
In a container of the image HIDDEN nothing carries our marks, as where /proc of its processes cannot be read.
"""

import array
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HIDDEN = "hidden"
_WITH_VALUE = ("--name", "-e", "-v", "--gpus")
_INSIDE = "FAKE_DOCKER_CONTAINER"
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class FakeDocker:
    """A running daemon and the program that talks to it."""

    folder: Path

    @property
    def program(self) -> str:
        return str(self.folder / "docker")

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *words], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)

    def running(self) -> list[str]:
        """The names of the containers that run."""
        return self.ask("ps").stdout.split()

    def clients(self) -> list[list[str]]:
        """The words of every `docker run` so far, as a list of processes would have shown them."""
        return [json.loads(line) for line in (self.folder / "clients").read_text().splitlines()]


@contextmanager
def fake_docker() -> Iterator[FakeDocker]:
    """A daemon of its own; on leaving, it is gone with every container."""
    folder = Path(tempfile.mkdtemp(prefix="fake-docker-", dir="/tmp"))  # short: a socket lies in it
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" client "{folder}" "$@"\n')
    program.chmod(0o755)
    daemon = subprocess.Popen([sys.executable, "-S", __file__, "daemon", str(folder)], start_new_session=True)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (folder / "ready").exists():
            assert time.monotonic() < deadline, "the daemon did not start"
            time.sleep(0.01)
        yield FakeDocker(folder)
    finally:
        daemon.terminate()
        daemon.wait(_PATIENCE_S)
        shutil.rmtree(folder)


def _run(folder: Path, words: list[str]) -> int:
    """`docker run OPTIONS IMAGE COMMAND`: start a container and stay until it ends."""
    with (folder / "clients").open("a") as file:
        file.write(json.dumps(words) + "\n")
    options: list[tuple[str, str]] = []
    while words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        options.append((option, words.pop(0) if option in _WITH_VALUE and not value else value))
    given = [value.partition("=") for option, value in options if option == "-e"]
    request = {
        "name": dict(options).get("--name", f"nameless-{os.getpid()}"),
        "env": {name: value if equals else os.environ[name] for name, equals, value in given},
        "image": words[0],
        "argv": words[1:],
    }
    with _connected(folder) as connection:
        signal.signal(signal.SIGTERM, lambda *_: connection.sendall(b"term\n"))
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))]
        connection.sendmsg([json.dumps(["run", request]).encode() + b"\n"], fds)
        return int(connection.makefile().readline() or 125)


def _tell(folder: Path, words: list[str]) -> int:
    """`docker kill NAME` and `docker ps`."""
    with _connected(folder) as connection:
        connection.sendall(json.dumps(words).encode() + b"\n")
        code, said = json.loads(connection.makefile().readline())
    print(said, file=sys.stderr if code else sys.stdout)
    return int(code)


def _connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / "socket"))
    return connection


class _Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    containers: dict[str, subprocess.Popen[bytes]]

    def kill(self, name: str) -> None:
        """End every process of a container, as the end of its process namespace does."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_INSIDE}={name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:
                continue


class _Call(socketserver.BaseRequestHandler):
    server: _Daemon

    def handle(self) -> None:
        line, fds, _, _ = socket.recv_fds(self.request, 1 << 16, 2)
        what, *rest = json.loads(line)
        containers = self.server.containers
        if what == "run":
            self._run(rest[0], *fds)
        elif what == "ps":
            self._answer(0, "\n".join(name for name, process in containers.items() if process.poll() is None))
        elif what == "kill" and rest[0] in containers and containers[rest[0]].poll() is None:
            self.server.kill(rest[0])
            self._answer(0, rest[0])
        else:
            self._answer(1, f"Error response from daemon: no such container: {rest[0]}")

    def _answer(self, code: int, said: str) -> None:
        self.request.sendall(json.dumps([code, said]).encode() + b"\n")

    def _run(self, request: dict[str, Any], out: int, err: int) -> None:
        env = {"PATH": os.defpath, "HOME": "/tmp", _INSIDE: request["name"], **request["env"]}
        if request["image"] == HIDDEN:
            env = {name: value for name, value in env.items() if name not in ("SPECSEARCH_TRIAL", "SPECSEARCH_LAUNCH")}
        process = subprocess.Popen(
            request["argv"], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        os.close(out)
        os.close(err)
        self.server.containers[request["name"]] = process
        threading.Thread(target=self._hand_signals_on, args=[process], daemon=True).start()
        code = process.wait()
        self.server.kill(request["name"])
        try:
            self.request.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
        except BrokenPipeError:  # the client was killed
            return

    def _hand_signals_on(self, process: subprocess.Popen[bytes]) -> None:
        while self.request.recv(64):
            process.terminate()


def _serve(folder: Path) -> None:
    daemon = _Daemon(str(folder / "socket"), _Call)
    daemon.containers = {}

    def end(*_: object) -> None:
        for name in daemon.containers:
            daemon.kill(name)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    (folder / "ready").touch()
    daemon.serve_forever()


if __name__ == "__main__":
    kind, where, *arguments = sys.argv[1:]
    if kind == "daemon":
        _serve(Path(where))
    elif arguments[0] == "run":
        sys.exit(_run(Path(where), arguments[1:]))
    else:
        sys.exit(_tell(Path(where), arguments))
