"""The folder outside the repository that keeps programs and images, and the lock for writing to it."""

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
    """Kubernetes' version and a digest of all pins, so that each change of a pin makes a new folder."""
    pins = sorted(MODULES.glob("*/go.mod"))
    text = "".join(path.read_text() for path in pins)
    found = re.search(r"^(?:require)?\s+k8s\.io/kubernetes v(\S+)$", text, re.MULTILINE)
    assert found is not None, f"{MODULES}/kubernetes/go.mod requires no k8s.io/kubernetes"
    return f"{found[1]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


VERSION = _version()


def folder() -> Path:
    """The cache: `PLUMAGE_CACHE`, else the folder of the XDG rule. It survives runs."""
    root = os.environ.get("PLUMAGE_CACHE")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plumage")
    return Path(root) / "cluster"


def bin_folder() -> Path:
    """The folder of the programs that these pins make."""
    return folder() / VERSION / "bin"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Lets one process at a time do what `name` says. The others wait, and print once that they wait."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that has {lock.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Prints progress to stderr: a shell evaluates stdout."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)
