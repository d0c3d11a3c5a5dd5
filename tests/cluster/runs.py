"""Run folders: one for each control plane, and gone with it. A starter that was killed can't remove its own, so the
next start does, for every folder whose lock nobody holds any more."""

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
    """A new folder for as long as the context lasts, after those that are left over were removed."""
    sweep(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with (folder / _LOCK).open("w") as lock:  # not inherited: it is free once this process is no more
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(prefix: str) -> None:
    """Removes the folders with this prefix whose owner is no more."""
    for lock_file in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        try:
            with lock_file.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
        except OSError:  # held, or removed meanwhile
            continue
