"""When a router knows what a writer holds."""

from __future__ import annotations

from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.writer import DirectoryWriter

__all__ = ["in_step"]


def in_step(writer: DirectoryWriter, router: DirectorySync) -> bool:
    """The router counts what the writer counts, by itself, and its mirror shows it: no snapshot is on its way in."""
    known = router._replicas[writer.keys.replica]
    held = known.reader
    return known.live and (held.epoch, held.count, held.digest) == (writer.epoch, writer.held.count, writer.held.digest)
