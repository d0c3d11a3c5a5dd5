"""Tenants in eviction: a flood is evicted first, equals have no disadvantage, and nobody without a salt is counted."""

from __future__ import annotations

import pytest
from support.eviction_chains import serve

from plumage.blocks.pool import BlockPool
from plumage.eviction.hotness_formula import Hotness
from plumage.eviction.owners import Owners

CAPACITY = 64


def owners(**returns: float) -> Owners:
    """Tenants that each computed ten caches of blocks, of which this share was used again."""
    made = Owners(CAPACITY, 8.0)
    for name, share in returns.items():
        made.computed(name, 10 * CAPACITY)
        made.again(name, int(share * 10 * CAPACITY))
    return made


def test_tenant_without_returns_ages_by_nearly_eight_caches() -> None:
    made = owners(good=0.8, flood=0.0)
    assert made.early("good", 0) == 0.0
    assert 7.0 * CAPACITY < made.early("flood", 0) <= 8.0 * CAPACITY


def test_half_of_the_others_return_is_enough() -> None:
    assert owners(one=0.6, other=0.31).early("other", 0) == 0.0
    assert owners(one=0.6, other=0.1).early("other", 0) > 0.0


def test_flood_does_not_lower_what_it_is_compared_with() -> None:
    made = owners(good=0.8, flood=0.0)
    before = made.early("flood", 0)
    made.computed("flood", 100 * CAPACITY)
    assert made.early("flood", 0) > before
    assert made.early("good", 0) == 0.0


def test_nobody_and_a_single_tenant_have_no_disadvantage() -> None:
    made = owners(only=0.3)
    made.computed("only", 50 * CAPACITY)
    assert made.early("only", 0) == 0.0
    made = owners(good=1.0, flood=0.0)
    made.computed(None, 50 * CAPACITY)
    assert made.early(None, 0) == 0.0
    assert len(made) == 2


def test_tenant_beside_others_that_showed_nothing_has_no_disadvantage() -> None:
    assert owners(one=0.0, other=0.0).early("one", 0) == 0.0


def test_new_tenant_is_not_taken_for_a_flood() -> None:
    made = owners(good=0.8)
    made.computed("new", CAPACITY // 8)
    assert made.early("new", 0) == 0.0


@pytest.mark.parametrize("share", [0.001, 0.02, 0.2])
def test_equal_tenants_with_rare_returns_stay_equal(share: float) -> None:
    """By chance one of them has no return yet, where a few are expected."""
    made = owners(**{f"tenant {number}": share for number in range(7)})
    made.computed("unlucky", int(2.0 / share))
    assert made.early("unlucky", 0) < 0.5 * CAPACITY


def test_flood_that_ended_is_forgotten() -> None:
    made = owners(good=0.8, flood=0.0)
    before = made.early("flood", 0)
    for time in range(0, 200 * CAPACITY, CAPACITY // 4):
        made.computed("good", 8)
        made.again("good", 6)
        made.early("good", time)
    assert made.early("flood", 200 * CAPACITY) < before / 10


def test_past_returns_do_not_protect_for_ever() -> None:
    made = owners(good=0.8, turned=0.8)
    for time in range(0, 40 * CAPACITY, CAPACITY // 4):
        made.computed("turned", CAPACITY // 4)
        made.computed("good", 8)
        made.again("good", 6)
        made.early("turned", time)
    assert made.early("turned", 40 * CAPACITY) > 4.0 * CAPACITY


def test_table_forgets_the_tenant_seen_least_recently() -> None:
    made = owners(first=0.0, good=0.8)
    for number in range(1022):
        made.computed(f"tenant {number}", 1)
    assert len(made) == 1024
    made.computed("first", 1)
    assert made.early("first", 0) > 0.0
    made.computed("another", 1)  # takes the place of "good"
    assert len(made) == 1024
    made.again("good", 0)
    assert len(made) == 1024
    assert made.early("first", 0) > 0.0


def test_hot_prefix_of_a_tenant_that_returns_nothing_else_has_no_disadvantage() -> None:
    """Its system prompt is used by each request, its tails by none. Another tenant's conversations return."""
    pool = BlockPool(CAPACITY, Hotness(CAPACITY, weights=[1.0]))
    for now in range(600):
        serve(pool, [1, 2, 3, 4, *(10_000 + 8 * now + block for block in range(8))], float(now), "busy")
        serve(pool, [100_000 + 10 * (now // 2) + block for block in range(4 + now % 2 * 2)], float(now), "talk")
    for now in range(600, 632):  # the busy tenant rests for three caches of time
        serve(pool, [100_000 + 10 * now + block for block in range(6)], float(now), "talk")
    assert pool.match([1, 2, 3, 4]) == 4


@pytest.mark.parametrize("salted", [True, False])
def test_flood_does_not_evict_a_conversation_between_two_rounds(salted: bool) -> None:
    """Each conversation has a second round, after the flood has used one and a half caches of blocks."""
    pool, found, asked = BlockPool(CAPACITY, Hotness(CAPACITY)), 0, 0
    ours, flood = ("tenant", "flood") if salted else (None, None)
    for now in range(1200):
        serve(pool, [4 * now + block for block in range(4)], float(now), flood)
        talk, left = divmod(now, 12)
        if left:
            continue
        serve(pool, [100_000 + 10 * talk + block for block in range(6)], float(now), ours)
        if talk >= 2:
            again = serve(pool, [100_000 + 10 * (talk - 2) + block for block in range(8)], float(now), ours)
            if talk >= 25:
                found, asked = found + again, asked + 6
    assert found == (asked if salted else 0)


def test_owner_is_that_of_the_root_also_below_and_after_a_split() -> None:
    pool = BlockPool(CAPACITY, Hotness(CAPACITY))
    assert pool.bring([21, 22], None, 0.0)  # promoted, so of nobody
    serve(pool, [21, 22, 23], 0.0, "tenant")
    serve(pool, [1, 2, 3, 4], 0.0, "tenant")
    serve(pool, [1, 2, 5, 6], 1.0, "tenant")
    serve(pool, [7, 8], 2.0)
    owned = {block: run.owner for run in pool.tree.runs() for block in run.hashes}
    assert owned == {**dict.fromkeys((1, 2, 3, 4, 5, 6), "tenant"), **dict.fromkeys((7, 8, 21, 22)), 23: "tenant"}
