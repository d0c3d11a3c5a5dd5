"""Host memory that the workers and the scheduler's process map: the disk is written from there, and read into it."""

from __future__ import annotations

import os
from contextlib import suppress

from plumage_engine.vllm.compat.kv_tiering import SharedOffloadRegion

__all__ = ["WorkersRegion", "map_region"]


class WorkersRegion(SharedOffloadRegion):
    """A worker's view. vLLM's own would complain at its end that the scheduler has taken the name away already."""

    _creator: bool

    def cleanup(self) -> None:
        if self._creator:
            self._creator = False
            with suppress(FileNotFoundError):
                os.unlink(self.mmap_path)
        super().cleanup()


def map_region(engine: str, chunks: int, chunk_bytes: int, page: int) -> SharedOffloadRegion:
    """The scheduler's view. Workers have mapped theirs when the scheduler is made, so that the name can go: nothing of
    it is left behind then, however the engine ends. Where there are none yet the name stays for them."""
    region = SharedOffloadRegion(engine, chunks, None, chunk_bytes, page)
    if not region._creator:
        with suppress(FileNotFoundError):
            os.unlink(region.mmap_path)
    return region
