"""The folder of a pool that is up: mode 0700, one per pool, locked while its supervisor lives.

The lock is the truth about liveness: the kernel drops it however the supervisor ends, so a folder whose lock can be
taken is stale, and is swept. What the lock file says is the truth about ownership: a folder without it was not made
here, and is neither swept nor taken nor written to. Files in a pool's folder are replaced atomically; readers see the
old or the new one, never half.
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

from plumage_cli.errors import CliError, trouble

__all__ = ["MIN_FREE_BYTES", "PoolFolder", "base_folder", "live_pools", "stale_pools", "sweep", "write_atomically"]

MIN_FREE_BYTES = 64 * 1024 * 1024  # logs, the directory's files, and some room to breathe
_TRIES, _PAUSE = 8, 0.05
_LONGEST_SOCKET = 100  # Linux takes 107 bytes of path for a Unix socket
_LOCK = "lock"
_MARK = b"the folder of a pool that plumage up runs\n"  # in its lock: no other program's lock says so


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
        raise CliError(
            f"{base} is there and not a folder of yours alone; set XDG_RUNTIME_DIR to another folder of yours"
        )
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
        """A fresh folder for `pool`; CliError when the pool is up already or there is no room."""
        sweep()
        path = base_folder() / pool
        if len(str(path)) > _LONGEST_SOCKET - 20:
            raise CliError(f"{path} is too long a path for Unix sockets; set XDG_RUNTIME_DIR to a shorter one")
        if path.is_symlink():
            raise CliError(f"{path} is a link, where a pool's own folder must be; move it elsewhere")
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
            _remove(path, lock)
            raise CliError(f"only {free // 2**20} MiB free at {path}; free some, or set XDG_RUNTIME_DIR elsewhere")
        return cls(path, lock)

    def write(self, name: str, content: Mapping[str, Any] | str) -> Path:
        """Put a file there (mode 0600), at once or not at all; CliError when there is no room, for example."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        path = self.path / name
        try:
            write_atomically(path, text)
        except OSError as error:
            raise CliError(f"can't write {trouble(error, path)}") from None
        self._written[name] = text
        return path

    def restore(self) -> list[str]:
        """Write again what was written here and is missing, the folder and its lock included; the names. CliError when
        somebody else has the folder, or there is no room."""
        self._take_back()
        missing = [name for name in self._written if not (self.path / name).exists()]
        for name in missing:
            self.write(name, self._written[name])
        return missing

    def forget(self, name: str) -> None:
        """The file's process is gone for good: it need not be there."""
        self._written.pop(name, None)
        with contextlib.suppress(OSError):
            (self.path / name).unlink(missing_ok=True)

    def touch(self) -> None:
        """Access times of now, which is what cleaners go by. Modification times tell readers of changes, and stay."""
        now = time.time_ns()
        for place in (self.path, *self.path.rglob("*")):
            with contextlib.suppress(OSError):
                os.utime(place, ns=(now, place.lstat().st_mtime_ns), follow_symlinks=False)

    def _take_back(self) -> None:
        """A folder, or a lock, that was removed under us: without a lock others would sweep the folder, or take it."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._lock), (self.path / _LOCK).stat()):
                return
        _make(self.path)
        lock = _lock(self.path, make=True)
        if lock is None:
            raise CliError(f"{self.path} was removed and is another pool's now: end this pool")
        os.close(self._lock)
        self._lock = lock
        if self._cleaners is not None:
            os.close(self._cleaners)
        self._cleaners = _keep_cleaners_out(self.path)

    def secret(self, name: str) -> Path:
        """A file with a fresh random token."""
        return self.write(name, secrets.token_urlsafe(32) + "\n")

    def remove(self) -> None:
        """Leave nothing behind."""
        if self._cleaners is not None:
            os.close(self._cleaners)
        _remove(self.path, self._lock)


def _keep_cleaners_out(path: Path) -> int | None:
    """A lock on the folder itself: systemd-tmpfiles(8) leaves a locked folder alone, and all below it."""
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
            _remove(path, lock)
            swept.append(path.name)
    return swept


def _folders() -> Iterator[Path]:
    """Those of pools. Others may lie beside them: where XDG_RUNTIME_DIR leads is for a person to say."""
    base = base_folder()
    return (path for path in sorted(base.iterdir()) if path.is_dir() and not path.is_symlink() and _is_ours(path))


def _is_ours(path: Path) -> bool:
    """Whether a supervisor made the folder, dead or alive. CliError when that can't be seen."""
    lock = path / _LOCK
    try:
        found = lock.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == len(_MARK) and lock.read_bytes() == _MARK
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except OSError as error:
        raise CliError(f"can't read {trouble(error, lock)}") from None


def _is_blank(path: Path) -> bool:
    """Whether nothing would be lost with it. An empty lock is that of a supervisor killed before it could mark it."""
    try:
        return all(
            entry.name == _LOCK and entry.is_file(follow_symlinks=False) and entry.stat().st_size == 0
            for entry in list(os.scandir(path))
        )
    except PermissionError:
        return False


def _hold(path: Path) -> int | None:
    """The lock of a folder that exists. Others may look at it, or sweep it, between any two of these steps. CliError
    when it is there and no pool's."""
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
            f"{path} holds files that are no pool's; give the pool another name, or set XDG_RUNTIME_DIR to another "
            "folder of yours"
        )
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
        if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
            return True
    os.close(lock)
    return False


def _lock(path: Path, *, make: bool = False) -> int | None:
    """The folder's lock, or None while another process holds it; with `make` it is put there, and marked as ours.
    FileNotFoundError: it, or the folder, is gone; CliError: what lies there is no folder of a pool's, or there is no
    room for a lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    try:
        descriptor = os.open(path / _LOCK, flags, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CliError(f"can't lock the pool's folder {trouble(error, path / _LOCK)}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if make:
            os.pwrite(descriptor, _MARK, 0)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise CliError(f"can't lock the pool's folder {trouble(error, path / _LOCK)}") from None
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


def _empty(path: Path, *, as_far_as_possible: bool = False) -> None:
    """Remove all but the lock."""
    for entry in path.iterdir():
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=as_far_as_possible)
        else:
            entry.unlink()


def _remove(path: Path, lock: int) -> None:
    """Remove a folder that we hold, and let go of it. The lock goes last, and is put back when something stays, such as
    the last words of a child that ended meanwhile: by it the folder is known for a pool's, and swept another time."""
    try:
        _empty(path, as_far_as_possible=True)
        (path / _LOCK).unlink()
        path.rmdir()
    except OSError:
        with contextlib.suppress(OSError):  # such as: whoever takes the folder in the meantime has made a new one
            again = os.open(path / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(again, "wb") as file:
                file.write(_MARK)
    os.close(lock)
