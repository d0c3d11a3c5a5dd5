"""The start of a child: it is bound to the lifetime of its parent, then runs its module.

`python -m plumage_cli.local.processes.launch PARENT-PID MODULE ARG…`

Linux kills the child when the parent's thread ends (PR_SET_PDEATHSIG), also after kill -9. A watchdog thread covers
other systems, and the moment before the signal is set. Imports stay few, since every child pays for them.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

__all__ = ["bind_to_parent", "main"]

_PR_SET_PDEATHSIG = 1
_INTERVAL = 1.0  # seconds between two checks of the watchdog


def bind_to_parent(parent: int) -> None:
    """End this process when `parent` is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _exit_if_orphaned(parent)
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(_INTERVAL)
        _exit_if_orphaned(parent)


def _exit_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(137)


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    bind_to_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
