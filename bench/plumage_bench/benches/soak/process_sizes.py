"""What a process holds, from Linux' /proc: memory, threads, descriptors, and sockets by state."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["ProcessSize", "memory_and_threads", "process_size", "socket_states", "tcp_states"]

_PROC: Final = Path("/proc")
_TABLES: Final = ("tcp", "tcp6")
_STATES: Final = {  # include/net/tcp_states.h
    "01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2", "06": "TIME_WAIT",
    "07": "CLOSE", "08": "CLOSE_WAIT", "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING", "0C": "NEW_SYN_RECV",
}  # fmt: skip
_NOT_TCP: Final = "not TCP"  # a Unix socket, or a TCP socket that is not connected
_SOCKET: Final = "socket:["


@dataclass(frozen=True, slots=True)
class ProcessSize:
    """resident: bytes of memory. anonymous: those of them that are of no file. files: open descriptors, of which
    `sockets` counts some by state."""

    pid: int
    resident: int
    anonymous: int
    threads: int
    files: int
    sockets: Mapping[str, int]


def process_size(pid: int, states: Mapping[int, str]) -> ProcessSize | None:
    """None if the process has ended. states: of `socket_states`."""
    folder = _PROC / str(pid)
    try:
        resident, anonymous, threads = memory_and_threads((folder / "status").read_text())
        links = list(_links(folder / "fd"))
    except (OSError, KeyError):  # a process that ends has a status without memory
        return None
    sockets = Counter(states.get(inode, _NOT_TCP) for inode in _inodes(links))
    return ProcessSize(pid, resident, anonymous, threads, len(links), dict(sockets))


def memory_and_threads(status: str) -> tuple[int, int, int]:
    """Bytes resident, anonymous bytes, and threads, from a status file. KeyError if it has no memory."""
    fields = {name: value for name, _, value in (line.partition(":") for line in status.splitlines())}
    resident, anonymous = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    return resident, anonymous, int(fields["Threads"])


def socket_states() -> dict[int, str]:
    """The states of all TCP sockets of this network namespace, by inode."""
    found: dict[int, str] = {}
    for table in _TABLES:
        path = _PROC / "net" / table
        if path.exists():  # a system may have no IPv6
            found |= tcp_states(path.read_text())
    return found


def tcp_states(table: str) -> dict[int, str]:
    """The same of one table. A socket that no process has, in TIME_WAIT, has no inode and is left out."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {int(row[9]): _STATES.get(row[3], row[3]) for row in rows if int(row[9])}


def _links(folder: Path) -> Iterator[str]:
    """Where the descriptors lead. One may be closed meanwhile."""
    for name in os.listdir(folder):
        try:
            yield os.readlink(folder / name)
        except FileNotFoundError:
            continue


def _inodes(links: Iterable[str]) -> Iterator[int]:
    return (int(link[len(_SOCKET) : -1]) for link in links if link.startswith(_SOCKET))
