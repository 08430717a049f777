"""Ports for servers: free now, and nobody else of ours takes the same one meanwhile."""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Collection
from itertools import chain
from pathlib import Path

from specsearch.errors import FailedTrial
from specsearch.host.guard import process_table
from specsearch.host.processes import command_of

# Below what the kernel hands out by itself (32768 on, by default) and away from SGLang's own choices: 22000 to 29999
# for NCCL, 30000 for HTTP.
_PORTS = range(12000, 22000)

_locks: dict[int, int] = {}  # port → file descriptor that holds its lock
_given: set[int] = set()


def free_port(avoid: Collection[int] = ()) -> int:
    """A port on which a server can listen, locked against every other study of this user on this node.

    The lock ends with `release_port` or with this process. A port is not given twice by one process: a server that is
    restarted on the port of its predecessor has been seen to hang.
    """
    offset = os.getpid() * 37 % len(_PORTS)  # different processes begin in different places
    for port in chain(_PORTS[offset:], _PORTS[:offset]):
        if port in avoid or port in _given:
            continue
        if _lock(port):
            if port_is_free(port):
                _given.add(port)
                return port
            release_port(port)
    raise FailedTrial("port_taken", f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} is free")


def release_port(port: int) -> None:
    """Let others have the port."""
    descriptor = _locks.pop(port, None)
    if descriptor is not None:
        os.close(descriptor)


def port_is_free(port: int) -> bool:
    """Whether a server could listen on it, on any address of this host."""
    with socket.socket() as probe:
        # As servers do: connections that are fading away after a server's end do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen()
        except OSError:
            return False
    return True


def port_holder(port: int) -> str | None:
    """Who listens on the port, as `pid 17 (command)`; None where nobody does or it cannot be seen."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for pid in process_table() if sockets else ():
        with contextlib.suppress(OSError):
            if any(str(link.readlink()) in sockets for link in Path(f"/proc/{pid}/fd").iterdir()):
                return f"pid {pid} ({command_of(pid)})"
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: LISTEN
                    inodes.add(fields[9])
    return inodes


def _lock(port: int) -> bool:
    folder = Path(tempfile.gettempdir(), f"specsearch-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / f"{port}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _locks[port] = descriptor
    return True
