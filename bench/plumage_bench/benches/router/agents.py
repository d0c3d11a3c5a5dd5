"""The mock engine's agents, all in one process: they turn the engine's answers into directory events.

`python -m plumage_bench.benches.router.agents CONFIG.json` reads the mock's reports from a fifo, treats each ten
milliseconds as an engine step, and publishes through the directory's own writer, with the throttle that real agents
have. A replica keeps every shared prefix and the new text of its last requests. Older text is published as removed.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, Load, State, Tier
from plumage.hashing.chunks import ENDS, ChainMemory, chain, seed
from plumage.models import resolve
from plumage.rendering import ChatRenderer, ModelFolder
from plumage_bench.benches.router.prompts import MARK, MODEL, make_bodies
from plumage_engine.agent.directory.throttle import Throttle

__all__ = ["main"]

REPORT = struct.Struct("<IIQ")
STEP = 0.010  # seconds
KEPT = 2_000  # requests whose own text a replica keeps
RATE = 5_000.0  # an agent's default: above this number of new chunks a second, chunks seen once are not published
BYTES_A_TOKEN = 4


class Prompt:
    """One prefix' rendered prompt: the chain of its shared part, and the chain of a request's own part. salt: of the
    tenant's caches."""

    def __init__(self, rendered: bytes, salt: str) -> None:
        self._seed = seed(MODEL, salt=salt)
        self._before, self._after = rendered.split(MARK.encode())
        self._chains = ChainMemory()
        self.shared = chain(self._before, self._seed)

    def own(self, number: int) -> list[int]:
        rendered = b"%b%016d%b" % (self._before, number, self._after)
        return self._chains.chain(rendered, self._seed)[len(self.shared) :]


class Replica:
    """The cache of one mock engine, and the writer that publishes it."""

    def __init__(self, writer: DirectoryWriter, prompts: list[Prompt]) -> None:
        self.writer = writer
        self._prompts = prompts
        self._throttle = Throttle(RATE)
        self._known: set[int] = set()
        self._own: deque[list[int]] = deque()

    def step(self, reports: list[tuple[int, int]]) -> None:
        """One engine step: the requests that it answered, as (prefix, number). Requests with further prefixes were sent
        directly to the mock, 60,000 a second. They are skipped: their events would be published long after, during the
        next measurement."""
        known = len(self._prompts)
        changes = [c for prefix, number in reports if prefix < known for c in self._stored(prefix, number)]
        while len(self._own) > KEPT:
            changes += [Change(chunk, Tier.GONE) for chunk in self._own.popleft()]
        self.writer.publish(self._throttle.pass_on(changes, time.monotonic()))

    def _stored(self, prefix: int, number: int) -> Iterator[Change]:
        prompt = self._prompts[prefix]
        if prefix not in self._known:
            self._known.add(prefix)
            for depth, chunk in enumerate(prompt.shared, 1):
                yield Change(chunk, Tier.GPU, ENDS[depth] // BYTES_A_TOKEN)
        own = prompt.own(number)
        self._own.append(own)
        for depth, chunk in enumerate(own, len(prompt.shared) + 1):
            yield Change(chunk, Tier.GPU, ENDS[depth] // BYTES_A_TOKEN)


async def _run(config: dict[str, Any]) -> None:
    folder = ModelFolder.load(resolve(config["modelFolder"]))
    renderer = ChatRenderer.from_folder(folder, clock=datetime.now)
    size = config["size"]
    bodies = [body for count in config["messages"] for body in make_bodies(count, config["seed"], size=size)]
    prompts = [Prompt(renderer.render_chat(json.loads(body.data)), config["salt"]) for body in bodies]
    writers = [
        DirectoryWriter(config["directoryUrl"], pool=config["pool"], replica=name) for name in config["replicas"]
    ]
    replicas = [Replica(writer, prompts) for writer in writers]
    for writer in writers:
        await writer.__aenter__()
        writer.report(state=State.READY, load=Load())
    source = os.open(config["fifo"], os.O_RDWR | os.O_NONBLOCK)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        await asyncio.sleep(STEP)
        _take(source, replicas)


def _take(source: int, replicas: list[Replica]) -> None:
    """Everything that the mock reported since the last step."""
    steps: list[list[tuple[int, int]]] = [[] for _ in replicas]
    try:
        data = os.read(source, 1 << 20)
    except BlockingIOError:
        return
    for replica, prefix, number in REPORT.iter_unpack(data[: len(data) // REPORT.size * REPORT.size]):
        steps[replica].append((prefix, number))
    for replica, reports in zip(replicas, steps, strict=True):
        if reports:
            replica.step(reports)


def main() -> None:
    uvloop.run(_run(json.loads(Path(sys.argv[1]).read_bytes())))


if __name__ == "__main__":
    main()
