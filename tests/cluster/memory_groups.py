"""Groups of runs for their containers' memory limits. A run that was killed leaves its own: the next removes it."""

from __future__ import annotations

import os
import secrets

import psutil

from cluster.cri import memory

__all__ = ["new_name", "sweep"]

_PREFIX = "plumage-test"


def new_name() -> str:
    """Tells who made it."""
    return f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"


def sweep() -> None:
    """Removes groups without processes whose maker is no more."""
    own = memory.own_group()
    for group in own.glob(f"{_PREFIX}-*") if own else ():
        maker = group.name.removeprefix(f"{_PREFIX}-").partition("-")[0]
        if not (maker.isdigit() and psutil.pid_exists(int(maker))):
            memory.remove_tree(group)
