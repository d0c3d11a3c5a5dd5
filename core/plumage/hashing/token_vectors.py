"""Cumulative hash vectors over token chunks, by which FEATHER compares prompts (FEATHER §4.2.1, Algorithms 1 and 2).

T tokens in chunks of K give C = ⌈T/K⌉ values. Two prompts are equal at level l iff their first l·K tokens are equal.
The last chunk may be partial; then it is equal only if the whole tails are. Tokens are a buffer of 32-bit ids: an
`array("I")`, a numpy array or bytes. To convert a Python list would cost more than the hashes.

The two algorithms, and an engine's own block hashes, give three different vectors for one prompt. So the algorithm is
part of every stored key, and a tree must not contain vectors of different algorithms.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from xxhash import xxh64, xxh64_intdigest

if TYPE_CHECKING:  # collections.abc has it from Python 3.12 on
    from typing_extensions import Buffer

__all__ = ["chained", "incremental", "strided"]

TOKEN_BYTES = 4
H = TypeVar("H", bound=Hashable)


def incremental(tokens: Buffer, chunk: int) -> tuple[int, ...]:
    """Algorithm 1: one running xxHash-64 over all tokens, read at the end of each chunk. O(T) in total."""
    data = memoryview(tokens).cast("B")
    step = _step(data, chunk)
    state = xxh64()
    feed, read = state.update, state.intdigest
    vector = []
    for start in range(0, len(data), step):
        feed(data[start : start + step])
        vector.append(read())
    return tuple(vector)


def chained(tokens: Buffer, chunk: int) -> tuple[int, ...]:
    """Algorithm 2: hash each chunk alone, then chain the hashes as h_c = H(h_{c-1} ‖ l_c), h_0 = 0.

    The hashes of the chunks could be computed in parallel. Only the short chaining is sequential.
    """
    data = memoryview(tokens).cast("B")
    step = _step(data, chunk)
    value, vector = 0, []
    for start in range(0, len(data), step):
        own = xxh64_intdigest(data[start : start + step])
        value = xxh64_intdigest(value.to_bytes(8, "little") + own.to_bytes(8, "little"))
        vector.append(value)
    return tuple(vector)


def strided(block_hashes: Sequence[H], stride: int) -> tuple[H, ...]:
    """Every `stride`-th of an engine's chained block hashes, so nothing is hashed again.

    The partial last chunk has no value. The engine later appends hashes of output tokens: copy the vector at INSERT.
    """
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    return tuple(block_hashes[stride - 1 :: stride])


def _step(data: memoryview, chunk: int) -> int:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, got {chunk}")
    if len(data) % TOKEN_BYTES:
        raise ValueError(f"tokens must be 32-bit ids: {len(data)} bytes are no multiple of {TOKEN_BYTES}")
    return chunk * TOKEN_BYTES
