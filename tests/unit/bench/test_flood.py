"""The bench `flood`: its loads are equal but for the flood, and its figures are those of the worst cell."""

from __future__ import annotations

import random

from plumage.blocks.pool import BlockPool
from plumage_bench.baselines.eviction import make_policy
from plumage_bench.benches.flood import CELLS, CONTENDERS, FLOOD, _flood, _neighbours, _report
from plumage_bench.pairs import paired_ratio


def test_tenants_share_no_block_and_salts_change_no_prompt() -> None:
    salted, rate = _neighbours(CELLS[0], 1, salted=True)
    plain, _ = _neighbours(CELLS[0], 1, salted=False)
    owners: dict[int, str | None] = {}
    for talk, same in zip(salted, plain, strict=True):
        for prompt, other in zip(talk, same, strict=True):
            assert (prompt.blocks, prompt.tokens, other.owner) == (other.blocks, other.tokens, None)
            assert owners.setdefault(prompt.blocks[0], prompt.owner) == prompt.owner
    assert len(set(owners.values())) == len(owners) == 8
    assert rate > 0


def test_flood_repeats_no_block() -> None:
    prompts = [one.prompt for one in _flood(2.0, 1, salted=True).initial()]
    blocks = [block for prompt in prompts for block in prompt.blocks]
    assert len(set(blocks)) == len(blocks) > 100_000
    assert {prompt.owner for prompt in prompts} == {FLOOD}
    assert list(_flood(0.0, 1, salted=True).initial()) == []


def test_loss_is_that_of_the_worst_cell() -> None:
    labels, cells = [one.label for one in CONTENDERS[:3]], [CELLS[0].name, CELLS[3].name]
    kept = {
        (label, cell): paired_ratio([0.4 * share] * 5, [0.4] * 5)
        for label, shares in zip(labels, ((0.98, 0.9), (0.7, 0.6), (0.99, 0.95)), strict=True)
        for cell, share in zip(cells, shares, strict=True)
    }
    keys = _report(kept, dict.fromkeys(kept, 0.4), labels, cells).keys
    assert round(float(keys["neighbour_loss"]), 6) == 0.1
    assert round(float(keys["loss_roomy_as_much"]), 6) == 0.02
    assert round(float(keys["neighbour_loss_no_salts"]), 6) == 0.4
    assert round(float(keys["neighbour_loss_best_eviction"]), 6) == 0.05


def test_known_flood_is_evicted_before_blocks_used_longer_ago() -> None:
    policy = make_policy("FloodFirst", capacity=16, rng=random.Random(0))
    pool = BlockPool(16, policy)
    for now, (owner, first) in enumerate([("tenant", 100), (FLOOD, 200)]):
        blocks = list(range(first, first + 4))
        pool.allocate(4, now)
        pool.commit(blocks, None, now, owner)
        pool.release(blocks, 0, now)
    pool.allocate(12, 2)
    assert pool.match(range(100, 104)) == 4
    assert pool.match(range(200, 204)) == 0
