"""The folder of a pool that is up: mode 0700, one per pool, locked while its supervisor lives.

The lock is the truth about liveness: the kernel drops it however the supervisor ends, so a folder whose lock can be
taken is stale, and is swept. Files in it are replaced atomically; readers see the old or the new one, never half.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plumage_cli.errors import CliError, trouble

__all__ = ["MIN_FREE_BYTES", "PoolFolder", "base_folder", "live_pools", "stale_pools", "sweep", "write_atomically"]

MIN_FREE_BYTES = 64 * 1024 * 1024  # logs, the directory's files, and some room to breathe
_TRIES, _PAUSE = 8, 0.05
_LONGEST_SOCKET = 100  # Linux takes 107 bytes of path for a Unix socket


def base_folder() -> Path:
    """Where all pools of this user lie; created with mode 0700, refused when somebody else owns it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "plumage" if runtime else Path(tempfile.gettempdir()) / f"plumage-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = base.lstat()
    except OSError as error:
        raise CliError(
            f"can't use {base} for state: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise CliError(f"{base} is not a folder of yours alone; remove it, or set XDG_RUNTIME_DIR to one that is")
    return base


class PoolFolder:
    """The folder of one pool, held by its supervisor."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def take(cls, pool: str) -> PoolFolder:
        """A fresh folder for `pool`; CliError when the pool is up already or there is no room."""
        sweep()
        path = base_folder() / pool
        if len(str(path)) > _LONGEST_SOCKET - 20:
            raise CliError(f"{path} is too long a path for Unix sockets; set XDG_RUNTIME_DIR to a shorter one")
        if path.is_symlink():
            raise CliError(f"{path} is a link, where a pool's own folder must be; remove it")
        lock = _hold(path)
        if lock is None:
            raise CliError(
                f"pool {pool} is up already; stop it with Ctrl-C where it runs, or see: plumage status {pool}"
            )
        try:
            _empty(path)
        except OSError as error:
            os.close(lock)
            raise CliError(f"can't empty the folder of pool {pool}: {trouble(error)}") from None
        free = shutil.disk_usage(path).free
        if free < MIN_FREE_BYTES:
            os.close(lock)
            shutil.rmtree(path, ignore_errors=True)
            raise CliError(f"only {free // 2**20} MiB free at {path}; free some, or set XDG_RUNTIME_DIR elsewhere")
        return cls(path, lock)

    def write(self, name: str, content: Mapping[str, Any] | str) -> Path:
        """Put a file there (mode 0600), at once or not at all; CliError when there is no room, for example."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        path = self.path / name
        try:
            return write_atomically(path, text)
        except OSError as error:
            raise CliError(f"can't write {trouble(error, path)}") from None

    def secret(self, name: str) -> Path:
        """A file with a fresh random token."""
        return self.write(name, secrets.token_urlsafe(32) + "\n")

    def remove(self) -> None:
        """Leave nothing behind. The folder goes before its lock, so that nobody takes a half-removed one."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def write_atomically(path: Path, text: str) -> Path:
    """Replace `path` in one step; mode 0600."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(draft, path)
    return path


def live_pools() -> list[str]:
    """Pools whose supervisor lives."""
    return [path.name for path in _folders() if not _free(path)]


def stale_pools() -> list[str]:
    """Pools whose supervisor died without cleaning up."""
    return [path.name for path in _folders() if _free(path)]


def sweep() -> list[str]:
    """Remove the folders of supervisors that died without cleaning up; their names. One that can't be locked stays:
    whoever asks for its pool is told why."""
    swept = []
    for path in _folders():
        lock = None
        with contextlib.suppress(FileNotFoundError, CliError):
            lock = _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
            swept.append(path.name)
    return swept


def _folders() -> Iterator[Path]:
    base = base_folder()
    return (path for path in sorted(base.iterdir()) if path.is_dir() and not path.is_symlink())


def _hold(path: Path) -> int | None:
    """The lock of a folder that exists. Others may look at it, or sweep it, between any two of these steps."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            _make(path)
            lock = _lock(path)
            if lock is not None and _is_at(lock, path):
                return lock
        time.sleep(_PAUSE)
    return None


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CliError(f"can't make the pool's folder {trouble(error, path)}") from None


def _is_at(lock: int, path: Path) -> bool:
    """Whether the file that is locked still lies in the folder; it is let go if not."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), (path / "lock").stat()):
            return True
    os.close(lock)
    return False


def _lock(path: Path) -> int | None:
    """The folder's lock, or None while another process holds it. FileNotFoundError: the folder is gone; CliError: what
    lies there is no folder of a pool's, or there is no room for a lock."""
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CliError(f"can't lock the pool's folder {trouble(error, path / 'lock')}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _free(path: Path) -> bool:
    try:
        lock = _lock(path)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    os.close(lock)
    return True


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
