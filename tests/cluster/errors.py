"""What goes wrong with the test cluster. Each message names what to do."""

from __future__ import annotations

__all__ = ["ClusterError", "NotHereError"]


class ClusterError(Exception):
    """The cluster could not be started, entered or ended."""


class NotHereError(ClusterError):
    """This machine lacks something: a program, a package, a right. Tests are skipped for it, and fail in CI."""
