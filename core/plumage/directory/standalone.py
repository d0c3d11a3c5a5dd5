"""`python -m plumage.directory.standalone --port N --max-memory BYTES`: the directory's server of a pool in a cluster.

This process becomes the server (exec), so that signals and exit codes are its own. It keeps nothing on disk: agents
publish again what they hold when it comes back empty. It listens on all addresses and asks for no password; who may
reach it is the NetworkPolicy's to say, and it holds hashes and counts only.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from plumage.directory.server import find_server
from plumage.errors import ConfigurationError

__all__ = ["command", "main"]


def command(binary: Path, port: int, max_memory: int, folder: Path) -> list[str]:
    """The server's own command line. max_memory: bytes; above it writes are refused, and the writers say so."""
    settings = {
        "port": str(port), "bind": "* -::*", "protected-mode": "no", "dir": str(folder), "save": "", "appendonly": "no",
        "daemonize": "no", "maxmemory": str(max_memory), "maxmemory-policy": "noeviction", "databases": "1",
        "tcp-keepalive": "60", "loglevel": "notice",
    }  # fmt: skip
    return [str(binary), *(part for name, value in settings.items() for part in (f"--{name}", value))]


def main(arguments: list[str] | None = None) -> None:
    """Does not return; exits with 2 where there is no server to become."""
    parser = argparse.ArgumentParser(prog="python -m plumage.directory.standalone", description=__doc__)
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
