"""The directory's key: a chain of hashes over 256-byte chunks of the rendered prompt.

Routers and agents of different versions must compute the same hashes. Golden vectors in
`tests/contract/test_chunk_goldens.py` check this definition:

    h_0 = xxh3_64(field(base model) ‖ field(adapter) ‖ field(salt)),  field(s) = u32 little endian length ‖ UTF-8 bytes
    h_i = xxh3_64(bytes[256·(i−1) : 256·i], seed = h_{i−1})

Only whole chunks have a hash. The bytes after the last whole chunk are the `tail`. h_0 is not a key: it gives base
models, adapters and tenants different hashes. Two prompts have the same h_i if their seeds and their first 256·i bytes
are equal. So a router finds cached prefixes without a tokenizer.

The router hashes a whole prompt at once (`chain`). The agent gets the same bytes block by block: it stores
`(hash, tail)` for each block and continues from there for its children (`extend`).
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = ["CHUNK", "ChainMemory", "Link", "chain", "extend", "seed"]

CHUNK = 256
"""Bytes in a chunk. 16 tokens of English have about 70 bytes, so one key covers three or four small KV blocks."""


class Link(NamedTuple):
    """The state of a chain after some bytes: the hash of its last whole chunk (or the seed), and the bytes after it."""

    hash: int
    tail: bytes = b""


def seed(base_model: str, adapter: str = "", salt: str = "") -> int:
    """h_0. Length prefixes give ("ab", "c") and ("a", "bc") different seeds. A lone surrogate in a client's salt is
    allowed."""
    fields = (field.encode(errors="surrogatepass") for field in (base_model, adapter, salt))
    return int(xxh3_64_intdigest(b"".join(len(field).to_bytes(4, "little") + field for field in fields)))


def chain(data: bytes, seed: int) -> list[int]:
    """The hashes of all whole chunks of `data`, in order."""
    previous, hashed = seed, xxh3_64_intdigest
    return [previous := hashed(data[end - CHUNK : end], previous) for end in range(CHUNK, len(data) + 1, CHUNK)]


class ChainMemory:
    """`chain` with a memory, for prompts with common prefixes. It hashes a group of eight chunks at once; if the group
    and the hash before it were seen earlier, the eight hashes are known. A collision of two groups is as unlikely as a
    collision of two chunks. Unused groups are forgotten: at most `2 * kept` are stored, 0.5 KB each."""

    STRIDE = 8 * CHUNK

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        self._young: dict[int, list[int]] = {}
        self._old: dict[int, list[int]] = {}

    def chain(self, data: bytes, seed: int) -> list[int]:
        """The same hashes as the function `chain`."""
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
    """Continue a chain by `data`. Returns the hashes of the chunks that it completes, and the new state.

    The hashes do not depend on how the bytes are split into pieces; they equal those of `chain`.
    """
    data = link.tail + data
    if len(data) < CHUNK:
        return [], Link(link.hash, data)
    completed = chain(data, link.hash)
    return completed, Link(completed[-1], data[len(completed) * CHUNK :])
