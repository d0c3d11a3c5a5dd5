"""The fixture `plumage`: the command line against a real API server."""

from __future__ import annotations

from support.cluster_cli import plumage

__all__ = ["plumage"]
