"""Files that hold keys, read again while the router runs, and believed only when they are whole.

A Secret that the kubelet mounts is replaced in one step. Any other file may be caught half written: empty, or with its
last line cut short, which would make a part of a key a valid key. So such a file must end with a line break, and a
change counts once the file looked the same twice in a row. A file that fails these rules changes nothing: the content
known before stays in force, `error` says why, and the log says so once.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from plumage.errors import ConfigurationError

__all__ = ["LARGEST", "SecretFile", "one_line"]

log = logging.getLogger(__name__)

LARGEST: Final = 16 << 20  # bytes: some hundred thousand keys
_KUBELET: Final = "..data"  # the link that the kubelet swaps: https://kubernetes.io/docs/concepts/storage/volumes

Stamp = tuple[int, int, int]


class SecretFile:
    """`read` it once at start, then `poll` it every two seconds or so. `what`: the words for its content in errors."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.error: str | None = None
        self._what = what
        self._seen: Stamp | None = None
        self._settled: Stamp | None = None

    def read(self) -> bytes:
        """The content now. ConfigurationError where the file is missing, empty, or not whole."""
        self._settled = self._seen = self._stamp()
        return self._content()

    def poll(self) -> bytes | None:
        """The content of a file that changed and is whole; None where nothing is new. ConfigurationError, once for
        each change, where it can't be used."""
        stamp = self._stamp()
        still, self._seen = stamp == self._seen, stamp
        if stamp == self._settled or not (still or self._is_swapped()):
            return None
        self._settled = stamp
        content = self._content()
        if self._stamp() != stamp:  # somebody writes to it at this moment: look again
            self._settled = None
            return None
        return content

    def keep(self, error: ConfigurationError | None) -> None:
        """Say why the content known before stays in force; None once the file counts again."""
        message = None if error is None else f"{error}; keeping what was known before"
        if message is not None and message != self.error:
            log.warning("%s", message)
        self.error = message

    def _content(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                content = file.read(LARGEST + 1)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(content) > LARGEST:
            raise ConfigurationError(f"{self.path} has more than {LARGEST >> 20} MiB: it can't hold {self._what}")
        if not content.strip():
            raise ConfigurationError(f"{self.path} is empty: it must hold {self._what}")
        if not content.endswith(b"\n") and not self._is_swapped():
            raise ConfigurationError(
                f"{self.path} does not end with a line break, so it may be half written: end {self._what} with one"
            )
        return content

    def _is_swapped(self) -> bool:
        """Whether the kubelet replaces the file, together with all others of its volume, in one step."""
        try:
            return Path(os.readlink(self.path)).parts[0] == _KUBELET
        except OSError:
            return False

    def _stamp(self) -> Stamp:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _unreadable(self, error: OSError) -> ConfigurationError:
        self._settled = None  # it may come back as it was
        return ConfigurationError(f"cannot read {self._what} from {self.path}: {error.strerror}")


def one_line(content: bytes, path: Path, what: str) -> bytes:
    """The only line of a secret's file. ConfigurationError where there are more, or none."""
    secret = content.strip()
    if not secret or b"\n" in secret:
        raise ConfigurationError(f"{path} must hold {what} on a single line")
    return secret
