"""The one folder outside the tree that keeps programs and images, and the lock under which it is filled."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MODULES", "VERSION", "bin_folder", "folder", "locked", "say"]

MODULES = Path(__file__).parent / "go"


def _version() -> str:
    """Kubernetes' version, and a digest of every pin, so that a change of one makes a new folder."""
    pins = sorted(MODULES.glob("*/go.mod"))
    text = "".join(path.read_text() for path in pins)
    found = re.search(r"^(?:require)?\s+k8s\.io/kubernetes v(\S+)$", text, re.MULTILINE)
    assert found is not None, f"{MODULES}/kubernetes/go.mod requires no k8s.io/kubernetes"
    return f"{found[1]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


VERSION = _version()


def folder() -> Path:
    """What survives runs, by `PLUMAGE_CACHE`, else by the XDG rule."""
    root = os.environ.get("PLUMAGE_CACHE")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plumage")
    return Path(root) / "cluster"


def bin_folder() -> Path:
    """Where the programs of these pins are."""
    return folder() / VERSION / "bin"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time does what `name` says; the others wait, and say once that they do."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that has {lock.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Progress, on stderr: stdout is for what a shell evaluates."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)
