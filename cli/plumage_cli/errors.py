"""Errors of the CLI. Each message says what is wrong and what to do.

PlumageError
└── CliError                 the command ends with its message and status 1
    ├── PortTakenError       the port is in use
    ├── ProcessFailedError   a process did not become ready, or crashed repeatedly
    └── NoPoolError          no pool of that name is running
"""

from __future__ import annotations

import errno

from plumage.errors import PlumageError

__all__ = ["CliError", "NoPoolError", "PortTakenError", "ProcessFailedError", "describe_os_error", "how_to_install"]

_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EMFILE: "allow more open files: ulimit -n",
    errno.ENFILE: "allow more open files: ulimit -n",
    errno.EACCES: "choose a place where you may write",
    errno.EPERM: "choose a place where you may write",
    errno.EROFS: "choose a place that is not read-only",
    errno.EEXIST: "another file or folder is there: move it elsewhere",
    errno.ENOTDIR: "another file or folder is there: move it elsewhere",
    errno.EISDIR: "another file or folder is there: move it elsewhere",
    errno.ELOOP: "another file or folder is there: move it elsewhere",
}


class CliError(PlumageError):
    """The message names what is wrong and what to do about it."""


class PortTakenError(CliError):
    """The wanted port is in use."""


class ProcessFailedError(CliError):
    """A process of the pool did not become ready; the message has its last log lines."""


class NoPoolError(CliError):
    """No pool of that name is running."""


def how_to_install(extra: str) -> str:
    """The command that installs the packages of an extra, in a clone and elsewhere."""
    return f"in a clone: make setup; else: pip install 'plumage-llm[{extra}]'"


def describe_os_error(error: OSError, path: object = None) -> str:
    """The file, the system's message and a remedy. path: the file, by default the one that the error names."""
    name = error.filename if path is None else path
    message = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return (f"{name}: " if name else "") + message + (f"; {remedy}" if remedy else "")
