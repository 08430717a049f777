"""A port that is given is free, and given to one trial only."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specsearch.host.ports import free_port, port_holder, port_is_free, release_port


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    yield port
    release_port(port)


TAKE = "from specsearch.host.ports import free_port; print(free_port(), flush=True); input()"


def other_process(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}; {TAKE}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_given_port_can_be_bound_and_is_not_one_that_the_kernel_hands_out(port: int) -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < low
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


def test_a_port_is_given_once_also_after_it_was_released(port: int) -> None:
    second = free_port(avoid=[port + 1])
    release_port(second)
    third = free_port()
    release_port(third)
    assert second != port + 1
    assert len({port, second, third}) == 3


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_on_which_a_stranger_listens_is_not_free_and_the_stranger_is_named(address: str, port: int) -> None:
    """RC-12: named, and left alone."""
    with socket.socket() as server:
        server.bind((address, port))
        server.listen()
        assert not port_is_free(port)
        assert str(port_holder(port)).startswith(f"pid {os.getpid()} (")
    assert port_is_free(port)
    assert port_holder(port) is None


def test_a_port_is_free_again_right_after_a_server_with_connections_has_gone(port: int) -> None:
    """LF-12: a connection that fades away does not keep a server from listening."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first and keeps TIME_WAIT
            assert client.recv(1) == b""
    assert port_is_free(port)


def test_two_processes_never_get_the_same_port_and_a_dead_one_holds_none(tmp_path: Path) -> None:
    """The other process starts its search where this one is led to, so only the lock can keep them apart."""
    with other_process(tmp_path) as other:
        assert other.stdout
        theirs = int(other.stdout.readline())
        everything_else = set(range(1, 65536)) - {theirs, theirs + 1, theirs - 1}
        ours = free_port(avoid=everything_else)
        assert ours != theirs
        release_port(ours)
        other.kill()
        other.wait()
        assert free_port(avoid=everything_else | {theirs - 1, theirs + 1}) == theirs
    release_port(theirs)
