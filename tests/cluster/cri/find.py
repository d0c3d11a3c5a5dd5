"""Finds running containers inside a cluster's namespaces, and sends them a signal. `POD CONTAINER NUMBER` signals the
first process of a container, `NODE NUMBER` every process that a node runs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["on_node", "pids"]


def pids(root: Path, pod: str, container: str) -> list[int]:
    """The pids of the first processes of containers with this name. `pod` is NAMESPACE/NAME. Each restart has its
    own."""
    found = []
    for spec_file in root.glob("containers-*/*/spec.json"):
        spec = json.loads(spec_file.read_text())
        pid = spec_file.with_name("pid")
        if (spec["pod"], spec["name"]) == (pod, container) and pid.exists():
            found.append(int(pid.read_text()))
    return [pid for pid in found if Path("/proc", str(pid)).exists()]


def on_node(root: Path, node: int) -> list[int]:
    """The pids of all processes in a node's containers."""
    found = []
    for pid_file in root.glob(f"containers-{node}/*/pid"):
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(int(pid_file.read_text()))
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
