"""Memory for bodies: one limit, a share for each tenant, a part for small requests, eviction of the largest."""

from __future__ import annotations

import random

import pytest

from plumage_router.http.body_memory import BodyMemory, BodyReservation

TOTAL = 1_600_000
SMALL = 65_536


class Arriving:
    """A body that is received, and may be refused. tenant: None for an address of its own."""

    def __init__(self, room: BodyMemory, tenant: str | None = None) -> None:
        self.refused = False
        self.room = room
        self.held = BodyReservation(tenant or str(id(self)), self.evict)

    def evict(self) -> None:
        self.refused = True
        self.room.release(self.held)

    def add(self, size: int) -> bool:
        """A piece that does not end the body."""
        added = self.room.reserve(self.held, size)
        if added:
            self.room.unfinished(self.held)
        return added


def whole(room: BodyMemory, size: int, tenant: str) -> bool:
    """A body that arrives in one piece."""
    held = BodyReservation(tenant, lambda: None)
    if not room.reserve(held, size):
        return False
    room.complete(held)
    return True


def test_large_body_is_evicted_for_small_request() -> None:
    room = BodyMemory(TOTAL)
    large = [Arriving(room) for _ in range(3)]
    sizes = (300_000, 600_000, 500_000)
    assert all(body.add(size) for body, size in zip(large, sizes, strict=True))
    small = [Arriving(room) for _ in range(200)]
    assert all(body.add(1000) for body in small[:199]), "the reserve"
    assert not any(body.refused for body in large)
    assert small[199].add(2000)
    assert [body.refused for body in large] == [False, True, False], "the largest"
    assert room.used == 800_000 + 199_000 + 2000


def test_large_bodies_leave_memory_for_small_ones() -> None:
    room = BodyMemory(TOTAL)
    assert all(whole(room, 200_000, "a") for _ in range(7))
    late = Arriving(room)
    assert not late.add(100_000), "complete bodies are never evicted"
    assert Arriving(room).add(SMALL), "small ones may use the reserve"


@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "addresses"])
@pytest.mark.parametrize("size", [1, 100, SMALL])
def test_unfinished_small_bodies_of_one_tenant_leave_half_to_others(keyed: bool, size: int) -> None:
    """Bodies of one size, and smaller ones until no byte is left for the tenant."""
    room = BodyMemory(TOTAL, keyed=keyed)
    greedy = [Arriving(room, "a") for _ in range(min(20_000, TOTAL // size))]
    for body in greedy:
        body.add(size)
    assert room.used <= TOTAL // 2
    assert all(whole(room, 100, "b") for _ in range(1000)), "another tenant"
    assert not any(one.refused for one in greedy[-3:]), "and for that none is evicted"
    assert whole(room, 100, "a"), "its own request evicts one of its unfinished bodies"


def test_small_body_evicts_unfinished_ones_of_many_tenants() -> None:
    room = BodyMemory(TOTAL, keyed=True)
    greedy = [Arriving(room, name) for name in "abcd" for _ in range(20)]
    for body in greedy:
        body.add(SMALL)
    assert room.used > TOTAL - SMALL
    assert whole(room, SMALL, "bob")
    assert sum(body.refused for body in greedy) > 0


def test_complete_bodies_count_to_a_tenant_with_a_key_only() -> None:
    """An address may be a proxy of many clients."""
    for keyed, expected in ((True, 12), (False, 24)):
        room = BodyMemory(TOTAL, keyed=keyed)
        assert sum(whole(room, SMALL, "a") for _ in range(100)) == expected


def test_one_piece_evicts_a_bounded_number() -> None:
    room = BodyMemory(TOTAL, keyed=True)
    tiny = [Arriving(room, "a") for _ in range(1000)]
    assert all(body.add(1) for body in tiny)
    assert all(whole(room, SMALL, "a") for _ in range(12))
    assert not whole(room, SMALL, "a"), "the memory is full of complete bodies"
    assert sum(body.refused for body in tiny) < 50


def test_tenant_over_its_share_evicts_its_own_body() -> None:
    room = BodyMemory(TOTAL, keyed=True)
    greedy = [Arriving(room, "a") for _ in range(20)]
    for body in greedy:
        body.add(300_000)
    assert sum(body.held.size for body in greedy) <= 700_000
    other = Arriving(room, "b")
    assert other.add(600_000)
    assert not other.refused


def test_eviction_starts_with_largest_tenant() -> None:
    room = BodyMemory(TOTAL, keyed=True)
    a, b = Arriving(room, "a"), Arriving(room, "b")
    assert a.add(600_000)
    assert b.add(500_000)
    c = Arriving(room, "c")
    assert c.add(400_000)
    assert (a.refused, b.refused, c.refused) == (True, False, False)


@pytest.mark.parametrize("keyed", [True, False])
def test_all_memory_is_released_in_the_end(keyed: bool) -> None:
    rng = random.Random(1)
    room = BodyMemory(TOTAL, keyed=keyed)
    bodies = [Arriving(room, rng.choice("abc")) for _ in range(300)]
    for _ in range(3000):
        body = rng.choice(bodies)
        if body.refused:
            continue
        if body.held.evict is None or not body.add(rng.choice((100, 5000, 200_000))):
            room.release(body.held)
            body.refused = True
        elif rng.random() < 0.1:
            room.complete(body.held)
        assert 0 <= room.used <= TOTAL
        assert room.used == sum(one.held.size for one in bodies)
    for body in bodies:
        room.release(body.held)
    assert room.used == 0
    assert not room._accounts


def test_peak_is_the_most_since_it_was_last_taken() -> None:
    memory = BodyMemory(1_000_000)
    first, second = BodyReservation("a"), BodyReservation("b")
    assert memory.reserve(first, 100)
    assert memory.reserve(second, 200)
    memory.release(second)
    assert memory.take_peak() == 300
    assert memory.take_peak() == 100
    memory.release(first)
    assert (memory.take_peak(), memory.take_peak()) == (100, 0)


class Copy:
    """A copy's body, which may be dropped."""

    def __init__(self, room: BodyMemory, size: int) -> None:
        self.dropped = False
        self.room = room
        self.body = BodyReservation("copies", self.drop)
        self.kept = room.reserve_copy(self.body, size)

    def drop(self) -> None:
        self.dropped = True
        self.room.release_copy(self.body)


@pytest.mark.parametrize("keyed", [False, True])
def test_copies_get_an_eighth_of_the_memory(keyed: bool) -> None:
    room = BodyMemory(TOTAL, keyed=keyed)
    copies = [Copy(room, 100_000) for _ in range(3)]
    assert [copy.kept for copy in copies] == [True, True, False]
    assert room.used == room.take_peak() == 200_000
    assert len(room) == 0, "no tenant has them"
    for _ in range(2):
        room.release_copy(copies[0].body)
    assert room.used == 100_000
    assert Copy(room, 100_000).kept


def test_copies_get_no_memory_that_is_not_free() -> None:
    room = BodyMemory(TOTAL)
    assert all(whole(room, 200_000, tenant) for tenant in "aaabbbc")
    assert not Copy(room, 1000).kept, "the rest is for small requests"


def test_copies_are_dropped_before_any_body_is_refused() -> None:
    room = BodyMemory(TOTAL)
    copies = [Copy(room, 90_000) for _ in range(2)]
    arriving = Arriving(room, "a")
    assert arriving.add(600_000)
    assert all(whole(room, 200_000, tenant) for tenant in "bbc")
    assert [copy.dropped for copy in copies] == [False, False]
    assert whole(room, 100_000, "c")
    assert [copy.dropped for copy in copies] == [True, False], "the oldest"
    assert whole(room, 100_000, "c")
    assert [copy.dropped for copy in copies] == [True, True]
    assert not arriving.refused
    assert room.used == 1_400_000


def test_copies_make_no_room_for_a_tenant_over_its_share() -> None:
    room = BodyMemory(TOTAL, keyed=True)
    copy = Copy(room, 90_000)
    assert whole(room, 600_000, "a")
    assert not whole(room, 200_000, "a")
    assert not copy.dropped
