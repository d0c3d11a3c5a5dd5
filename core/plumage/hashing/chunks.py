"""The directory's key: a chain of hashes over 256-byte chunks of the rendered prompt.

Contract, held by golden vectors in `tests/contract/test_chunk_goldens.py`, because routers and agents of different
versions must agree on it:

    h_0 = xxh3_64(field(base model) ‖ field(adapter) ‖ field(salt)),  field(s) = u32 little endian length ‖ UTF-8 bytes
    h_i = xxh3_64(bytes[256·(i−1) : 256·i], seed = h_{i−1})

Whole chunks only: a rest shorter than a chunk is a `tail` and has no hash yet. h_0 is no key; it only parts the base
models, adapters and tenants from each other. Two prompts have the same h_i when their first 256·i bytes and their seed
are the same, which is why a router can find out what an engine holds without ever tokenizing.

The router hashes a whole prompt at once (`chain`); the agent gets the same bytes in pieces, block by block, and carries
`(hash, tail)` from each block to its children (`extend`).
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = ["CHUNK", "ChainMemory", "Link", "chain", "extend", "seed"]

CHUNK = 256
"""Bytes in a chunk: 16 tokens of English take about 70, so one key stands for three or four small KV blocks."""


class Link(NamedTuple):
    """Where a chain stands after some bytes: the hash of its last whole chunk (or the seed) and the bytes after it."""

    hash: int
    tail: bytes = b""


def seed(base_model: str, adapter: str = "", salt: str = "") -> int:
    """h_0. The lengths keep ("ab", "c") and ("a", "bc") apart; a lone surrogate in a client's salt is no error here."""
    fields = (field.encode(errors="surrogatepass") for field in (base_model, adapter, salt))
    return int(xxh3_64_intdigest(b"".join(len(field).to_bytes(4, "little") + field for field in fields)))


def chain(data: bytes, seed: int) -> list[int]:
    """The hashes of all whole chunks of `data`, in order."""
    previous, hashed = seed, xxh3_64_intdigest
    return [previous := hashed(data[end - CHUNK : end], previous) for end in range(CHUNK, len(data) + 1, CHUNK)]


class ChainMemory:
    """`chain` for prompts that begin alike, as most do: strides of eight chunks are hashed whole, and where a stride
    came before under the same hash, the eight links are known. That confuses two strides as rarely as a chain confuses
    two chunks. Strides that do not come again are forgotten: at most `2 * kept` are remembered, 0.5 KB each."""

    STRIDE = 8 * CHUNK

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        self._young: dict[int, list[int]] = {}
        self._old: dict[int, list[int]] = {}

    def chain(self, data: bytes, seed: int) -> list[int]:
        """What `chain` gives."""
        stride, young = self.STRIDE, self._young
        hashes: list[int] = []
        previous = seed
        whole = len(data) // stride * stride
        for start in range(0, whole, stride):
            part = data[start : start + stride]
            name = xxh3_64_intdigest(part, previous)
            known = young.get(name)
            if known is None:
                known = self._recall(name, part, previous)
            hashes += known
            previous = known[-1]
        return hashes + chain(data[whole:], previous) if len(data) >= whole + CHUNK else hashes

    def _recall(self, name: int, part: bytes, previous: int) -> list[int]:
        known = self._old.get(name)
        if known is None:
            known = chain(part, previous)
        if len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        self._young[name] = known
        return known


def extend(link: Link, data: bytes) -> tuple[list[int], Link]:
    """Continue a chain by `data`: the hashes of the chunks it completes, and where the chain stands then.

    However the bytes are cut into pieces, the hashes are those that `chain` gives for all of them at once.
    """
    data = link.tail + data
    if len(data) < CHUNK:
        return [], Link(link.hash, data)
    completed = chain(data, link.hash)
    return completed, Link(completed[-1], data[len(completed) * CHUNK :])
