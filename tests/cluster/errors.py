"""Errors of the test cluster. Each message names the remedy."""

from __future__ import annotations

__all__ = ["ClusterError", "NotHereError"]


class ClusterError(Exception):
    """The cluster could not be started, entered or ended."""


class NotHereError(ClusterError):
    """This machine lacks a program, a package or a right. Tests that need it are skipped, and fail in CI."""
