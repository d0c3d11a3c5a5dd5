"""Files with keys, which are read again while the router runs. A half-written file is never used.

The kubelet replaces a mounted Secret in one step. Any other file may be read while it is written: empty, or with a cut
last line. That would make a part of a key a valid key. So such a file must end with a line break, and a change counts
once the file was the same twice in a row. A file that breaks these rules changes nothing: the known content stays in
force, `error` says why, and the log says so once.
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
    """Call `read` once at start, then `poll` every few seconds. what: names the content in errors."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.error: str | None = None
        self._what = what
        self._seen: Stamp | None = None
        self._settled: Stamp | None = None

    def read(self) -> bytes:
        """Returns the content. Raises ConfigurationError if the file is missing, empty or incomplete."""
        self._settled = self._seen = self._stamp()
        return self._content()

    def poll(self) -> bytes | None:
        """Returns the content of a file that changed and is complete; None without a change.

        Raises ConfigurationError, once for each change, if the file cannot be used.
        """
        stamp = self._stamp()
        still, self._seen = stamp == self._seen, stamp
        if stamp == self._settled or not (still or self._is_swapped()):
            return None
        self._settled = stamp
        content = self._content()
        if self._stamp() != stamp:  # the file is being written: check again later
            self._settled = None
            return None
        return content

    def keep(self, error: ConfigurationError | None) -> None:
        """Records why the known content stays in force; None once the file is in force."""
        message = None if error is None else f"{error}; the previous content stays in force"
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
            raise ConfigurationError(f"{self.path} has more than {LARGEST >> 20} MiB: it cannot contain {self._what}")
        if not content.strip():
            raise ConfigurationError(f"{self.path} is empty: it must contain {self._what}")
        if not content.endswith(b"\n") and not self._is_swapped():
            raise ConfigurationError(
                f"{self.path} does not end with a line break, so it may be half written: end {self._what} with one"
            )
        return content

    def _is_swapped(self) -> bool:
        """Whether the kubelet replaces the file in one step, together with its volume."""
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
        self._settled = None  # the same file may come back
        return ConfigurationError(f"cannot read {self._what} from {self.path}: {error.strerror}")


def one_line(content: bytes, path: Path, what: str) -> bytes:
    """Returns the only line of a secret's file. Raises ConfigurationError for more lines or none."""
    secret = content.strip()
    if not secret or b"\n" in secret:
        raise ConfigurationError(f"{path} must contain {what} on a single line")
    return secret
