"""Cumulative hash vectors over token chunks: how FEATHER sees a prompt (FEATHER §4.2.1, Algorithms 1 and 2).

T tokens in chunks of K give C = ⌈T/K⌉ values; two prompts are equal at level l iff their first l·K tokens are. The last
chunk may be partial and then counts only when the tails are identical. Tokens come as a buffer of 32-bit ids (an
`array("I")`, a numpy array, bytes): turning a Python list into one costs more than hashing it.

The two schemes give different values for the same prompt, and an engine's own block hashes a third: the scheme is part
of any stored key. Vectors of different schemes must never meet in one tree.
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
    """Algorithm 1: one running xxHash-64 over all tokens, read at each chunk's end. O(T) in all."""
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
    """Algorithm 2: each chunk hashed on its own, then chained as h_c = H(h_{c-1} ‖ l_c), h_0 = 0.

    The chunks' own hashes can be had in parallel; only the short chaining pass is sequential.
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
    """An engine's chained block hashes, every `stride`-th of them: no hashing at all.

    The partial last chunk is missing, and an engine extends its hashes with the output: freeze the vector at INSERT.
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
