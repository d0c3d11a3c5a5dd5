"""How many open files a router may need: what the router asks the system for, and what `plumage doctor` looks for."""

from __future__ import annotations

__all__ = ["files_of_router"]

_SPARE = 512  # descriptors for the directory, logs and the process itself


def files_of_router(connections: int, in_flight: int) -> int:
    """Returns one for each client's connection and each request in flight, and some for the rest."""
    return connections + in_flight + _SPARE
