"""What goes wrong on a person's machine, in words that say what to do.

PlumageError
└── CliError                 the command ends with its message and status 1
    ├── PortTakenError       somebody listens there already
    ├── ProcessFailedError   a child did not start, or kept dying
    └── NoPoolError          no pool of that name is up
"""

from __future__ import annotations

import errno

from plumage.errors import PlumageError

__all__ = ["CliError", "NoPoolError", "PortTakenError", "ProcessFailedError", "how_to_install", "trouble"]

_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EMFILE: "allow more open files: ulimit -n",
    errno.ENFILE: "allow more open files: ulimit -n",
    errno.EACCES: "choose a place that is yours",
    errno.EPERM: "choose a place that is yours",
    errno.EROFS: "choose a place that can be written to",
    errno.EEXIST: "something else lies there: move it elsewhere",
    errno.ENOTDIR: "something else lies there: move it elsewhere",
    errno.EISDIR: "something else lies there: move it elsewhere",
    errno.ELOOP: "something else lies there: move it elsewhere",
}


class CliError(PlumageError):
    """The message names what is wrong and what to do about it."""


class PortTakenError(CliError):
    """A port that was asked for is taken."""


class ProcessFailedError(CliError):
    """A process of the pool did not become ready; the message carries its last words."""


class NoPoolError(CliError):
    """No pool is up under that name."""


def how_to_install(extra: str) -> str:
    """What brings the packages of an extra: today Plumage is a clone, one day a package too."""
    return f"in a clone: make setup; else: pip install 'plumage-llm[{extra}]'"


def trouble(error: OSError, what: object = None) -> str:
    """What the system refused, of what (the file that the error names, by default), and what to do about it."""
    name = error.filename if what is None else what
    told = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return (f"{name}: " if name else "") + told + (f"; {remedy}" if remedy else "")
