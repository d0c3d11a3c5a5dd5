"""A network namespace of the benchmark without a way out. Pods that are objects only have addresses, and the operator
requests figures from each. Here all these addresses lead to this machine, so that one process can answer for all, and
no other machine gets a request."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from plumage.errors import ConfigurationError

__all__ = ["enter", "unshare_command"]

_MARK: Final = "PLUMAGE_BENCH_OUTSIDE"
"""The network namespace in which the command was started. In another one the process need not change again."""
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def enter(addresses: str, module: str, arguments: Sequence[str]) -> None:
    """Return if this process is in its own network namespace, whose `addresses` all lead to itself. Otherwise replace
    it by `python -m module arguments` in one. ConfigurationError if this machine can not do that."""
    here = os.readlink("/proc/self/ns/net") if sys.platform == "linux" else ""
    ip = shutil.which("ip", path=_PATH)
    if not here or ip is None or shutil.which("unshare") is None:
        raise ConfigurationError("needs Linux and its packages iproute2 and util-linux, for a network of its own")
    if os.environ.get(_MARK, here) == here:
        command = [*unshare_command(os.geteuid()), sys.executable, "-m", module, *arguments]
        sys.stdout.flush()
        os.execvpe(command[0], command, {**os.environ, _MARK: here})
    for words in (["link", "set", "lo", "up"], ["route", "replace", "local", addresses, "dev", "lo"]):
        subprocess.run([ip, *words], check=True, timeout=30)


def unshare_command(user: int) -> list[str]:
    """A user who is not root becomes root in a user namespace."""
    return ["unshare", "--net", *([] if user == 0 else ["--user", "--map-root-user"]), "--"]
