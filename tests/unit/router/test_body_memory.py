"""Memory for bodies: one limit, a share for each tenant, a part for small requests, eviction of the largest."""

from __future__ import annotations

import random

from plumage_router.http.body_memory import BodyMemory, BodyReservation

TOTAL = 1_600_000
SMALL = 65_536


class Arriving:
    """A body that is received, and may be refused."""

    def __init__(self, room: BodyMemory, tenant: str = "") -> None:
        self.refused = False
        self.room = room
        self.held = BodyReservation(tenant, self.evict)

    def evict(self) -> None:
        self.refused = True
        self.room.release(self.held)

    def add(self, size: int) -> bool:
        return self.room.reserve(self.held, size)


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
    whole = [Arriving(room) for _ in range(7)]
    for body in whole:
        assert body.add(200_000)
        room.complete(body.held)
    late = Arriving(room)
    assert not late.add(100_000), "complete bodies are never evicted"
    assert Arriving(room).add(SMALL), "small ones may use the reserve"


def test_tenant_over_its_share_evicts_its_own_body() -> None:
    room = BodyMemory(TOTAL, shared=True)
    greedy = [Arriving(room, "a") for _ in range(20)]
    for body in greedy:
        body.add(300_000)
    assert sum(body.held.size for body in greedy) <= 700_000
    other = Arriving(room, "b")
    assert other.add(600_000)
    assert not other.refused


def test_eviction_starts_with_largest_tenant() -> None:
    room = BodyMemory(TOTAL, shared=True)
    a, b = Arriving(room, "a"), Arriving(room, "b")
    assert a.add(600_000)
    assert b.add(500_000)
    c = Arriving(room, "c")
    assert c.add(400_000)
    assert (a.refused, b.refused, c.refused) == (True, False, False)


def test_all_memory_is_released_in_the_end() -> None:
    rng = random.Random(1)
    room = BodyMemory(TOTAL, shared=True)
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
    assert not room._by_tenant
    assert not room._arriving
