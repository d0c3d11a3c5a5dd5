"""The directory's key: a chain of hashes over the chunks of the rendered prompt.

Routers and agents of different versions must compute the same hashes. Golden vectors in
`tests/contract/test_chunk_goldens.py` check this definition:

    h_0 = xxh3_64(field(base model) ‖ field(adapter) ‖ field(salt)),  field(s) = u32 little endian length ‖ UTF-8 bytes
    h_i = xxh3_64(bytes[256·(i−1) : 256·i], seed = h_{i−1})

So the prompt is hashed in pieces of 256 bytes. A chunk is one or more pieces, and its key is the hash of its last one.
A chunk has one piece in the first 16 KiB, and two up to 32 KiB. It has four up to 64 KiB, eight up to 128 KiB, then 16.
So a chunk is at most 1/32 of the prompt before it, or 256 bytes, and at most 4 KiB. A long prompt costs little, and a
match leaves out a small part of it only (decision 0260).

Only whole chunks have a key. h_0 is not a key: it gives base models, adapters and tenants different hashes. Two prompts
have the same key if their seeds and their bytes up to the chunk's end are equal. So a router finds cached prefixes
without a tokenizer.

The router hashes a whole prompt at once (`chain`). The agent gets the same bytes block by block. It carries the hash of
the last whole piece and the bytes after it from each block to its children (`pieces`, `ends_chunk`).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from xxhash import xxh3_64_intdigest

__all__ = ["ENDS", "PIECE", "ChainMemory", "chain", "depth_of", "ends_chunk", "pieces", "seed"]

PIECE: Final = 256
"""Bytes that are hashed at once. 16 tokens of English have about 70 bytes, so a piece covers three or four small KV
blocks."""
_STEPS: Final = ((64, 1), (128, 2), (256, 4), (512, 8))  # (n, k): in a prompt's first n pieces a chunk has k of them
_LARGEST: Final = 16  # pieces of a later chunk
_COVERED: Final = 1 << 16  # pieces of a prompt that `ENDS` covers; a router renders a quarter of that


_VIEWED: Final = 1 << 15  # bytes: parts of a longer prompt are large, and a view of one costs less than a copy


def _ends() -> tuple[int, ...]:
    sizes: list[int] = []
    before = 0
    for end, size in (*_STEPS, (_COVERED, _LARGEST)):
        sizes += [size * PIECE] * ((end - before) // size)
        before = end
    return (0, *accumulate(sizes))


ENDS: Final = _ends()
"""ENDS[n]: bytes of a prompt's first n chunks."""


def depth_of(size: int) -> int:
    """Whole chunks in a prompt's first `size` bytes, as far as `ENDS` goes."""
    return bisect_right(ENDS, size) - 1


def ends_chunk(number: int) -> bool:
    """Whether a chunk ends with the piece of this number, from 1."""
    for end, size in _STEPS:
        if number <= end:
            return not number % size
    return not number % _LARGEST


def seed(base_model: str, adapter: str = "", salt: str = "") -> int:
    """h_0. Length prefixes give ("ab", "c") and ("a", "bc") different seeds. A lone surrogate in a client's salt is
    allowed."""
    fields = (field.encode(errors="surrogatepass") for field in (base_model, adapter, salt))
    return int(xxh3_64_intdigest(b"".join(len(field).to_bytes(4, "little") + field for field in fields)))


def pieces(data: bytes, previous: int) -> list[int]:
    """The hashes of all whole pieces of `data`, in order. previous: the hash of the piece before, or the seed."""
    hashed = xxh3_64_intdigest
    return [previous := hashed(data[end - PIECE : end], previous) for end in range(PIECE, len(data) + 1, PIECE)]


def chain(data: bytes, seed: int) -> list[int]:
    """The keys of all whole chunks of a prompt, in order."""
    hashes = pieces(data, seed)
    if len(hashes) <= _STEPS[0][0]:
        return hashes
    keys: list[int] = []
    before = 0
    for end, size in (*_STEPS, (len(hashes), _LARGEST)):
        keys += hashes[before + size - 1 : end : size]
        before = end
    return keys


class ChainMemory:
    """`chain` with a memory, for prompts with common prefixes. It hashes a group of eight chunks at once; if the group
    and the hash before it were seen earlier, the eight keys are known. A collision of two groups is as unlikely as a
    collision of two chunks. Unused groups are forgotten: at most `2 * kept` are stored, 0.5 KB each."""

    STRIDE = 8  # chunks; all of one size, as each size begins at a multiple of it

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        self._young: dict[int, list[int]] = {}
        self._old: dict[int, list[int]] = {}

    def chain(self, data: bytes, seed: int) -> list[int]:
        """The same keys as the function `chain`, for at most as many bytes as `ENDS` covers."""
        young, ends, stride = self._young, ENDS, self.STRIDE
        hashes: list[int] = []
        previous, start = seed, 0
        depth = depth_of(len(data))
        source = memoryview(data) if len(data) > _VIEWED else data
        for index in range(stride, depth + 1, stride):
            end = ends[index]
            name = xxh3_64_intdigest(source[start:end], previous)
            known = young.get(name)
            if known is None:
                known = self._recall(name, data[start:end], previous)
            hashes += known
            previous, start = known[-1], end
        return hashes + _keys(data[start : ends[depth]], previous, depth % stride) if depth % stride else hashes

    def _recall(self, name: int, part: bytes, previous: int) -> list[int]:
        known = self._old.get(name)
        if known is None:
            known = _keys(part, previous, self.STRIDE)
        if len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        self._young[name] = known
        return known


def _keys(part: bytes, previous: int, count: int) -> list[int]:
    """The keys of `count` chunks of one size."""
    size = len(part) // count // PIECE
    return pieces(part, previous)[size - 1 :: size]
