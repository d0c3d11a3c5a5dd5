"""KV events of a simulated engine over real sockets: enough to know its cache exactly, at any time."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from tests.integration.simulator.conftest import Engine, running

TEXT = "each line of the file is read by the parser and returned as a value of its own type "


class Listener:
    """Rebuilds a cache from batches of events, as an agent does: copies per hash, and the tokens below each."""

    def __init__(self) -> None:
        self.next = 0
        self.copies: Counter[int] = Counter()
        self.blocks: dict[int, tuple[int | None, list[int], Any]] = {}
        self.stored: Counter[int] = Counter()
        self.removed = 0

    def take(self, number: int, payload: bytes) -> None:
        assert number == self.next, "a gap"
        self.next += 1
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        for event in events:
            getattr(self, "_" + event["type"])(event)

    def _BlockStored(self, event: dict[str, Any]) -> None:
        size, parent = event["block_size"], event["parent_block_hash"]
        assert parent is None or self.copies[parent]
        assert len(event["token_ids"]) == size * len(event["block_hashes"])
        assert event["medium"] == "GPU"
        for at, block in enumerate(event["block_hashes"]):
            known = (parent, event["token_ids"][at * size : (at + 1) * size], event["extra_keys"][at])
            assert self.blocks.setdefault(block, known) == known
            self.copies[block] += 1
            self.stored[block] += 1
            parent = block

    def _BlockRemoved(self, event: dict[str, Any]) -> None:
        assert event["medium"] == "GPU"
        for block in event["block_hashes"]:
            self.copies[block] -= 1
            self.removed += 1
            assert self.copies[block] >= 0
            if not self.copies[block]:
                del self.copies[block], self.blocks[block]


@contextmanager
def socket_to(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.rcvtimeo = 20_000
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close(0)
        context.term()


def replay(engine: Engine, start: int) -> list[tuple[int, bytes]]:
    """Ask as vLLM's subscribers do; the end mark is checked and dropped."""
    with socket_to(zmq.DEALER, engine.replay) as dealer:
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while True:
            empty, number, payload = dealer.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(number, "big"), payload))


def snapshot(engine: Engine) -> dict[str, Any]:
    response = engine.admin.get("/v1/plumage/snapshot").raise_for_status()
    return msgspec.msgpack.decode(response.content)  # type: ignore[no-any-return]


def converse(engine: Engine, requests: int) -> None:
    """Concurrent conversations over shared beginnings, many of them the very same request."""

    def one(number: int) -> None:
        family = number % 5
        start = f"{family} {TEXT * (4 + family)}"
        engine.chat(start, max_tokens=40, ignore_eos=True)
        engine.chat(start + TEXT * (number // 10), max_tokens=20, ignore_eos=True, cache_salt=f"s{number % 2}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(requests)))


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    """A cache that is too small for the conversations, so that blocks are evicted."""
    with running(cacheBlocks=128, maxModelLen=2048, maxNumSeqs=8, eventsTopic="kv@small") as engine:
        converse(engine, 60)
        engine.until(lambda stats: stats["running"] == 0)
        yield engine


def rebuilt(batches: list[tuple[int, bytes]]) -> Listener:
    listener = Listener()
    for batch in batches:
        listener.take(*batch)
    return listener


def test_cache_rebuilt_from_events_equals_snapshot(small: Engine) -> None:
    listener = rebuilt(replay(small, 0))
    image = snapshot(small)
    assert image["v"] == 1
    assert image["block_size"] == 16
    assert image["seq"] == listener.next - 1
    listed = {block[0]: block for block in image["blocks"]}
    assert {block: (entry[1], entry[2], entry[6]) for block, entry in listed.items()} == listener.blocks
    assert {block: entry[7] for block, entry in listed.items()} == dict(listener.copies)
    assert {tuple(entry[3:6]) for entry in image["blocks"]} == {("GPU", 0, None)}
    assert len(listed) == small.stats()["cachedBlocks"]
    assert listener.removed > 0
    assert max(listener.stored.values()) > 1


def test_snapshot_lists_parents_before_children(small: Engine) -> None:
    seen: set[int | None] = {None}
    for block, parent, *_ in snapshot(small)["blocks"]:
        assert parent in seen
        seen.add(block)


def test_only_first_block_has_salt(small: Engine) -> None:
    blocks = snapshot(small)["blocks"]
    assert {tuple(entry[6]) for entry in blocks if entry[1] is None and entry[6]} == {("s0",), ("s1",)}
    assert all(entry[6] is None for entry in blocks if entry[1] is not None)


def test_late_listener_starts_from_snapshot(small: Engine) -> None:
    image = snapshot(small)
    late = Listener()
    late.next = image["seq"] + 1
    for block, parent, token_ids, _, _, _, keys, copies in image["blocks"]:
        late.blocks[block] = (parent, token_ids, keys)
        late.copies[block] = copies
    converse(small, 12)
    small.until(lambda stats: stats["running"] == 0)
    for batch in replay(small, late.next):
        late.take(*batch)
    assert set(late.blocks) == {entry[0] for entry in snapshot(small)["blocks"]}


def test_replay_equals_published_batches(small: Engine) -> None:
    with socket_to(zmq.SUB, small.events) as subscriber:
        subscriber.subscribe(b"kv@small")
        first: list[bytes] = []
        while not first:  # a subscription takes effect some time after it was asked for
            small.chat(f"wake {small.stats()['nextSequence']} {TEXT}", max_tokens=1)
            if subscriber.poll(200):
                first = subscriber.recv_multipart()
        start = int.from_bytes(first[1], "big")
        small.chat("published " + TEXT * 5, max_tokens=40, ignore_eos=True)
        end = small.until(lambda stats: stats["running"] == 0)["nextSequence"]
        live = [(start, first[2])]
        while live[-1][0] < end - 1:
            topic, number, payload = subscriber.recv_multipart()
            assert topic == b"kv@small"
            live.append((int.from_bytes(number, "big"), payload))
    assert live == replay(small, start)


def test_malformed_replay_request_is_ignored(small: Engine) -> None:
    with socket_to(zmq.DEALER, small.replay) as dealer:
        dealer.send_multipart([b"", b"short"])
        dealer.send_multipart([b"no", b"such", b"frames", b"here"])
        dealer.send_multipart([b"", (2**62).to_bytes(8, "big")])
        assert dealer.recv_multipart() == [b"", b"\xff" * 8, b""]


def test_replay_has_only_kept_batches() -> None:
    with running(eventsKept=3) as forgetful:
        for number in range(8):
            forgetful.chat(f"kept {number} {TEXT * 2}", max_tokens=1)
        end = forgetful.stats()["nextSequence"]
        assert [number for number, _ in replay(forgetful, 0)] == [end - 3, end - 2, end - 1]


def test_sockets_are_private_to_owner(small: Engine) -> None:
    for name in ("events", "replay"):
        mode = Path(small.folder, name).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) & 0o077 == 0


def test_learned_queue_and_hotness_eviction_serve() -> None:
    feather = {"policy": "Bandit", "chunkTokens": 64, "maxWaitSeconds": 2}
    with running(
        cacheBlocks=128, maxModelLen=2048, maxNumSeqs=8, feather=feather, eviction={"policy": "Rlt"}
    ) as engine:
        converse(engine, 30)
        engine.until(lambda stats: stats["running"] == 0)
        assert set(rebuilt(replay(engine, 0)).blocks) == {entry[0] for entry in snapshot(engine)["blocks"]}


def test_host_tier_events_name_medium() -> None:
    tier = {"minFrequency": 1, "admission": "All"}
    with running(cacheBlocks=128, hostBlocks=512, hostTier=tier, maxModelLen=2048, maxNumSeqs=4) as engine:
        converse(engine, 40)
        engine.until(lambda stats: stats["running"] == 0)
        media: dict[str, Counter[int]] = {"GPU": Counter(), "CPU": Counter()}
        for _, payload in replay(engine, 0):
            for event in msgspec.msgpack.decode(payload)[1]:
                copies = media[event["medium"]]
                change = copies.update if event["type"] == "BlockStored" else copies.subtract
                change(event["block_hashes"])
        listed = {(entry[3], entry[0]): entry[7] for entry in snapshot(engine)["blocks"]}
        assert listed == {(medium, block): n for medium in media for block, n in media[medium].items() if n}
        stats = engine.stats()
    assert stats["hostHitTokens"] > 0
    assert sum(media["CPU"].values()) > 0
