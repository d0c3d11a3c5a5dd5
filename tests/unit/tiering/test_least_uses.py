"""How many uses a prefix needs for a copy to host memory: fixed, or as many as pay."""

from __future__ import annotations

import random

import pytest

from plumage.blocks.pool import BlockPool
from plumage.errors import ConfigurationError
from plumage.eviction import make_policy
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.record import NodeRecord, Recorded
from plumage.tiering import HostTier, LeastUses

CHAINS = range(1000, 1160)


def test_fixed_number_ignores_results() -> None:
    least = LeastUses(3)
    least.count_outcomes(wasted=10_000)
    assert {least.of(chain) for chain in CHAINS} == {3}
    assert not least.adapts


def test_one_use_suffices_while_enough_copies_come_back() -> None:
    least = LeastUses(least=0.05, window=256)
    assert {least.of(chain) for chain in CHAINS} == {1}
    least.count_outcomes(loaded=13, wasted=243)
    assert least.usual == 1


def test_second_use_is_needed_where_copies_do_not_come_back_but_some_chains_are_still_tried() -> None:
    least = LeastUses(least=0.05, window=256)
    least.count_outcomes(loaded=12, wasted=243)
    assert least.usual == 1, "a window is not full"
    least.count_outcomes(wasted=1)
    assert least.usual == 2
    tried = sum(least.of(chain) == 1 for chain in CHAINS)
    assert 0 < tried < len(CHAINS) // 8
    least.count_outcomes(loaded=256)
    assert {least.of(chain) for chain in CHAINS} == {1}


@pytest.mark.parametrize("bad", [{"fixed": -1}, {"least": 1.5}, {"window": 0}])
def test_wrong_settings_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="admission"):
        LeastUses(**bad)


def play(prompts: list[list[int]]) -> HostTier:
    """A pool of eight blocks above a host memory of 32."""
    record = NodeRecord(CuckooFilter(4096, random.Random(1), fingerprint_bits=32, aging_interval=None, turnover=32))
    host = HostTier(32, record)
    pool = BlockPool(8, Recorded(make_policy("Lru", capacity=8, rng=random.Random(1)), record), on_evict=host.offer)
    for prompt in prompts:
        known = pool.pin(prompt, 0.0)
        held = prompt[known : known + host.match(prompt, known)]
        assert pool.allocate(len(prompt) - known, 0.0)
        host.came_back(held)
        host.load(held)
        pool.commit(prompt[known:], prompt[known - 1] if known else None, 0.0)
        pool.release(prompt, 0, 0.0)
    return host


def test_prompts_that_nobody_repeats_are_soon_not_copied() -> None:
    fresh = [[4 * number + part for part in range(1, 5)] for number in range(600)]
    host = play(fresh)
    assert host.least_uses.usual == 2
    assert host.stored < 4 * len(fresh) // 2


def test_prompts_that_return_after_their_eviction_are_copied_at_once() -> None:
    turns = [[100 * group + part for part in range(1, 5)] for group in range(6)]
    host = play(turns * 100)
    assert host.least_uses.usual == 1
    assert host.loaded > 4 * 400
