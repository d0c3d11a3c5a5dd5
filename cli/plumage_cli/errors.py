"""What goes wrong on a person's machine, in words that say what to do.

PlumageError
└── CliError                 the command ends with its message and status 1
    ├── PortTakenError       somebody listens there already
    ├── ProcessFailedError   a child did not start, or kept dying
    └── NoPoolError          no pool of that name is up
"""

from __future__ import annotations

from plumage.errors import PlumageError

__all__ = ["CliError", "NoPoolError", "PortTakenError", "ProcessFailedError"]


class CliError(PlumageError):
    """The message names what is wrong and what to do about it."""


class PortTakenError(CliError):
    """A port that was asked for is taken."""


class ProcessFailedError(CliError):
    """A process of the pool did not become ready; the message carries its last words."""


class NoPoolError(CliError):
    """No pool is up under that name."""
