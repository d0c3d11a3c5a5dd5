"""The router's mirror: its answers for chains, holds and bits, and its bounds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from plumage.directory.mirror.mirror import SHARDS, Mirror
from plumage.directory.mirror.staged_snapshot import PIECE
from plumage.errors import ConfigurationError, StateError

RNG = random.Random(7)
# A tree of chains that share prefixes, as prompts do. 64-bit values in all shards.
ROOTS = [[RNG.getrandbits(64) for _ in range(3)] for _ in range(3)]
CHAINS = [root + [RNG.getrandbits(64) for _ in range(4)] for root in ROOTS for _ in range(3)]


def held(chain: Sequence[int], per_chunk: int = 64) -> list[tuple[int, int, int]]:
    return [(chunk, 1, per_chunk * (depth + 1)) for depth, chunk in enumerate(chain)]


def test_tokens_are_those_that_the_engines_counted() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(0, held(chain, 64))
    mirror.apply(1, held(chain[:3], 64))
    assert mirror.match(chain) == {0: (7, 448), 1: (3, 192)}
    assert mirror.match(chain[:2]) == {0: (2, 128), 1: (2, 128)}
    assert mirror.match([]) == {}
    assert mirror.match(CHAINS[8]) == {}


def test_missing_chunk_ends_a_match() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(0, held(chain))
    mirror.apply(0, [(chain[2], 0, 0)])
    assert mirror.match(chain) == {0: (2, 128)}


def test_move_to_another_tier_keeps_the_owner_and_takes_the_new_count() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(0, held(chain[:1], 64))
    mirror.apply(0, [(chain[0], 2, 70)])
    assert mirror.match(chain) == {0: (1, 70)}


def test_pending_chunks_are_estimated_from_the_known_part_of_the_chain() -> None:
    mirror, chain = Mirror(tokens_per_piece=50), CHAINS[0]
    mirror.apply(0, held(chain[:2], 80))
    mirror.hold_pending(chain, 1, 0.0, 1.0)
    assert mirror.match(chain)[1] == (7, 560)
    other = CHAINS[8]
    mirror.hold_pending(other, 1, 0.0, 1.0)
    assert mirror.match(other) == {1: (7, 350)}


def test_engine_count_of_a_prompt_replaces_the_estimate_of_pending_chunks() -> None:
    mirror, chain = Mirror(tokens_per_piece=50), CHAINS[0]
    mirror.apply(0, held(chain[:2], 80))
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    mirror.count_pending(chain, 0, 260.0)
    assert [mirror.match(chain[:depth])[0][1] for depth in range(1, 8)] == [80, 160, 180, 200, 220, 240, 260]
    mirror.apply(0, held(chain, 40))
    mirror.count_pending(chain, 0, 1000.0)
    assert mirror.match(chain) == {0: (7, 280)}, "the engine's own count of each chunk stays"
    mirror.count_pending(chain, 1, 1000.0)
    assert mirror.match(chain) == {0: (7, 280)}, "an unknown slot has nothing to correct"


def test_estimate_within_one_percent_of_the_count_stays() -> None:
    mirror, chain = Mirror(tokens_per_piece=50), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    mirror.count_pending(chain, 0, 353.0)
    assert mirror.match(chain) == {0: (7, 350)}
    mirror.count_pending(chain, 0, 357.0)
    assert mirror.match(chain) == {0: (7, 357)}


def test_count_of_another_replica_is_no_estimate() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.apply(1, held(chain[:3], 30))
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    mirror.count_pending(chain, 0, 700.0)
    assert mirror.match(chain)[1] == (3, 90)
    assert mirror.match(chain)[0] == (7, 700)


def test_estimate_for_uncounted_chunks_can_be_learned() -> None:
    mirror, chain = Mirror(), CHAINS[8]
    mirror.guess_tokens(41.0)
    mirror.hold_pending(chain, 1, 0.0, 1.0)
    assert mirror.match(chain) == {1: (7, 287)}


def test_request_that_fails_during_a_snapshot_is_not_pending_any_more() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    staged = mirror.stage_snapshot(0)
    list(staged.carry())
    mirror.drop_pending(chain, 0)
    staged.commit()
    assert (mirror.match(chain), mirror.pending) == ({}, 0)


def test_hold_renewed_during_a_snapshot_ends_in_its_time() -> None:
    mirror, chain, other = Mirror(), CHAINS[0], CHAINS[8]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    staged = mirror.stage_snapshot(0)
    list(staged.carry())
    mirror.hold_pending(chain, 0, 0.5, 1.0)
    mirror.hold_pending(other, 0, 0.5, 1.0)
    staged.commit()
    list(mirror.expire(1.0))
    assert (mirror.match(chain), mirror.match(other)) == ({0: (7, 448)}, {0: (7, 448)})
    list(mirror.expire(1.5))
    assert (mirror.match(chain), mirror.match(other)) == ({}, {})
    while mirror.sweep():
        pass
    assert len(mirror) == 0


def test_chunk_carried_dropped_and_expected_again_is_held() -> None:
    rng = random.Random(6)
    mirror = Mirror(capacity=SHARDS * 50)
    chain = [rng.getrandbits(58) for _ in range(20)]  # all in one shard
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    staged = mirror.stage_snapshot(0)
    list(staged.carry())
    mirror.apply(1, [(rng.getrandbits(58), 1, 64) for _ in range(100)])
    assert mirror.match(chain) == {}, "it was the coldest"
    mirror.hold_pending(chain, 0, 0.5, 1.0)
    staged.commit()
    assert mirror.match(chain)[0][0] == len(chain)


def much_expected() -> tuple[Mirror, list[list[int]]]:
    """Pending chunks of slot 0, beside a chain that its engine reported; more than one step carries."""
    mirror = Mirror()
    mirror.apply(0, held(CHAINS[0]))
    chains = [[RNG.getrandbits(64) for _ in range(32)] for _ in range(4 * PIECE // 32)]
    for chain in chains:
        mirror.hold_pending(chain, 0, 0.0, 60.0)
    return mirror, chains


def test_confirmed_chunks_are_taken_out_in_steps_where_much_is_pending() -> None:
    mirror, chains = much_expected()
    mirror.drop_confirmed(0)
    assert mirror.match(CHAINS[0]) == {0: (7, 448)}, "it stays until all is carried"
    upkeep = mirror.upkeep(1.0)
    for _ in range(2):
        next(upkeep)
    mirror.hold_pending(CHAINS[8], 0, 1.0, 60.0)
    mirror.drop_pending(chains[0], 0)
    mirror.drop_pending(chains[-1], 0)
    assert len(list(upkeep)) > 2
    assert mirror.match(CHAINS[0]) == {}
    assert [mirror.match(chain) for chain in (chains[0], chains[-1])] == [{}, {}]
    assert all(mirror.match(chain)[0][0] == 32 for chain in chains[1:-1])
    assert mirror.match(CHAINS[8])[0][0] == 7
    assert mirror.pending == len(mirror) == 32 * len(chains[1:-1]) + 7


def next_bits(mirror: Mirror) -> list[int]:
    return [mirror._masks.fill() for _ in range(4)]


def test_cancelled_upkeep_continues_the_next_time() -> None:
    mirror, chains = much_expected()
    mirror.drop_confirmed(0)
    next(mirror.upkeep(1.0))
    list(mirror.upkeep(1.0))
    assert mirror.match(CHAINS[0]) == {}
    assert all(mirror.match(chain)[0][0] == 32 for chain in chains)


@pytest.mark.parametrize("steps", [0, 2])
def test_replica_deleted_during_the_steps_leaves_nothing(steps: int) -> None:
    mirror, chains = much_expected()
    mirror.drop_confirmed(0)
    upkeep = mirror.upkeep(1.0)
    for _ in range(steps):
        next(upkeep)
    mirror.forget(0)
    for left in (upkeep, mirror.upkeep(1.0), mirror.upkeep(1.0)):
        list(left)
    assert [mirror.match(chain) for chain in (CHAINS[0], *chains)] == [{}] * (1 + len(chains))
    assert (len(mirror), mirror.pending) == (0, 0)
    assert next_bits(mirror) == next_bits(Mirror()), "all are free again"


def test_snapshot_of_a_deleted_replica_changes_nothing() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(CHAINS[8], 0, 0.0, 1.0)
    staged = mirror.stage_snapshot(0)
    staged.add(held(chain))
    list(staged.carry())
    mirror.forget(0)
    staged.commit()
    assert (mirror.match(chain), mirror.match(CHAINS[8])) == ({}, {})


@pytest.mark.parametrize("steps", [0, 2])
def test_failed_snapshot_restores_nothing_that_was_taken_out(steps: int) -> None:
    mirror, chains = much_expected()
    mirror.drop_confirmed(0)
    upkeep = mirror.upkeep(1.0)
    for _ in range(steps):
        next(upkeep)
    mirror.stage_snapshot(0).abandon()
    assert mirror.match(CHAINS[0]) == {}
    list(upkeep)
    assert all(mirror.match(chain)[0][0] == 32 for chain in chains)


def test_many_holds_end_in_steps_and_none_is_left() -> None:
    mirror = Mirror()
    chains = [[RNG.getrandbits(64) for _ in range(3)] for _ in range(20)]
    for chain in chains:
        mirror.hold_pending(chain, 0, 0.0, 1.0)
    expiring = mirror.expire(1.0)
    next(expiring)
    found = [bool(mirror.match(chain)) for chain in chains]
    assert found == sorted(found), "the oldest end first"
    assert 0 < sum(found) < len(chains)
    assert len(list(expiring)) < len(chains)
    assert (mirror.pending, len(mirror)) == (0, 0)


def test_upkeep_removes_all_that_has_ended() -> None:
    mirror, (stays, ends, gone) = Mirror(), (CHAINS[0], CHAINS[3], CHAINS[6])
    mirror.apply(0, held(stays))
    mirror.hold_pending(ends, 0, 0.0, 1.0)
    mirror.hold_pending(gone, 1, 0.0, 60.0)
    mirror.forget(1)
    list(mirror.upkeep(2.0))
    assert [mirror.match(chain) for chain in (stays, ends, gone)] == [{0: (7, 448)}, {}, {}]
    assert (len(mirror), mirror.pending, mirror.sweep()) == (7, 0, False)


def test_event_replaces_an_estimated_count() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    mirror.apply(0, held(chain, 70))
    list(mirror.expire(100.0))
    assert mirror.match(chain) == {0: (7, 490)}


def test_hold_after_a_match_sees_chunks_that_ended_in_between() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 1.0)
    assert mirror.match(chain)[0][0] == 7
    mirror.hold_pending(chain, 0, 5.0, 1.0)
    assert mirror.match(chain)[0][0] == 7
    mirror.apply(0, held(chain))
    mirror.match(chain)
    mirror.forget(0)
    mirror.hold_pending(chain, 0, 6.0, 1.0)
    assert mirror.pending == 7


def test_burst_renews_its_hold() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    mirror.hold_pending(chain, 0, 0.0, 2.0)
    mirror.hold_pending(chain, 0, 1.5, 2.0)
    list(mirror.expire(2.5))
    assert mirror.match(chain)[0][0] == 7
    list(mirror.expire(3.5))
    assert mirror.match(chain) == {}
    assert mirror.pending == 0


def test_bit_is_cleared_before_it_is_used_again() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    for slot in range(20):
        mirror.apply(slot, held(chain))
        mirror.forget(slot)
        for _ in range(SHARDS):
            mirror.sweep()
    mirror.apply(99, held(CHAINS[8][:1]))
    assert mirror.match(chain) == {}
    assert not mirror.sweep()
    assert len(mirror) == 1, "chunks without an owner are removed"


def test_mirror_serves_many_replicas() -> None:
    mirror, chain = Mirror(), CHAINS[0]
    for slot in range(1000):
        mirror.apply(slot, held(chain[: 1 + slot % 7]))
    found = mirror.match(chain)
    assert found == {slot: (1 + slot % 7, 64 * (1 + slot % 7)) for slot in range(1000)}


def test_mirror_stays_within_its_bound_and_drops_the_coldest() -> None:
    rng = random.Random(3)
    mirror = Mirror(capacity=SHARDS * 100)
    hot = [rng.getrandbits(64) for _ in range(20)]
    mirror.apply(0, held(hot))
    early = [rng.getrandbits(64) for _ in range(20)]
    mirror.apply(0, held(early))
    for _ in range(400):
        mirror.apply(0, held([rng.getrandbits(64) for _ in range(100)]))
        mirror.match(hot)
        mirror.move_matched()
        assert len(mirror) <= SHARDS * 100
    assert mirror.match(hot) == {0: (20, 20 * 64)}
    assert mirror.match(early) == {}
    assert mirror.evicted > 30_000


def test_no_chunk_outlives_its_parent_when_a_matched_chain_gets_cold() -> None:
    rng = random.Random(4)
    mirror = Mirror(capacity=SHARDS * 50)
    mirror.apply(0, held([rng.getrandbits(64) for _ in range(SHARDS * 40)]))
    chain = [rng.getrandbits(64) & (1 << 58) - 1 for _ in range(20)]  # all in one shard
    mirror.apply(0, held(chain))
    mirror.match(chain)
    mirror.move_matched()
    depths = []
    while mirror.match(chain):
        mirror._table._touched.clear()
        depths.append(mirror.match(chain)[0][0])
        mirror._table._touched.clear()
        mirror.apply(0, [(rng.getrandbits(64) & (1 << 58) - 1, 1, 1) for _ in range(5)])
    assert depths == sorted(depths, reverse=True)
    assert all(mirror.match([chunk]) == {} for chunk in chain)


def test_pending_owners_are_bounded() -> None:
    rng = random.Random(5)
    mirror = Mirror(capacity=6400)
    for number in range(1000):
        mirror.hold_pending([rng.getrandbits(64) for _ in range(32)], number % 4, 0.0, 1e9)
    assert mirror.pending <= 6400 // 4 + 32
    assert len(mirror) <= 6400


def test_misuse_is_an_error_with_its_reason() -> None:
    with pytest.raises(ConfigurationError, match="at least 64"):
        Mirror(capacity=3)
    staged = Mirror().stage_snapshot(0)
    staged.commit()
    with pytest.raises(StateError, match="start another"):
        staged.add([])


def test_stored_match_of_a_run_ends_with_every_kind_of_change() -> None:
    """Two owners of a chain that was matched often. Then one of them changes, in a different way each time."""
    chain = [chunk << 50 for chunk in range(1, 17)]
    records = [(chunk, 1, 64 * depth) for depth, chunk in enumerate(chain, 1)]

    def both() -> Mirror:
        mirror = Mirror()
        mirror.apply(1, records)
        mirror.hold_pending(chain, 0, 0.0, 5.0)
        assert [mirror.match(chain) for _ in range(3)] == 3 * [{0: (16, 1024), 1: (16, 1024)}]
        return mirror

    mirror = both()
    mirror.stage_snapshot(0).commit()  # the hold is carried over to another bit
    assert set(mirror.match(chain)) == {0, 1}

    mirror = both()
    mirror.hold_pending(chain, 2, 0.0, 5.0)
    assert set(mirror.match(chain)) == {0, 1, 2}
    list(mirror.expire(5.0))
    assert set(mirror.match(chain)) == {1}

    mirror = both()
    mirror.apply(1, [(chain[5], 0, 0)])
    assert mirror.match(chain) == {0: (16, 1024), 1: (5, 320)}

    mirror = both()
    mirror.apply(1, [(chain[15], 1, 1030)])
    assert mirror.match(chain)[1] == (16, 1030)

    mirror = both()
    mirror.forget(1)
    while mirror.sweep():
        pass
    mirror.apply(3, [(7, 1, 64)])  # takes the bit that was cleared
    assert set(mirror.match(chain)) == {0}
