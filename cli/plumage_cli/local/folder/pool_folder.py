"""The folder of a running pool: mode 0700, one per pool, locked while its supervisor runs.

The kernel releases the lock however the supervisor ends, so a folder whose lock is free is stale and is deleted. The
lock file has a fixed content. A folder without it is not ours: it is not deleted, taken or written to. Files in a
pool's folder are replaced atomically, so readers see the old or the new file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plumage_cli.errors import CliError, describe_os_error

__all__ = [
    "CONTROL_SOCKET",
    "MIN_FREE_BYTES",
    "PoolFolder",
    "base_folder",
    "live_pools",
    "remove_stale",
    "stale_pools",
    "write_atomically",
]

CONTROL_SOCKET = "control.sock"
"""Name of the control socket in a pool's folder."""

MIN_FREE_BYTES = 64 * 1024 * 1024  # for logs and the directory's files, with a reserve
_TRIES, _PAUSE = 8, 0.05
_MAX_SOCKET_PATH = 100  # characters; Linux allows 107 bytes for a Unix socket
_LOCK = "lock"
_MARK = b"the folder of a pool that plumage up runs\n"  # content of our lock files; no other program's lock has it


def base_folder() -> Path:
    """The folder of all pools of this user, created with mode 0700. CliError when another user owns it."""
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
        raise CliError(f"{base} exists, but other users can access it; set XDG_RUNTIME_DIR to another folder of yours")
    return base


class PoolFolder:
    """The folder of one pool, held by its supervisor."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._written: dict[str, str] = {}
        self._cleaners = _keep_cleaners_out(path)

    @classmethod
    def take(cls, pool: str) -> PoolFolder:
        """An empty folder for `pool`. CliError when the pool already runs or the disk is full."""
        remove_stale()
        path = base_folder() / pool
        if len(str(path)) > _MAX_SOCKET_PATH - 20:
            raise CliError(f"{path} is too long a path for Unix sockets; set XDG_RUNTIME_DIR to a shorter one")
        if path.is_symlink():
            raise CliError(f"{path} is a symbolic link, but must be the pool's own folder; move it elsewhere")
        lock = _hold(path)
        if lock is None:
            raise CliError(
                f"pool {pool} is already running; stop it with Ctrl-C where it runs, or see: plumage status {pool}"
            )
        try:
            _empty(path)
        except OSError as error:
            os.close(lock)
            raise CliError(f"can't empty the folder of pool {pool}: {describe_os_error(error)}") from None
        free = shutil.disk_usage(path).free
        if free < MIN_FREE_BYTES:
            _remove(path, lock)
            raise CliError(f"only {free // 2**20} MiB free at {path}; free some, or set XDG_RUNTIME_DIR elsewhere")
        return cls(path, lock)

    def write(self, name: str, content: Mapping[str, Any] | str) -> Path:
        """Write a file (mode 0600) atomically. CliError when that fails, for example on a full disk."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        path = self.path / name
        try:
            write_atomically(path, text)
        except OSError as error:
            raise CliError(f"can't write {describe_os_error(error, path)}") from None
        self._written[name] = text
        return path

    def restore(self) -> list[str]:
        """Write missing files again, also the folder and its lock; their names.

        CliError when another pool has the folder or the disk is full.
        """
        self._take_back()
        missing = [name for name in self._written if not (self.path / name).exists()]
        for name in missing:
            self.write(name, self._written[name])
        return missing

    def forget(self, name: str) -> None:
        """Delete a file whose process is gone, and do not restore it any more."""
        self._written.pop(name, None)
        with contextlib.suppress(OSError):
            (self.path / name).unlink(missing_ok=True)

    def touch(self) -> None:
        """Set access times to now, for programs that delete unused files. Modification times show changes, and stay."""
        now = time.time_ns()
        for place in (self.path, *self.path.rglob("*")):
            with contextlib.suppress(OSError):
                os.utime(place, ns=(now, place.lstat().st_mtime_ns), follow_symlinks=False)

    def _take_back(self) -> None:
        """Make a removed folder or lock again: without its lock another process would delete or take the folder."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._lock), (self.path / _LOCK).stat()):
                return
        _make(self.path)
        lock = _lock(self.path, make=True)
        if lock is None:
            raise CliError(f"{self.path} was removed and another pool has it now: end this pool")
        os.close(self._lock)
        self._lock = lock
        if self._cleaners is not None:
            os.close(self._cleaners)
        self._cleaners = _keep_cleaners_out(self.path)

    def secret(self, name: str) -> Path:
        """Write a file with a new random token; its path."""
        return self.write(name, secrets.token_urlsafe(32) + "\n")

    def remove(self) -> None:
        """Delete the folder and release its lock."""
        if self._cleaners is not None:
            os.close(self._cleaners)
        _remove(self.path, self._lock)


def _keep_cleaners_out(path: Path) -> int | None:
    """A lock on the folder itself: systemd-tmpfiles(8) skips a locked folder and everything below it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def write_atomically(path: Path, text: str) -> Path:
    """Replace `path` in one step; mode 0600."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(draft, path)
    return path


def live_pools() -> list[str]:
    """Names of the pools whose supervisor runs."""
    return [path.name for path in _folders() if not _free(path)]


def stale_pools() -> list[str]:
    """Names of the pools whose supervisor ended without deleting its folder."""
    return [path.name for path in _folders() if _free(path)]


def remove_stale() -> list[str]:
    """Delete the folders of supervisors that ended without doing so; their names.

    A folder that can't be locked stays. Starting its pool reports why.
    """
    removed = []
    for path in _folders():
        lock = None
        with contextlib.suppress(FileNotFoundError, CliError):
            lock = _lock(path)
        if lock is not None:
            _remove(path, lock)
            removed.append(path.name)
    return removed


def _folders() -> Iterator[Path]:
    """The folders of pools. The base folder may hold others, since users choose XDG_RUNTIME_DIR."""
    base = base_folder()
    return (path for path in sorted(base.iterdir()) if path.is_dir() and not path.is_symlink() and _is_ours(path))


def _is_ours(path: Path) -> bool:
    """Whether a supervisor made the folder, which may have ended. CliError when its lock can't be read."""
    lock = path / _LOCK
    try:
        found = lock.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == len(_MARK) and lock.read_bytes() == _MARK
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except OSError as error:
        raise CliError(f"can't read {describe_os_error(error, lock)}") from None


def _is_blank(path: Path) -> bool:
    """Whether the folder is empty.

    An empty lock file is of a supervisor that was killed before it wrote the content.
    """
    try:
        return all(
            entry.name == _LOCK and entry.is_file(follow_symlinks=False) and entry.stat().st_size == 0
            for entry in list(os.scandir(path))
        )
    except PermissionError:
        return False


def _hold(path: Path) -> int | None:
    """Make the folder and take its lock; None while another process holds it. CliError when the folder is not a pool's.

    Another process may inspect or delete the folder between any two of these steps, so they are tried again.
    """
    foreign = False
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            _make(path)
            foreign = not _is_ours(path) and not _is_blank(path)
            lock = None if foreign else _lock(path, make=True)
            if lock is not None and _is_at(lock, path):
                return lock
        time.sleep(_PAUSE)
    if foreign:
        raise CliError(
            f"{path} contains files of something else; give the pool another name, or set XDG_RUNTIME_DIR to another "
            "folder of yours"
        )
    return None


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CliError(f"can't make the pool's folder {describe_os_error(error, path)}") from None


def _is_at(lock: int, path: Path) -> bool:
    """Whether the locked file is still the one in the folder; releases the lock if not."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
            return True
    os.close(lock)
    return False


def _lock(path: Path, *, make: bool = False) -> int | None:
    """The folder's lock, or None while another process holds it. make: create it and write its content.

    FileNotFoundError: the lock or its folder is gone. CliError: the lock can't be opened, or the disk is full.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    try:
        descriptor = os.open(path / _LOCK, flags, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CliError(f"can't lock the pool's folder {describe_os_error(error, path / _LOCK)}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if make:
            os.pwrite(descriptor, _MARK, 0)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise CliError(f"can't lock the pool's folder {describe_os_error(error, path / _LOCK)}") from None
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


def _empty(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete everything but the lock."""
    for entry in path.iterdir():
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=ignore_errors)
        else:
            entry.unlink()


def _remove(path: Path, lock: int) -> None:
    """Delete a folder whose lock we hold, and release the lock.

    The lock is deleted last. It is written again when a file remains, such as the last log lines of a child. It marks
    the folder as a pool's, so a later run deletes it.
    """
    try:
        _empty(path, ignore_errors=True)
        (path / _LOCK).unlink()
        path.rmdir()
    except OSError:
        with contextlib.suppress(OSError):  # for example: another process took the folder and made a new lock
            again = os.open(path / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(again, "wb") as file:
                file.write(_MARK)
    os.close(lock)
