"""A router's directory client as a process: `URL POOL ENTRIES REPLICA…` waits until that many entries are in the mirror
and prints seconds and bytes. With ENTRIES 0 it follows the directory until stdin closes, and prints when each chunk
could be matched.

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable

from plumage.directory.mirror.mirror import Mirror, OwnerChange
from plumage.directory.mirror.sync import DirectorySync
from plumage_bench.benches.directory.waiting import until

__all__ = ["main"]


class TimedMirror(Mirror):
    """Records when a chunk can be matched for the first time."""

    def __init__(self) -> None:
        super().__init__(capacity=8_000_000)
        self.usable: dict[int, float] = {}

    def apply(self, slot: int, changes: Iterable[OwnerChange]) -> None:
        changes = list(changes)
        super().apply(slot, changes)
        now = time.monotonic()
        for chunk, tier, _ in changes:
            if tier:
                self.usable.setdefault(chunk, now)


async def cold(url: str, pool: str, entries: int, replicas: list[str]) -> dict[str, float]:
    mirror = Mirror(capacity=8_000_000)
    gc.collect()
    before, started = _resident(), time.monotonic()
    sync = DirectorySync(url, pool=pool, mirror=mirror)
    sync.set_replicas({name: slot for slot, name in enumerate(replicas)})
    async with sync:
        await until(lambda: all(sync.view(name).cache_known for name in replicas))
        seconds = time.monotonic() - started
        if sum(sync.view(name).chunks for name in replicas) != entries:
            raise RuntimeError(f"{entries} entries were written, {len(mirror)} chunks arrived")
        gc.collect()
        return {"seconds": seconds, "bytes": _resident() - before}


async def follow(url: str, pool: str, replicas: list[str]) -> dict[str, object]:
    mirror = TimedMirror()
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(closed.set)), daemon=True).start()
    sync = DirectorySync(url, pool=pool, mirror=mirror)
    sync.set_replicas({name: slot for slot, name in enumerate(replicas)})
    async with sync:
        await until(lambda: all(sync.view(name).cache_known for name in replicas))
        print("following", flush=True)  # noqa: T201 - the word its parent waits for
        used = _cpu()
        await closed.wait()
        return {"usable": list(mirror.usable.items()), "cpu": _cpu() - used, "counts": dict(sync.counts)}


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(url: str, pool: str, entries: str, *replicas: str) -> None:
    work = cold(url, pool, int(entries), list(replicas)) if int(entries) else follow(url, pool, list(replicas))
    json.dump(asyncio.run(work), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
