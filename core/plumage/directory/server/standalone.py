"""Runs the directory server of a pool in a pod.

Usage: `python -m plumage.directory.server.standalone --port N --max-memory BYTES`

This process becomes the server (exec), so signals and exit codes are the server's. The server keeps nothing on disk:
after a restart the agents publish their chunks again. It listens on all addresses without a password; the
NetworkPolicy restricts access. It stores hashes and counts only.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from plumage.directory.server.local_server import find_server
from plumage.errors import ConfigurationError

__all__ = ["command", "main"]


def command(binary: Path, port: int, max_memory: int, folder: Path) -> list[str]:
    """The command line of the server. max_memory: bytes; above it the server refuses writes, and the writers log it."""
    settings = {
        "port": str(port), "bind": "* -::*", "protected-mode": "no", "dir": str(folder), "save": "", "appendonly": "no",
        "daemonize": "no", "maxmemory": str(max_memory), "maxmemory-policy": "noeviction", "databases": "1",
        "tcp-keepalive": "60", "loglevel": "notice",
    }  # fmt: skip
    return [str(binary), *(part for name, value in settings.items() for part in (f"--{name}", value))]


def main(arguments: list[str] | None = None) -> None:
    """Does not return. Exits with 2 if no server binary is found."""
    parser = argparse.ArgumentParser(prog="python -m plumage.directory.server.standalone", description=__doc__)
    parser.add_argument("--port", type=int, default=6379, help="where it listens, on all addresses")
    parser.add_argument("--max-memory", type=int, required=True, help="bytes")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="a folder that it may write to")
    options = parser.parse_args(arguments)
    try:
        line = command(find_server(), options.port, options.max_memory, options.folder)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
