"""What one replica publishes, in memory: its chunks, the log entries that wait, its state and its load. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.publisher.outbox import Outbox
from plumage.directory.schema import Beat, Load, State

__all__ = ["Publication"]


class Publication:
    """held: the replica's chunks. engine: see `schema.engine_name`. changed: called when there is more to write.

    epoch: the epoch that the log entries belong to; None until a new one is registered.
    generation: grows whenever everything must be written again."""

    def __init__(self, held: HeldChunks, engine: str, changed: Callable[[], None]) -> None:
        self.held = held
        self.outbox = Outbox()
        self.state = State.WARMING
        self.load = Load()
        self.epoch: str | None = None
        self.generation = 0
        self._engine = engine
        self._changed = changed

    def append(self, records: bytes, check: tuple[int, int] | None = None) -> None:
        """Add one log entry. If the outbox is full then, everything is written again in a new epoch."""
        self.outbox.add(records, check)
        if self.outbox.full:
            self.start_over()
        self._changed()

    def append_check_mark(self) -> None:
        """Add an entry without changes, by which routers compare their count and digest."""
        self.append(b"", (self.held.count, self.held.digest))

    def clear(self) -> None:
        """Forgets all chunks: the engine holds none any more."""
        self.held.clear()
        self.start_over()

    def start_over(self) -> None:
        """Write everything again, in a new epoch."""
        self.outbox.clear()
        self.generation += 1
        self.epoch = None
        self._changed()

    def beat(self, epoch: str) -> Beat:
        """The heartbeat of this moment."""
        held = self.held
        return Beat(epoch, self.state, self.load, self.outbox.last, held.count, held.digest, self._engine)
