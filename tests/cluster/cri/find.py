"""Finds a running container inside a cluster's namespaces, and sends it a signal: `POD CONTAINER NUMBER`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["pids"]


def pids(root: Path, pod: str, container: str) -> list[int]:
    """Of the first processes of containers by this name; `pod` is NAMESPACE/NAME. There is one for each restart."""
    found = []
    for told in root.glob("containers-*/*/spec.json"):
        spec = json.loads(told.read_text())
        pid = told.with_name("pid")
        if (spec["pod"], spec["name"]) == (pod, container) and pid.exists():
            found.append(int(pid.read_text()))
    return [pid for pid in found if Path("/proc", str(pid)).exists()]


def main() -> None:
    pod, container, number = sys.argv[1:]
    found = pids(Path("/run"), pod, container)
    if not found:
        sys.exit(f"{pod} has no running container {container}")
    for pid in found:
        os.kill(pid, int(number))


if __name__ == "__main__":
    main()
