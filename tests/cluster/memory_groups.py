"""Memory groups of runs, for the limits of their containers. A killed run leaves its group behind, and the next run
removes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from cluster.cri import memory
from cluster.errors import ClusterError

__all__ = ["name_of", "sweep"]

_PREFIX = "plumage-test-"
_LONGEST = 255  # bytes of a file name


def name_of(run: Path) -> str:
    """The group of a run folder. Raises ClusterError if the folder's path is too long."""
    name = _PREFIX + quote(str(run.resolve()), safe="")
    if len(name) > _LONGEST:
        raise ClusterError(f"{run} is too long a path for a run: name another folder by RUN")
    return name


def sweep(lives: Callable[[Path], bool]) -> None:
    """Removes the groups of ended runs that have no process."""
    own = memory.own_group()
    for group in own.glob(f"{_PREFIX}*") if own else ():
        run = Path(unquote(group.name.removeprefix(_PREFIX)))
        if run.is_absolute() and not lives(run):
            memory.remove_tree(group)
