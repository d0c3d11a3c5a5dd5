"""Which chunks of host memory a promotion plan may take: each once, and none that was evicted."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.priority_formula import parse_formula
from plumage_engine.vllm.offload.host_tier.chunk_hotness import ChunkHotness
from plumage_engine.vllm.offload.host_tier.residents import Residents
from plumage_engine.vllm.offload.promotion.candidates import Candidates

A, B, C, D = (name.encode().rjust(32, b"\1") + bytes(4) for name in "abcd")


@dataclass(slots=True)
class Chunk:
    """Like vLLM's ChunkStatus."""

    ref_cnt: int = 0
    is_ready: bool = True


def parts(*in_device: bytes) -> tuple[Residents, Candidates]:
    formula = parse_formula("frequency")
    record = CuckooFilter(4096, random.Random(0))
    residents = Residents(16, ChunkHotness(record, tokens=16, admission=formula, promotion=formula))
    device: Any = SimpleNamespace(holds=lambda key: key in in_device)
    return residents, Candidates(residents, device)


def store(residents: Residents, keys: list[bytes], parent: bytes | None = None, start: int = 0) -> None:
    for key in keys:
        residents.insert(key, Chunk())
    residents.add_entry(keys, parent, start)


def test_readmitted_chunk_is_planned_once() -> None:
    residents, candidates = parts(A, B)
    store(residents, [A, B, C, D])
    residents.remove(C)
    store(residents, [C], parent=B, start=2)
    planned = [key for _, piece in candidates.roots(8, ()) for key in piece.keys]
    assert planned.count(C) == 1
    assert planned.count(D) <= 1


def test_reset_clears_candidates() -> None:
    residents, candidates = parts(A)
    store(residents, [A, B, C])
    assert [piece.keys for _, piece in candidates.roots(8, ())] == [(B, C)]
    residents.clear()
    assert list(candidates._look()) == []
    store(residents, [A, B])
    assert [piece.keys for _, piece in candidates.roots(8, ())] == [(B,)]
