"""One decode step's attention of a batch, whose requests read one shared prefix or one each: the kernels that do it.

Both ways compute the same numbers, since all prefixes hold the same values, and differ in where those lie in memory
only. Several layers' worth of keys and values are read in turn, as in a model: one layer alone would find its own in a
cache because it was the last to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from plumage_bench.device import CPU

__all__ = ["BLOCK", "SHAPES", "Shape", "Step", "make_step"]

BLOCK = 32
"""Tokens of a block where the kernel reads through a block table."""

Step: TypeAlias = Callable[[bool], list[Any]]
"""One step over shared prefixes, or over different ones; what came out, by layer, [batch, heads × head size]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """heads: that ask; kv_heads: that are kept. layers: read in turn."""

    heads: int
    kv_heads: int
    head_size: int
    layers: int

    def prefix_bytes(self, tokens: int) -> int:
        """Keys and values of one prefix in one layer, in bf16."""
        return tokens * self.kv_heads * self.head_size * 2 * 2


SHAPES = {CPU: Shape(8, 8, 64, 8), "cuda": Shape(32, 8, 128, 8)}
"""cpu: the model of `vllm-feather`. cuda: Llama 3 8B's attention, eight layers of it."""


def make_step(device: str, shape: Shape, batch: int, prefix: int) -> tuple[str, Step]:
    """The kernel's name, and it. vLLM's own paged one on a CPU where vLLM is, else torch's over contiguous prefixes.
    prefix: tokens, a multiple of BLOCK."""
    if device == CPU and find_spec("vllm") is not None:
        return "vLLM, paged", _paged(shape, batch, prefix)
    return "torch, contiguous", _dense(device, shape, batch, prefix)


def _dense(device: str, shape: Shape, batch: int, prefix: int) -> Step:
    """torch's attention: the heads that share keys stand as queries of one sequence, without a mask. A shared prefix is
    the same memory for all of the batch."""
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    size = (1, shape.kv_heads, prefix, shape.head_size)
    queries = [_random(device, batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_size)] * shape.layers
    one = [(_random(device, *size), _random(device, *size)) for _ in range(shape.layers)]
    each = [(keys.repeat(batch, 1, 1, 1), values.repeat(batch, 1, 1, 1)) for keys, values in one]
    same = [
        (keys.expand_as(apart), values.expand_as(apart)) for (keys, values), (apart, _) in zip(one, each, strict=True)
    ]

    def step(shared: bool) -> list[Any]:
        return [attend(query, *kept) for query, kept in zip(queries, same if shared else each, strict=True)]

    return step


def _paged(shape: Shape, batch: int, prefix: int) -> Step:
    """vLLM's CPU kernel, as its attention backend calls it: one slab of blocks a layer, and block tables into it."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    blocks = prefix // BLOCK
    query = _random(CPU, batch, shape.heads, shape.head_size)
    slabs = [_slab(shape, batch, blocks) for _ in range(shape.layers)]
    starts = torch.arange(batch + 1, dtype=torch.int32)
    lengths = torch.full((batch,), prefix, dtype=torch.int32)
    each = torch.arange(batch * blocks, dtype=torch.int32).reshape(batch, blocks)
    tables = {False: each, True: each[:1].repeat(batch, 1)}
    plan = ops.cpu_attn_get_scheduler_metadata(
        batch, shape.heads, shape.kv_heads, shape.head_size, lengths, torch.bfloat16, starts, True, -1,
        _get_attn_isa(torch.bfloat16, BLOCK, shape.head_size), True,
    )  # fmt: skip

    def attend(slab: Any, table: Any) -> Any:
        out = torch.empty_like(query)
        keys, values = slab.chunk(2, dim=2)
        ops.cpu_attention_with_kv_cache(
            query, keys, values, out, starts, lengths, shape.head_size**-0.5, True, None, -1, table, 0.0, plan, None
        )
        return out

    def step(shared: bool) -> list[Any]:
        return [attend(slab, tables[shared]) for slab in slabs]

    return step


def _slab(shape: Shape, batch: int, blocks: int) -> Any:
    """Of each request's own prefix, block by block, all with the same content; keys and values lie side by side."""
    return _random(CPU, blocks, shape.kv_heads, 2 * BLOCK, shape.head_size).repeat(batch, 1, 1, 1)


def _random(device: str, *size: int) -> Any:
    import torch

    return torch.randn(*size).to(device=device, dtype=torch.bfloat16)
