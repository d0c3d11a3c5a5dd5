"""How a child begins: bound to its parent's life, then it becomes the module it should be.

`python -m plumage_cli.local.launch PARENT-PID MODULE ARG…`

Linux kills the child when the parent's thread ends (PR_SET_PDEATHSIG), also after kill -9; a watchdog thread covers
other systems, and the moment before the signal is set. Nothing is imported here that the module does not need.
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
_LOOK = 1.0  # seconds between looks of the watchdog


def bind_to_parent(parent: int) -> None:
    """End this process when `parent` is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _leave_if_orphaned(parent)
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(_LOOK)
        _leave_if_orphaned(parent)


def _leave_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(137)


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    bind_to_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
