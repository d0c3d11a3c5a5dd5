"""Runs a program that ends with the process that started it: `tether.py PARENT COMMAND…`.

It runs as a file, without site packages, to start in milliseconds. On Linux the kernel kills the program when the
*thread* that started it ends; elsewhere the starter has to end it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the line above
            sys.exit(1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and a child would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
