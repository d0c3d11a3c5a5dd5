"""The kernels of `attention-premise`: one decode step's attention of a batch, over one shared prefix or over separate
ones.

All prefixes have the same values, so both cases compute the same numbers. They differ only in the memory that is read.
The keys and values of several layers are read in turn, as in a model. With a single layer the data of the last
repetition would still be in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from plumage_bench.device import CPU

__all__ = ["ADJACENT", "BLOCK", "DIFFERENT", "GROUPS", "INTERLEAVED", "SHAPES", "SHARED", "Shape", "Step", "make_step"]

BLOCK = 32
"""Tokens of a block, for the kernel that reads through a block table."""

GROUPS = 8
"""Prefixes of a mixed batch, for kernels that read through a block table."""
SHARED, DIFFERENT, INTERLEAVED, ADJACENT = "shared", "different", "interleaved", "adjacent"

Step: TypeAlias = Callable[[str], list[Any]]
"""One step over one shared prefix, over different ones, or over `GROUPS` of them, whose requests are interleaved or
adjacent in the batch. Returns the output of each layer: [batch, heads × head size]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """heads: of queries. kv_heads: of keys and values. layers: read in turn."""

    heads: int
    kv_heads: int
    head_size: int
    layers: int

    def prefix_bytes(self, tokens: int) -> int:
        """Bytes of one prefix's keys and values in one layer, in bf16."""
        return tokens * self.kv_heads * self.head_size * 2 * 2


SHAPES = {CPU: Shape(8, 8, 64, 8), "cuda": Shape(32, 8, 128, 8)}
"""cpu: the model of `vllm-feather`. cuda: eight layers of Llama 3 8B's attention."""


def make_step(device: str, shape: Shape, batch: int, prefix: int) -> tuple[str, tuple[str, ...], Step]:
    """The name of the kernel, the cases that it can run, and a function that runs it. With vLLM it is vLLM's paged
    kernel of the device, else torch's kernel over contiguous prefixes. prefix: tokens, a multiple of BLOCK."""
    cases = (SHARED, DIFFERENT, INTERLEAVED, ADJACENT)
    if find_spec("vllm") is not None and device == CPU:
        return "vLLM, paged", cases, _paged(shape, batch, prefix)
    if find_spec("vllm") is not None and (version := _flash_version()) is not None:
        return f"vLLM's FlashAttention {version}, paged", cases, _paged_flash(shape, batch, prefix, version)
    return "torch, contiguous", (SHARED, DIFFERENT), _dense(device, shape, batch, prefix)


def _dense(device: str, shape: Shape, batch: int, prefix: int) -> Step:
    """torch's attention. Query heads that share keys are passed as queries of one sequence, without a mask. A shared
    prefix is the same memory for the whole batch."""
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    size = (1, shape.kv_heads, prefix, shape.head_size)
    queries = [_random(device, batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_size)] * shape.layers
    one = [(_random(device, *size), _random(device, *size)) for _ in range(shape.layers)]
    each = [(keys.repeat(batch, 1, 1, 1), values.repeat(batch, 1, 1, 1)) for keys, values in one]
    same = [
        (keys.expand_as(apart), values.expand_as(apart)) for (keys, values), (apart, _) in zip(one, each, strict=True)
    ]

    def step(case: str) -> list[Any]:
        return [attend(query, *kept) for query, kept in zip(queries, same if case == SHARED else each, strict=True)]

    return step


def _paged(shape: Shape, batch: int, prefix: int) -> Step:
    """vLLM's CPU kernel, called as by its attention backend: for each layer a slab of blocks, and block tables into
    it."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    blocks = prefix // BLOCK
    query = _random(CPU, batch, shape.heads, shape.head_size)
    slabs = [_slab(shape, batch, blocks) for _ in range(shape.layers)]
    starts = torch.arange(batch + 1, dtype=torch.int32)
    lengths = torch.full((batch,), prefix, dtype=torch.int32)
    tables = _tables(CPU, batch, blocks)
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

    def step(case: str) -> list[Any]:
        return [attend(slab, tables[case]) for slab in slabs]

    return step


def _flash_version() -> int | None:
    """The version of vLLM's FlashAttention on this GPU; None if it has none."""
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    found: int | None = get_flash_attn_version()
    return found


def _paged_flash(shape: Shape, batch: int, prefix: int, version: int) -> Step:
    """vLLM's FlashAttention, called as by its attention backend."""
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    blocks, device = prefix // BLOCK, "cuda"
    query = _random(device, batch, shape.heads, shape.head_size)
    size = (blocks, BLOCK, shape.kv_heads, shape.head_size)
    slabs = [
        tuple(_random(device, *size).repeat(batch, 1, 1, 1) for _ in ("keys", "values")) for _ in range(shape.layers)
    ]
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    lengths = torch.full((batch,), prefix, dtype=torch.int32, device=device)
    tables = _tables(device, batch, blocks)

    def attend(slab: Any, table: Any) -> Any:
        return flash_attn_varlen_func(
            query, *slab, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=prefix, seqused_k=lengths, causal=True,
            softmax_scale=shape.head_size**-0.5, block_table=table, fa_version=version,
        )  # fmt: skip

    def step(case: str) -> list[Any]:
        return [attend(slab, tables[case]) for slab in slabs]

    return step


def _tables(device: str, batch: int, blocks: int) -> dict[str, Any]:
    """Block tables of each case into a slab with one prefix for each request: [batch, blocks]."""
    import torch

    each = torch.arange(batch * blocks, dtype=torch.int32, device=device).reshape(batch, blocks)
    groups = torch.arange(batch, device=device) % GROUPS
    return {
        SHARED: each[:1].repeat(batch, 1),
        DIFFERENT: each,
        INTERLEAVED: each[groups],
        ADJACENT: each[groups.sort().values],
    }


def _slab(shape: Shape, batch: int, blocks: int) -> Any:
    """The slab with each request's own prefix, block by block, all with the same content. Keys and values are side by
    side."""
    return _random(CPU, blocks, shape.kv_heads, 2 * BLOCK, shape.head_size).repeat(batch, 1, 1, 1)


def _random(device: str, *size: int) -> Any:
    import torch

    return torch.randn(*size, device=device).to(torch.bfloat16)
