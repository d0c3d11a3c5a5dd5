"""The chunks in host memory, coldest first: which are evicted for a new chunk, and which can be promoted.

`Residents` stands where vLLM's manager keeps its cache policy, and has that interface. `plumage.tiering` decides
whether a new chunk is worth a resident. Chunks that were stored together are one *entry*, a piece of a chain. They are
evicted one by one, of equals the deepest first, so that the rest can still be found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import inf
from typing import Any

from plumage.tiering import LeastUses, TierNode, plan_admission
from plumage.tiering.coldest import REBUILD, ColdestFirst
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.chunk_hotness import ChunkHotness

__all__ = ["Entry", "GuardedPolicy", "Residents", "chunk_key"]

Key = bytes
_GROUP = 0x9E3779B97F4A7C15
_LOW = (1 << 64) - 1
_MAX_EXAMINED = 64
_DEPTH = 1e-9
"""Weight of a chunk's depth beside its hotness: it decides between equals only."""


def chunk_key(key: Key) -> int:
    """64 bits for vLLM's key, which is a block hash and four bytes of its group."""
    low = int.from_bytes(key[-12:-4], "big")
    return low if not key[-1] else (low + key[-1] * _GROUP) & _LOW


@dataclass(eq=False, slots=True)
class Entry:
    """keys: chunks that were stored together, parent before child.
    parent: the chunk above the first, None at the root.
    start: chunks above the first.
    held: how many of them are still stored.
    """

    keys: list[Key]
    parent: Key | None
    start: int
    held: int


@dataclass(eq=False, slots=True)
class _Place:
    """A chunk's place in its entry.

    depth: chunks from its root.
    """

    key: Key
    entry: Entry
    depth: int


class Residents:
    """capacity: chunks. Chunks are vLLM's `ChunkStatus`; one in transfer (`ref_cnt` not 0) is never evicted.

    chunks: all of them by key, for readers.
    least_uses: the uses that a chunk needs; it gets the results of copies after one use.
    count: counts these results, by the names of `Counters`.
    """

    def __init__(
        self,
        capacity: int,
        hotness: ChunkHotness,
        least_uses: LeastUses | None = None,
        count: Callable[[str, int], None] = lambda name, number: None,
    ) -> None:
        self.hotness = hotness
        self.least_uses = LeastUses(0) if least_uses is None else least_uses
        self._count = count
        self._once: set[Key] = set()  # copied after one use, and not loaded since then
        self.chunks: dict[Key, Any] = {}
        self._places: dict[Key, _Place] = {}
        self._entries: dict[Entry, None] = {}
        self._order: ColdestFirst[_Place] = ColdestFirst(self._rank, max(REBUILD, capacity))
        self._chosen: list[Key] = []

    def __len__(self) -> int:
        return len(self.chunks)

    def items(self) -> Iterable[tuple[Key, Any]]:
        """Keys and chunks, in the order of their storing."""
        return self.chunks.items()

    def newest(self) -> Iterator[Entry]:
        """The entries, the last stored first."""
        return reversed(self._entries)

    # -- admission -----------------------------------------------------------------------------------------------------

    def admit(
        self, keys: Sequence[Key], free: int, least: int, offered: Collection[Key], *, always: bool = False
    ) -> int:
        """How many of `keys`, a chain of new chunks, are admitted. The next `evict` takes the chunks chosen for them.

        Each must have `least` uses and, with `free` chunks taken, be hotter than the resident that is evicted for it.
        offered: none of these is evicted.
        always: admit whatever the rank.
        """
        self._chosen = []
        wanted = list(keys) if always else list(takewhile(lambda key: self._frequent(key, least), keys))
        if len(wanted) <= free:
            return len(wanted)
        taken = 0

        def choose(coldest: Iterator[_Place]) -> None:
            nonlocal taken
            named: dict[int, Key] = {}
            nodes = self._evictable_nodes(coldest, offered, named)
            for key in wanted:
                node = self._node(key)
                node = replace(node, hotness=inf) if always else node
                plan = plan_admission(node, nodes, self._free_tokens(free, taken), 0)
                if not plan.admitted:
                    return
                taken += 1
                self._chosen += [named[victim.key] for victim in plan.victims]

        self._order.ask(choose)
        return taken

    def make_way(self, number: int, kept: Collection[Key], goes: Callable[[Key], bool]) -> int:
        """How many of `number` further new chunks are admitted, for the coldest chunks that `goes` accepts even if
        hotter.

        kept: none of these is evicted. Call it after `admit`, whose chunks are admitted too.
        """
        doomed = set(self._chosen)
        cold = (key for key in self.coldest(_MAX_EXAMINED, kept) if key not in doomed and goes(key))
        chosen = list(islice(cold, number))
        self._chosen += chosen
        return len(chosen)

    def evict_next(self, keys: Sequence[Key]) -> None:
        """Has the next `evict` take these; an empty list cancels that."""
        self._chosen = list(keys)

    def is_evictable(self, key: Key) -> bool:
        """Whether the chunk is stored and in no transfer."""
        chunk = self.chunks.get(key)
        return chunk is not None and chunk.ref_cnt == 0

    def coldest(self, number: int, kept: Collection[Key] = ()) -> list[Key]:
        """Up to `number` evictable chunks, the coldest first; none of `kept`."""
        chosen: list[Key] = []

        def choose(coldest: Iterator[_Place]) -> None:
            chosen.extend(islice((place.key for place in coldest if self._is_evictable(place, kept)), number))

        self._order.ask(choose)
        return chosen

    def add_entry(self, keys: Sequence[Key], parent: Key | None, start: int) -> None:
        """`keys`, just inserted, are a piece of a chain that begins `start` chunks below its root."""
        entry = Entry(list(keys), parent, start, len(keys))
        self._entries[entry] = None
        for depth, key in enumerate(keys, start + 1):
            place = self._places[key] = _Place(key, entry, depth)
            self._order.add(place)
        if self.least_uses.adapts:
            self._once.update(key for key in keys if self.hotness.frequency(chunk_key(key)) == 1)

    def came_back(self, keys: Iterable[Key]) -> None:
        """A request uses these chunks, whose copies were here."""
        used = self._once.intersection(keys) if self._once else ()
        if used:
            self._once.difference_update(used)
            self.least_uses.count_outcomes(loaded=len(used))
            self._count("host_returns", len(used))

    def _frequent(self, key: Key, least: int) -> bool:
        return self.hotness.frequency(chunk_key(key)) >= least

    def _free_tokens(self, free: int, taken: int) -> int:
        """Tokens free once the chosen chunks are evicted and `taken` new ones are stored."""
        return (free + len(self._chosen) - taken) * self.hotness.tokens

    def _evictable_nodes(
        self, coldest: Iterator[_Place], offered: Collection[Key], named: dict[int, Key]
    ) -> Iterator[TierNode]:
        for place in coldest:
            if self._is_evictable(place, offered):
                node = self._node(place.key)
                named[node.key] = place.key
                yield node

    def _is_evictable(self, place: _Place, kept: Collection[Key]) -> bool:
        return self.chunks[place.key].ref_cnt == 0 and place.key not in kept

    def _node(self, key: Key) -> TierNode:
        name = chunk_key(key)
        return TierNode(name, None, self.hotness.tokens, 0, self.hotness.admission(name))

    def _rank(self, place: _Place) -> float:
        return self.hotness.admission(chunk_key(place.key)) - _DEPTH * place.depth

    # -- calls by vLLM's manager ---------------------------------------------------------------------------------------

    def get(self, key: Key) -> Any:
        """The chunk, or None."""
        return self.chunks.get(key)

    def insert(self, key: Key, chunk: Any, *request: object) -> None:
        """Store a new chunk; `add_entry` gives its place afterwards, and from then on it may be evicted."""
        self.chunks[key] = chunk

    def remove(self, key: Key) -> None:
        """Removes chunks whose store failed."""
        self._drop(key)

    def evict(self, number: int, protected: set[Key]) -> list[tuple[Key, Any]] | None:
        """Evict the chunks that were chosen for it, else the coldest. None when there are not so many."""
        doomed, self._chosen = self._chosen, []
        if len(doomed) != number or any(key in protected for key in doomed):
            doomed = self.coldest(number, protected)
        if len(doomed) < number:
            return None
        going = [(key, self.chunks[key]) for key in doomed]
        wasted = self._once.intersection(doomed) if self._once else ()
        if wasted:
            self.least_uses.count_outcomes(wasted=len(wasted))
            self._count("host_wasted", len(wasted))
        try:
            for key in doomed:
                self._drop(key)
        except Exception:
            self.chunks.update(going)  # the policy that replaces this one needs every chunk
            raise
        return going

    def clear(self) -> None:
        """Remove all, including chunks in transfer. An entry that is still referenced has `held` 0."""
        for entry in self._entries:
            entry.held = 0
        for one in (self.chunks, self._places, self._entries, self._order, self._chosen, self._once):
            one.clear()

    def touch(self, keys: Iterable[Key], req_context: object) -> None:
        """Nothing: `ChunkHotness` counts uses from the requests themselves."""

    def on_request_access(self, keys: Iterable[Key], req_context: object) -> None:
        """See `touch`; 0.33 calls it."""

    def on_store_miss(self, keys: Iterable[Key], req_context: object) -> None:
        """See `touch`."""

    def on_request_finished(self, *access: object) -> None:
        """See `touch`."""

    def mark_evictable(self, key: Key) -> None:
        """Nothing: the chunk's own count has it."""

    def mark_non_evictable(self, key: Key) -> None:
        """Nothing: the chunk's own count has it."""

    def _drop(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._order.discard(place)
            place.entry.held -= 1
            if not place.entry.held:
                del self._entries[place.entry]
        self._once.discard(key)
        del self.chunks[key]


class GuardedPolicy:
    """vLLM's cache policy over the residents, with a guard around each call.

    An exception switches the feature off. Then `stock`, the policy in charge from now on, answers the call and whatever
    vLLM calls on this object later in the same operation.
    """

    def __init__(self, residents: Residents, guard: Guard, stock: Callable[[], Any]) -> None:
        self._residents = residents
        self._chunks = residents.chunks
        self._guard = guard
        self._stock = stock

    def get(self, key: Key) -> Any:
        # As `_ask`, without its cost: vLLM asks several times for each block of a prompt.
        return self._chunks.get(key) if self._guard.on else self._ask("get", key)

    def insert(self, key: Key, chunk: Any, *request: object) -> None:
        self._ask("insert", key, chunk, *request)

    def remove(self, key: Key) -> None:
        self._ask("remove", key)

    def evict(self, number: int, protected: set[Key]) -> list[tuple[Key, Any]] | None:
        gone: list[tuple[Key, Any]] | None = self._ask("evict", number, protected)
        return gone

    def clear(self) -> None:
        self._ask("clear")

    def touch(self, keys: Iterable[Key], req_context: object) -> None:
        self._ask("touch", keys, req_context)

    def on_request_access(self, keys: Iterable[Key], req_context: object) -> None:
        self._ask("on_request_access", keys, req_context)

    def on_store_miss(self, keys: Iterable[Key], req_context: object) -> None:
        self._ask("on_store_miss", keys, req_context)

    def on_request_finished(self, *access: object) -> None:
        self._ask("on_request_finished", *access)

    def mark_evictable(self, key: Key) -> None:
        if not self._guard.on:
            self._ask("mark_evictable", key)

    def mark_non_evictable(self, key: Key) -> None:
        if not self._guard.on:
            self._ask("mark_non_evictable", key)

    def _ask(self, question: str, *given: Any) -> Any:
        if self._guard.on:
            try:
                return getattr(self._residents, question)(*given)
            except Exception as error:
                self._guard.failed(error)
        stock = self._stock()
        return getattr(self._residents if stock is self else stock, question)(*given)
