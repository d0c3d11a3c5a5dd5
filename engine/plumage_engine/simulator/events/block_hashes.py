"""Block hashes of a token sequence: chained 64-bit values, as an engine names its KV blocks.

    h_0 = xxh3_64(length-prefixed: model ‖ adapter ‖ salt)
    h_i = xxh3_64(token ids of block i as little-endian u32, seed=h_{i-1})

Two sequences share block i iff they share everything up to it, adapter and salt included. The hashes name blocks inside
one pool only: no other component recomputes them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import xxhash

__all__ = ["block_hashes", "root"]


def root(model: str, adapter: str = "", salt: str = "") -> int:
    """The seed of the first block's hash."""
    fields = (field.encode() for field in (model, adapter, salt))
    return xxhash.xxh3_64_intdigest(b"".join(struct.pack("<I", len(field)) + field for field in fields))


def block_hashes(token_ids: Sequence[int], block_size: int, start: int) -> list[int]:
    """Hashes of the full blocks of `token_ids`, chained to `start`."""
    width = 4 * block_size
    data = memoryview(array("I", token_ids).tobytes())
    digest, hashes, previous = xxhash.xxh3_64_intdigest, [], start
    for position in range(0, len(data) - width + 1, width):
        previous = digest(data[position : position + width], previous)
        hashes.append(previous)
    return hashes
