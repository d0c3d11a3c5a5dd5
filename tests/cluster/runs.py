"""Run folders: each control plane has one, which is removed at its end. A killed starter can not remove its own, so the
next start removes every folder whose lock is free."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["run_folder", "sweep"]

_LOCK = "owner.lock"


@contextmanager
def run_folder(prefix: str) -> Iterator[Path]:
    """A new folder for as long as the context lasts. First removes the folders of killed starters."""
    sweep(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with (folder / _LOCK).open("w") as lock:  # not inherited by children, so it is free when this process has ended
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(prefix: str) -> None:
    """Removes the folders with this prefix whose owner has ended."""
    for lock_file in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        try:
            with lock_file.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
        except OSError:  # its owner runs, or another process removed it meanwhile
            continue
