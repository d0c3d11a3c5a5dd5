"""vLLM's manager of host memory, with HotPrefix's selective admission (§3.3.2) and hotness for LRU.

vLLM offers a chunk when it has been computed, and again whenever a request has found it on the device; at eviction it
offers nothing. So a chunk is decided about each time a request uses it, and goes down at the use that makes it frequent
and hot enough: while it is on the device for certain, and long before its memory is wanted (0092).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Final

from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.formula_parser import parse_formula
from plumage_engine.policies import HostTierConfig
from plumage_engine.vllm.compat.kv_offload import (
    CPUOffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    make_lru,
    manager_complaints,
    positions,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.chunk_hotness import Heats, Prior
from plumage_engine.vllm.offload.host_tier.residents import GuardedPolicy, Residents, chunk_key

__all__ = ["RANKS", "SelectiveManager"]

RANKS: Final[Mapping[str, str]] = MappingProxyType(
    {"Frequency": "frequency", "Recency": "clock", "Depth": "0 - depth", "All": "clock"}
)
"""What ranks chunks where it is not hotness, by name of the setting. Everything taken in, recency says who goes."""
_FEWEST = 65_536
"""Chunks whose uses are remembered at the least."""


@dataclass(slots=True)
class _Counted:
    """How far a request's use of its prompt has been counted, in tokens."""

    by: object
    tokens: int


class SelectiveManager(CPUOffloadingManager):
    """chunks: slots in host memory. tokens: in a chunk. chunk_bytes: of it, that one worker copies. more: of vLLM's
    class above. `disk`: the tier below, None where there is none. refused: guards of what was asked for and could not
    be made, by feature."""

    disk: Any = None

    def __init__(self, chunks: int, tokens: int, chunk_bytes: int, *, events: bool = False, **more: Any) -> None:
        super().__init__(num_chunks=chunks, enable_events=events, **more)
        self.chunk_bytes = max(1, chunk_bytes)
        self._tokens = tokens
        self._chunks_here = chunks
        self.refused: dict[str, Guard] = {}
        self.configure(HostTierConfig(), Counters())

    def configure(
        self, settings: HostTierConfig, counters: Counters, *, prior: Prior | None = None, seed: int = 0
    ) -> None:
        """Take over settings and counters, before the first request; what is known of uses is forgotten."""
        self.settings = settings
        self.counters = counters
        self.guard = Guard("hostTier", counters, self._stock)
        self.prior_guard = Guard("hotness", counters)
        self.heats = self._make_heats(settings, prior, seed)
        self.residents = Residents(self._chunks_here, self.heats)
        self._policy: Any = GuardedPolicy(self.residents, self.guard, lambda: self._policy)
        reasons = manager_complaints()
        if reasons:
            self.guard.refuse(reasons)
            self._stock()

    # -- as vLLM's connector asks ------------------------------------------------------------------------------------

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Of the chunks offered by a request only those that are here, or worth the copy, are vLLM's to look at."""
        if not self.guard.on:
            return super().prepare_store(keys, req_context)
        offered = list(keys)
        try:
            new = self._selected(offered, req_context)
            here = [key for key in offered if self._policy.get(key) is not None]
        except Exception as error:
            self.guard.failed(error)
            return super().prepare_store(offered, req_context)
        output = super().prepare_store([*here, *new], req_context)
        if output is not None and output.keys_to_store:
            self._placed(output.keys_to_store, req_context)
        return output

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        """A request has chunks copied up; vLLM then never offers those above them, so the use is counted here."""
        if self.guard.on:
            try:
                self._count(list(keys), req_context)
            except Exception as error:
                self.guard.failed(error)
        return super().prepare_load(keys, req_context)

    def lend(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Any:
        """As `prepare_load`, for a promotion: that is no use. `complete_load` ends it."""
        return self._prepare_load(keys, req_context, record_access=False)

    # -- the decision ------------------------------------------------------------------------------------------------

    def _selected(self, offered: list[OffloadKey], context: ReqContext) -> list[OffloadKey]:
        """The newcomers among the offered chunks that are taken in; the others are refused."""
        self._count(offered, context)
        new = [key for key in offered if self.residents.get(key) is None]
        if not new:
            return new
        taken = self._taken(new, set(offered))
        self.counters.add("host_admissions", len(taken))
        self.counters.add("host_refusals", len(new) - len(taken))
        return taken

    def _taken(self, new: list[OffloadKey], offered: set[OffloadKey]) -> list[OffloadKey]:
        """Those of `new` that are worth the copy and a place."""
        free, takes_all = self._get_num_free_chunks(), self.settings.admission == "All"
        return new[: self.residents.admit(new, free, self.settings.min_frequency, offered, always=takes_all)]

    def _count(self, keys: list[OffloadKey], context: ReqContext) -> None:
        """Count the request's use of its chunks: of all at its first word, later of those that it has grown by."""
        counted = context.get_state(_Counted)
        if counted is None or counted.by is not self:
            chain = positions(context)
            context.set_state(_Counted(self, max(chain.values(), default=0)))
            first, *others = _by_group(chain)
            self.heats.request([chunk_key(key) for key in first])
            for keys_of_group in others:
                self.heats.use([chunk_key(key) for key in keys_of_group], 0)
            return
        for key in keys:
            end = context.get_offload_key_position(key) or 0
            if end > counted.tokens:
                self.heats.use([chunk_key(key)], end // self._tokens - 1)
        counted.tokens = max([counted.tokens, *(context.get_offload_key_position(key) or 0 for key in keys[-1:])])

    def _placed(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """Tell the residents where in their chain the newcomers are."""
        if not self.guard.on:
            return
        try:
            ends = positions(context)
            at = {(end, key[-4:]): key for key, end in ends.items()}
            piece: list[OffloadKey] = []
            for key in keys:
                if piece and at.get((ends[key] - self._tokens, key[-4:])) != piece[-1]:
                    self._join(piece, ends, at)
                    piece = []
                piece.append(key)
            self._join(piece, ends, at)
        except Exception as error:
            self.guard.failed(error)

    def _join(
        self, piece: list[OffloadKey], ends: Mapping[OffloadKey, int], at: Mapping[tuple[int, bytes], OffloadKey]
    ) -> None:
        above = ends[piece[0]] - self._tokens
        self.residents.join(piece, at.get((above, piece[0][-4:])), above // self._tokens)

    # -- at start, and when it goes wrong ----------------------------------------------------------------------------

    def _make_heats(self, settings: HostTierConfig, prior: Prior | None, seed: int) -> Heats:
        widths = settings.record.model_dump()
        return Heats(
            CuckooFilter(max(4 * self._chunks_here, _FEWEST), Random(seed), **widths),
            tokens=self._tokens,
            admission=parse_formula(RANKS.get(settings.admission, settings.priority)),
            promotion=parse_formula(RANKS.get(settings.promotion, settings.priority)),
            pooled=(settings.admission == "Hotness", settings.promotion == "Hotness"),
            prior=prior,
            failed=self.prior_guard.failed,
        )

    def _stock(self) -> None:
        """vLLM's own order for all that is here, and its own admission: of everything."""
        if isinstance(self._policy, GuardedPolicy):
            self._policy = make_lru(self._chunks_here, self.residents.items())


def _by_group(chain: Mapping[OffloadKey, int]) -> list[list[OffloadKey]]:
    """A request's chunks, each KV group's from the root: vLLM tells one group after the other, and mostly there is one.
    One list at the least."""
    keys = list(chain)
    if not keys or keys[0][-4:] == keys[-1][-4:]:
        return [keys]
    groups: dict[bytes, list[OffloadKey]] = {}
    for key in keys:
        groups.setdefault(key[-4:], []).append(key)
    return list(groups.values())
