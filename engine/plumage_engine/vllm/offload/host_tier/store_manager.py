"""vLLM's manager of host memory, with HotPrefix's selective admission of stores (§3.3.2) and hotness in place of LRU.

vLLM offers a chunk for storing when it was computed, and again when a request finds it on the device; at eviction it
offers nothing. So the decision is made each time a request uses a chunk. It is stored at the use that makes it frequent
and hot enough. Then it is certainly on the device, long before its memory is needed (decision 0092).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Final

from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.priority_formula import parse_formula
from plumage.settings.engine_policies import HostTierConfig
from plumage.tiering import LeastUses
from plumage_engine.vllm.compat.kv_offload import (
    CPUOffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    make_lru,
    manager_problems,
    positions,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.chunk_hotness import ChunkHotness, Prior
from plumage_engine.vllm.offload.host_tier.residents import GuardedPolicy, Residents, chunk_key

__all__ = ["RANKS", "HostTierManager"]

RANKS: Final[Mapping[str, str]] = MappingProxyType(
    {"Frequency": "frequency", "Recency": "clock", "Depth": "0 - depth", "All": "clock"}
)
"""The formula that ranks chunks, by setting, where it is not hotness. With `All`, recency chooses the evicted chunk."""
_MIN_COUNTED = 65_536
"""Chunks whose uses are counted at least."""


@dataclass(slots=True)
class _Counted:
    """How many tokens of a request's prompt have been counted as used."""

    by: object
    tokens: int


class HostTierManager(CPUOffloadingManager):
    """chunks: slots in host memory.
    tokens: in a chunk.
    chunk_bytes: of a chunk, that one worker copies.
    more: arguments of vLLM's class.
    disk: the tier below; None where there is none.
    refused: guards of configured features that could not be made, by feature.
    """

    disk: Any = None

    def __init__(self, chunks: int, tokens: int, chunk_bytes: int, *, events: bool = False, **more: Any) -> None:
        super().__init__(num_chunks=chunks, enable_events=events, **more)
        self.chunk_bytes = max(1, chunk_bytes)
        self._tokens = tokens
        self._chunks_here = chunks
        self.refused: dict[str, Guard] = {}
        self.configure(HostTierConfig(), Counters())

    def configure(
        self,
        settings: HostTierConfig,
        counters: Counters,
        *,
        prior: Prior | None = None,
        seed: int = 0,
        device_chunks: int = 0,
    ) -> None:
        """Set settings and counters, before the first request; counted uses are dropped. device_chunks: that fit the
        device's cache."""
        self.settings = settings
        self.counters = counters
        self.guard = Guard("hostTier", counters, self._use_vllms_policy)
        self.prior_guard = Guard("hotness", counters)
        self.hotness = self._make_hotness(settings, prior, seed, self._chunks_here + device_chunks)
        self.residents = Residents(self._chunks_here, self.hotness, LeastUses(settings.min_frequency), counters.add)
        self._policy: Any = GuardedPolicy(self.residents, self.guard, lambda: self._policy)
        reasons = manager_problems()
        if reasons:
            self.guard.refuse(reasons)
            self._use_vllms_policy()

    # -- calls by vLLM's connector -------------------------------------------------------------------------------------

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Pass only those offered chunks to vLLM that are stored already or worth the copy."""
        if not self.guard.on:
            return super().prepare_store(keys, req_context)
        offered = list(keys)
        try:
            new = self._select(offered, req_context)
            here = [key for key in offered if self.residents.get(key) is not None]
        except Exception as error:
            self.guard.failed(error)
            return super().prepare_store(offered, req_context)
        output = super().prepare_store([*here, *new], req_context)
        if output is not None and output.keys_to_store:
            self._note_entries(output.keys_to_store, req_context)
        return output

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        """A request loads chunks. vLLM does not offer those for storing, so their use is counted here."""
        if self.guard.on:
            try:
                self._count(list(keys), req_context)
                self.residents.came_back(keys)
            except Exception as error:
                self.guard.failed(error)
        return super().prepare_load(keys, req_context)

    def prepare_promotion(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Any:
        """Like `prepare_load`, for a promotion, which is no use. `complete_load` ends it."""
        return self._prepare_load(keys, req_context, record_access=False)

    # -- the decision --------------------------------------------------------------------------------------------------

    def _select(self, offered: list[OffloadKey], context: ReqContext) -> list[OffloadKey]:
        """The new chunks among those offered that are admitted; the others are refused."""
        self._count(offered, context)
        new = [key for key in offered if self.residents.get(key) is None]
        if not new:
            return new
        taken = self._admitted(new, set(offered))
        self.counters.add("host_admissions", len(taken))
        self.counters.add("host_refusals", len(new) - len(taken))
        return taken

    def _admitted(self, new: list[OffloadKey], offered: set[OffloadKey]) -> list[OffloadKey]:
        """Returns the keys of `new` that are worth the copy and a place."""
        free, takes_all = self._get_num_free_chunks(), self.settings.admission == "All"
        least = self.residents.least_uses.of(chunk_key(new[0]))
        return new[: self.residents.admit(new, free, least, offered, always=takes_all)]

    def _count(self, keys: list[OffloadKey], context: ReqContext) -> None:
        """Count the request's use of its chunks: all at its first call, later those that it has grown by."""
        counted = context.get_state(_Counted)
        if counted is None or counted.by is not self:
            chain = positions(context)
            context.set_state(_Counted(self, max(chain.values(), default=0)))
            first, *others = _by_group(chain)
            self.hotness.request([chunk_key(key) for key in first])
            for keys_of_group in others:
                self.hotness.use([chunk_key(key) for key in keys_of_group], 0)
            return
        for key in keys:
            end = context.get_offload_key_position(key) or 0
            if end > counted.tokens:
                self.hotness.use([chunk_key(key)], end // self._tokens - 1)
        counted.tokens = max([counted.tokens, *(context.get_offload_key_position(key) or 0 for key in keys[-1:])])

    def _note_entries(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """Give the residents the place of each new chunk in its chain."""
        if not self.guard.on:
            return
        try:
            ends = positions(context)
            at = {(end, key[-4:]): key for key, end in ends.items()}
            piece: list[OffloadKey] = []
            for key in keys:
                if piece and at.get((ends[key] - self._tokens, key[-4:])) != piece[-1]:
                    self._add_entry(piece, ends, at)
                    piece = []
                piece.append(key)
            self._add_entry(piece, ends, at)
        except Exception as error:
            self.guard.failed(error)

    def _add_entry(
        self, piece: list[OffloadKey], ends: Mapping[OffloadKey, int], at: Mapping[tuple[int, bytes], OffloadKey]
    ) -> None:
        above = ends[piece[0]] - self._tokens
        self.residents.add_entry(piece, at.get((above, piece[0][-4:])), above // self._tokens)

    # -- start and failure ---------------------------------------------------------------------------------------------

    def _make_hotness(self, settings: HostTierConfig, prior: Prior | None, seed: int, turnover: int) -> ChunkHotness:
        chosen, chunks = settings.record.model_dump(), self._chunks_here
        return ChunkHotness(
            CuckooFilter(max(4 * chunks, _MIN_COUNTED), Random(seed), turnover=turnover, **chosen),
            tokens=self._tokens,
            admission=parse_formula(RANKS.get(settings.admission, settings.priority)),
            promotion=parse_formula(RANKS.get(settings.promotion, settings.priority)),
            pooled=(settings.admission == "Hotness", settings.promotion == "Hotness"),
            prior=prior,
            failed=self.prior_guard.failed,
        )

    def _use_vllms_policy(self) -> None:
        """Fall back to vLLM's own order for all stored chunks, and to its admission of everything."""
        if isinstance(self._policy, GuardedPolicy):
            self._policy = make_lru(self._chunks_here, self.residents.items())


def _by_group(chain: Mapping[OffloadKey, int]) -> list[list[OffloadKey]]:
    """A request's chunks, each KV group's from the root. vLLM lists one group after the other; mostly there is one.

    At least one list.
    """
    keys = list(chain)
    if not keys or keys[0][-4:] == keys[-1][-4:]:
        return [keys]
    groups: dict[bytes, list[OffloadKey]] = {}
    for key in keys:
        groups.setdefault(key[-4:], []).append(key)
    return list(groups.values())
