"""Memory limits of containers, where this machine has a v1 memory controller and lets us make groups. Elsewhere limits
are not enforced, and the log says so."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["MemoryGroup", "make", "own_group", "remove_tree"]


def own_group() -> Path | None:
    """This process's own group, if groups can be made under it."""
    try:
        rows = [row.split(":", 2) for row in Path("/proc/self/cgroup").read_text().splitlines()]
        path = next(path for _, controllers, path in rows if controllers == "memory")
        top = Path("/sys/fs/cgroup/memory" + path.rstrip("/"))
    except (OSError, StopIteration):
        return None
    return top if os.access(top, os.W_OK) and (top / "memory.limit_in_bytes").exists() else None


class MemoryGroup:
    """One container's group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def was_killed(self) -> bool:
        """Whether the kernel killed a process of the group because of its limit."""
        try:
            rows = dict(row.split() for row in (self.folder / "memory.oom_control").read_text().splitlines())
        except OSError:
            return False
        return rows.get("oom_kill", "0") != "0"

    def remove(self) -> None:
        with suppress(OSError):  # a process of it may still be ending; then the end of the run removes the group
            self.folder.rmdir()


def make(parent: Path, name: str, limit_bytes: int) -> MemoryGroup:
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    return MemoryGroup(folder)


def remove_tree(group: Path) -> None:
    """Removes a group and its subgroups that have no process."""
    for child in (path for path in group.glob("*") if path.is_dir()):
        remove_tree(child)
    with suppress(OSError):
        group.rmdir()
