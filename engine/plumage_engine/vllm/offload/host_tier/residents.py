"""The chunks in host memory, coldest first: what goes for a newcomer, and what waits below the device to come up.

It stands where vLLM's manager keeps its cache policy, and has that interface; the decision whether a newcomer is worth
a resident is `plumage.tiering`'s. Chunks that came down together are one *entry*, a piece of a chain; they leave one by
one, of equals the deepest first, so that what is left is of use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import inf
from typing import Any

from plumage.tiering import TierNode, plan_admission
from plumage.tiering.coldest import REBUILD, ColdestFirst
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.chunk_hotness import Heats

__all__ = ["Entry", "GuardedPolicy", "Residents", "chunk_key"]

Key = bytes
_GROUP = 0x9E3779B97F4A7C15
_LOW = (1 << 64) - 1
_LOOKED_AT = 64
_DEPTH = 1e-9
"""What a chunk of depth counts beside hotness: it decides between equals only."""


def chunk_key(key: Key) -> int:
    """64 bits that stand for vLLM's key, which is a block hash and four bytes of its group."""
    low = int.from_bytes(key[-12:-4], "big")
    return low if not key[-1] else (low + key[-1] * _GROUP) & _LOW


@dataclass(eq=False, slots=True)
class Entry:
    """keys: chunks that came down together, parent before child. parent: the one above the first, None at the root.
    start: chunks above the first. held: how many of them are still here."""

    keys: list[Key]
    parent: Key | None
    start: int
    held: int


@dataclass(eq=False, slots=True)
class _Place:
    """Where a chunk lies, from when it came to when it goes. depth: chunks from its root."""

    key: Key
    entry: Entry
    depth: int


class Residents:
    """capacity: chunks. Chunks are vLLM's `ChunkStatus`; one in transfer (`ref_cnt` not 0) never leaves."""

    def __init__(self, capacity: int, heats: Heats) -> None:
        self.heats = heats
        self._chunks: dict[Key, Any] = {}
        self._places: dict[Key, _Place] = {}
        self._entries: dict[Entry, None] = {}
        self._order: ColdestFirst[_Place] = ColdestFirst(self._rank, max(REBUILD, capacity))
        self._doomed: list[Key] = []

    def __len__(self) -> int:
        return len(self._chunks)

    def items(self) -> Iterable[tuple[Key, Any]]:
        """Keys and chunks, those that came first first."""
        return self._chunks.items()

    def newest(self) -> Iterator[Entry]:
        """The entries, the one that came down last first."""
        return reversed(self._entries)

    # -- what is worth it --------------------------------------------------------------------------------------------

    def admit(
        self, keys: Sequence[Key], free: int, least: int, offered: Collection[Key], *, always: bool = False
    ) -> int:
        """How many of `keys`, a chain of newcomers, come in: as far as each was used `least` times and, with `free`
        chunks taken, is hotter than the resident that goes for it. Of `offered` none goes. always: whatever they are.
        The next `evict` takes who has to go.
        """
        self._doomed = []
        wanted = list(keys) if always else list(takewhile(lambda key: self._frequent(key, least), keys))
        if len(wanted) <= free:
            return len(wanted)
        taken = 0

        def choose(coldest: Iterator[_Place]) -> None:
            nonlocal taken
            named: dict[int, Key] = {}
            nodes = self._going(coldest, offered, named)
            for key in wanted:
                node = self._node(key)
                plan = plan_admission(replace(node, hotness=inf) if always else node, nodes, self._room(free, taken), 0)
                if not plan.admitted:
                    return
                taken += 1
                self._doomed += [named[victim.key] for victim in plan.victims]

        self._order.ask(choose)
        return taken

    def give_way(self, number: int, kept: Collection[Key], goes: Callable[[Key], bool]) -> int:
        """How many of `number` newcomers more come in, for the coldest that `goes` lets go although they may be hotter;
        of `kept` none goes. To be asked after `admit`, whose newcomers come in too."""
        doomed = set(self._doomed)
        cold = (key for key in self.coldest(_LOOKED_AT, kept) if key not in doomed and goes(key))
        chosen = list(islice(cold, number))
        self._doomed += chosen
        return len(chosen)

    def doom(self, keys: Sequence[Key]) -> None:
        """The next `evict` takes these; nobody, where it is not to come."""
        self._doomed = list(keys)

    def may_go(self, key: Key) -> bool:
        """Whether it is here, and in no transfer."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk.ref_cnt == 0

    def coldest(self, number: int, kept: Collection[Key] = ()) -> list[Key]:
        """Up to so many that may go, the coldest first; of `kept` none."""
        chosen: list[Key] = []

        def choose(coldest: Iterator[_Place]) -> None:
            chosen.extend(islice((place.key for place in coldest if self._may_go(place, kept)), number))

        self._order.ask(choose)
        return chosen

    def join(self, keys: Sequence[Key], parent: Key | None, start: int) -> None:
        """`keys`, just inserted, are a piece of a chain that begins `start` chunks below its root."""
        entry = Entry(list(keys), parent, start, len(keys))
        self._entries[entry] = None
        for depth, key in enumerate(keys, start + 1):
            place = self._places[key] = _Place(key, entry, depth)
            self._order.add(place)

    def _frequent(self, key: Key, least: int) -> bool:
        return self.heats.frequency(chunk_key(key)) >= least

    def _room(self, free: int, taken: int) -> int:
        """Tokens free once the doomed have gone and `taken` newcomers have come."""
        return (free + len(self._doomed) - taken) * self.heats.tokens

    def _going(self, coldest: Iterator[_Place], offered: Collection[Key], named: dict[int, Key]) -> Iterator[TierNode]:
        for place in coldest:
            if self._may_go(place, offered):
                node = self._node(place.key)
                named[node.key] = place.key
                yield node

    def _may_go(self, place: _Place, kept: Collection[Key]) -> bool:
        return self._chunks[place.key].ref_cnt == 0 and place.key not in kept

    def _node(self, key: Key) -> TierNode:
        name = chunk_key(key)
        return TierNode(name, None, self.heats.tokens, 0, self.heats.admission(name))

    def _rank(self, place: _Place) -> float:
        return self.heats.admission(chunk_key(place.key)) - _DEPTH * place.depth

    # -- as vLLM's manager asks --------------------------------------------------------------------------------------

    def get(self, key: Key) -> Any:
        """The chunk, or None."""
        return self._chunks.get(key)

    def insert(self, key: Key, chunk: Any, *request: object) -> None:
        """A newcomer; `join` tells its place afterwards, and from then on it may have to go."""
        self._chunks[key] = chunk

    def remove(self, key: Key) -> None:
        """A store that failed."""
        self._drop(key)

    def evict(self, number: int, protected: set[Key]) -> list[tuple[Key, Any]] | None:
        """Those that `admit` doomed; where it was not asked, the coldest. None when so many can't go."""
        doomed, self._doomed = self._doomed, []
        if len(doomed) != number or any(key in protected for key in doomed):
            doomed = self.coldest(number, protected)
        if len(doomed) < number:
            return None
        going = [(key, self._chunks[key]) for key in doomed]
        try:
            for key in doomed:
                self._drop(key)
        except Exception:
            self._chunks.update(going)  # whoever takes over finds every chunk here
            raise
        return going

    def clear(self) -> None:
        """All of them, whatever transfers are under way. Whoever keeps an entry sees that nothing of it is here."""
        for entry in self._entries:
            entry.held = 0
        for one in (self._chunks, self._places, self._entries, self._order, self._doomed):
            one.clear()

    def touch(self, keys: Iterable[Key], req_context: object) -> None:
        """Uses are counted by `Heats`, from the requests themselves."""

    def on_request_access(self, keys: Iterable[Key], req_context: object) -> None:
        """See `touch`; 0.33 asks."""

    def on_store_miss(self, keys: Iterable[Key], req_context: object) -> None:
        """See `touch`."""

    def on_request_finished(self, *access: object) -> None:
        """See `touch`."""

    def mark_evictable(self, key: Key) -> None:
        """The chunk's own count says so."""

    def mark_non_evictable(self, key: Key) -> None:
        """The chunk's own count says so."""

    def _drop(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._order.discard(place)
            place.entry.held -= 1
            if not place.entry.held:
                del self._entries[place.entry]
        del self._chunks[key]


class GuardedPolicy:
    """What a question to `residents` raises switches the feature off; the policy in charge from then on, as `stock`
    tells, answers it and whatever vLLM asks of this object later in the same call."""

    def __init__(self, residents: Residents, guard: Guard, stock: Callable[[], Any]) -> None:
        self._residents = residents
        self._guard = guard
        self._stock = stock

    def get(self, key: Key) -> Any:
        return self._ask("get", key)

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
        self._ask("mark_evictable", key)

    def mark_non_evictable(self, key: Key) -> None:
        self._ask("mark_non_evictable", key)

    def _ask(self, question: str, *given: Any) -> Any:
        if self._guard.on:
            try:
                return getattr(self._residents, question)(*given)
            except Exception as error:
                self._guard.failed(error)
        stock = self._stock()
        return getattr(self._residents if stock is self else stock, question)(*given)
