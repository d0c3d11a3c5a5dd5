"""Finds running containers inside a cluster's namespaces, and sends them a signal: `POD CONTAINER NUMBER` one's first
process, `NODE NUMBER` every process of all that a node runs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["on_node", "pids"]


def pids(root: Path, pod: str, container: str) -> list[int]:
    """Of the first processes of containers by this name; `pod` is NAMESPACE/NAME. There is one for each restart."""
    found = []
    for told in root.glob("containers-*/*/spec.json"):
        spec = json.loads(told.read_text())
        pid = told.with_name("pid")
        if (spec["pod"], spec["name"]) == (pod, container) and pid.exists():
            found.append(int(pid.read_text()))
    return [pid for pid in found if Path("/proc", str(pid)).exists()]


def on_node(root: Path, node: int) -> list[int]:
    """Of all processes in a node's containers."""
    found = []
    for told in root.glob(f"containers-{node}/*/pid"):
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(int(told.read_text()))
            found += [first.pid, *(child.pid for child in first.children(recursive=True))]
    return found


def main() -> None:
    *who, number = sys.argv[1:]
    found = pids(Path("/run"), *who) if len(who) == 2 else on_node(Path("/run"), int(who[0]))
    if not found and len(who) == 2:
        sys.exit(f"{who[0]} has no running container {who[1]}")
    for pid in found:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, int(number))


if __name__ == "__main__":
    main()
