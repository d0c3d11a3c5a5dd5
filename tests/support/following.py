"""When a router has all that a writer has written."""

from __future__ import annotations

from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.writer import DirectoryWriter

__all__ = ["in_step"]


def in_step(writer: DirectoryWriter, router: DirectorySync) -> bool:
    """Whether the router counts the same entries as the writer, and its mirror shows them: it waits for no snapshot."""
    known = router._replicas[writer.keys.replica]
    held = known.reader
    return known.live and (held.epoch, held.count, held.digest) == (writer.epoch, writer.held.count, writer.held.digest)
