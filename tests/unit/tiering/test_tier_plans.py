"""Admission to host memory, promotion from it, and the choice of a node's tier, with each erratum
of HotPrefix by name.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.blocks.events import CPU, BlockEvent, Removed, Stored
from plumage.blocks.pool import BlockPool
from plumage.errors import ConfigurationError
from plumage.eviction import make_policy
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.node_uses import NodeUses
from plumage.hotness.record import NodeRecord, Recorded
from plumage.tiering import (
    HostTier,
    Pressure,
    PromotionBudget,
    PromotionTurn,
    Tier,
    TierNode,
    decide_tier,
    plan_admission,
    plan_promotion,
)
from plumage.tiering.coldest import REBUILD, ColdestFirst
from plumage.tiering.decision import NodeFacts, PressureLevels


def node(key: int, tokens: int, hotness: float, parent: int | None = None, frequency: int = 20) -> TierNode:
    return TierNode(key, parent, tokens, frequency, hotness)


WIDE = PromotionBudget(tokens=10**6)
nodes = st.builds(
    node, st.integers(0, 10**6), st.integers(1, 400), st.integers(0, 50).map(float), st.none() | st.integers(0, 10**6)
)


def unique(found: list[TierNode]) -> list[TierNode]:
    return list({one.key: one for one in found}.values())


class TestAdmission:
    def test_rarely_used_node_is_refused_even_by_an_empty_host(self) -> None:
        assert not plan_admission(node(1, 16, 99.0, frequency=9), [], free_tokens=1000, min_frequency=10).admitted
        assert plan_admission(node(1, 16, 99.0, frequency=10), [], free_tokens=1000, min_frequency=10).admitted

    def test_full_host_admits_only_in_place_of_colder_residents(self) -> None:
        residents = [node(2, 16, 1.0), node(3, 16, 5.0)]
        assert plan_admission(node(1, 16, 2.0), residents, 0, 2).victims == (residents[0],)
        assert not plan_admission(node(1, 16, 1.0), residents, 0, 2).admitted

    def test_erratum_tokens_of_the_victims_cover_the_incoming_length(self) -> None:
        residents = [node(2, 16, 1.0), node(3, 16, 2.0), node(4, 16, 3.0)]
        plan = plan_admission(node(1, 40, 9.0), residents, 8, 2)
        assert plan.victims == tuple(residents[:2])
        assert not plan_admission(node(1, 60, 9.0), residents, 8, 2).admitted, "all of them together are too short"
        assert not plan_admission(node(1, 40, 1.5), residents, 8, 2).admitted, "the second is hotter"

    @given(nodes, st.lists(nodes, max_size=12), st.integers(0, 300))
    def test_admission_fits_and_drops_only_colder_nodes(
        self, incoming: TierNode, residents: list[TierNode], free: int
    ) -> None:
        residents = sorted(unique(residents), key=lambda resident: resident.hotness)
        plan = plan_admission(incoming, residents, free, 2)
        if plan.admitted:
            assert free + sum(victim.tokens for victim in plan.victims) >= incoming.tokens
            assert all(victim.hotness < incoming.hotness for victim in plan.victims)
            assert plan.victims == tuple(residents[: len(plan.victims)])


class TestPromotion:
    def test_example_of_the_paper(self) -> None:
        """Figure 6: P3 is too long for P1.2 alone and takes P2.1 too; P4 takes P2.2."""
        p12, p21, p22 = node(12, 20, 1.0), node(21, 20, 2.0), node(22, 20, 3.0)
        p3, p4 = node(3, 30, 9.0), node(4, 10, 8.0)
        plan = plan_promotion([p4, p3], [p22, p12, p21], WIDE)
        assert [(one.node, one.victims) for one in plan] == [(p3, (p12, p21)), (p4, ())], "ten tokens were left over"

    def test_erratum_victim_is_used_once(self) -> None:
        plan = plan_promotion([node(1, 16, 9.0), node(2, 16, 8.0)], [node(3, 16, 1.0)], WIDE)
        assert [one.node.key for one in plan] == [1]

    def test_erratum_node_is_hotter_than_every_victim(self) -> None:
        leaves = [node(3, 16, 1.0), node(4, 16, 6.0)]
        assert plan_promotion([node(1, 32, 5.0)], leaves, WIDE) == []
        assert len(plan_promotion([node(1, 32, 7.0)], leaves, WIDE)) == 1

    def test_erratum_tokens_of_the_victims_cover_the_node(self) -> None:
        assert plan_promotion([node(1, 33, 9.0)], [node(3, 16, 1.0), node(4, 16, 2.0)], WIDE) == []

    def test_root_is_left_out_when_its_parent_is_a_victim(self) -> None:
        parent, other = node(50, 16, 1.0), node(60, 16, 2.0)
        plan = plan_promotion([node(1, 16, 9.0), node(2, 16, 8.0, parent=50)], [parent, other], WIDE)
        assert [(one.node.key, one.victims) for one in plan] == [(1, (parent,))]

    def test_node_never_replaces_its_own_parent(self) -> None:
        parent, other = node(50, 16, 1.0), node(60, 16, 2.0)
        plan = plan_promotion([node(2, 16, 8.0, parent=50)], [parent, other], WIDE)
        assert [one.victims for one in plan] == [(other,)]

    def test_parent_of_a_planned_node_is_no_later_victim(self) -> None:
        parent, other = node(50, 16, 1.0), node(60, 16, 2.0)
        plan = plan_promotion([node(2, 16, 8.0, parent=50), node(3, 16, 7.0)], [parent, other], WIDE)
        assert [(one.node.key, one.victims) for one in plan] == [(2, (other,))]

    def test_budget_bounds_the_copies_and_the_reserve_stays_free(self) -> None:
        roots = [node(1, 100, 9.0), node(2, 30, 8.0)]
        leaves = [node(3, 200, 1.0)]
        assert [one.node.key for one in plan_promotion(roots, leaves, PromotionBudget(tokens=50))] == [2]
        free = PromotionBudget(tokens=200, free_tokens=100, reserve=60)
        assert [one.victims for one in plan_promotion([node(2, 40, 8.0)], leaves, free)] == [()]
        assert [one.victims for one in plan_promotion([node(2, 41, 8.0)], leaves, free)] == [(leaves[0],)]

    @given(st.lists(nodes, max_size=12), st.lists(nodes, max_size=12), st.integers(0, 900), st.integers(0, 300))
    def test_every_plan_keeps_all_rules(
        self, roots: list[TierNode], leaves: list[TierNode], tokens: int, free: int
    ) -> None:
        roots, leaves = unique(roots), unique(leaves)
        plan = plan_promotion(roots, leaves, PromotionBudget(tokens, free, reserve=50))
        victims = [victim for one in plan for victim in one.victims]
        assert len({victim.key for victim in victims}) == len(victims)
        assert sum(one.node.tokens for one in plan) <= tokens
        assert not {one.node.parent for one in plan} & {victim.key for victim in victims}
        room = max(0, free - 50)
        for one in plan:
            assert all(victim.hotness < one.node.hotness for victim in one.victims)
            room += sum(victim.tokens for victim in one.victims) - one.node.tokens
            assert room >= 0

    def test_promotion_waits_for_a_decode_only_step(self) -> None:
        turn = PromotionTurn(max_wait_steps=5)
        assert not turn.step(prefill_tokens=0), "nothing was prefilled"
        assert not turn.step(prefill_tokens=100)
        assert turn.step(prefill_tokens=0)
        assert not turn.step(prefill_tokens=0), "once after a prefill"

    def test_erratum_promotion_runs_in_a_mixed_step_if_none_only_decodes(self) -> None:
        turn = PromotionTurn(max_wait_steps=3)
        assert [turn.step(prefill_tokens=10) for _ in range(7)] == [False, False, True, False, False, True, False]
        with pytest.raises(ConfigurationError):
            PromotionTurn(max_wait_steps=0)


class TestTierDecision:
    @pytest.mark.parametrize(
        ("recent", "frequent", "leaf", "pressure", "tier"),
        [
            (True, True, True, Pressure.CRITICAL, Tier.GPU),
            (True, True, True, Pressure.LOW, Tier.GPU),
            (True, False, False, Pressure.CRITICAL, Tier.GPU),
            (True, False, True, Pressure.LOW, Tier.GPU),
            (True, False, True, Pressure.HIGH, Tier.HOST),
            (True, False, True, Pressure.CRITICAL, Tier.NONE),
            (False, True, True, Pressure.LOW, Tier.HOST),
            (False, False, True, Pressure.LOW, Tier.NONE),
            (False, False, False, Pressure.CRITICAL, Tier.GPU),
        ],
    )
    def test_table_of_the_article(
        self, recent: bool, frequent: bool, leaf: bool, pressure: Pressure, tier: Tier
    ) -> None:
        assert decide_tier(NodeFacts(recent, frequent, leaf), pressure) is tier

    def test_full_host_passes_nodes_on_to_disk(self) -> None:
        stale = NodeFacts(recent=False, frequent=True, leaf=True)
        assert decide_tier(stale, Pressure.HIGH, host_full=True, disk=True) is Tier.DISK
        assert decide_tier(stale, Pressure.HIGH, host_full=True) is Tier.NONE

    def test_pressure_has_two_thresholds(self) -> None:
        levels = PressureLevels()
        assert [levels.of(usage) for usage in (0.5, 0.8, 0.95)] == [Pressure.LOW, Pressure.HIGH, Pressure.CRITICAL]
        with pytest.raises(ConfigurationError):
            PressureLevels(high=0.9, critical=0.5)


class Engine:
    """A pool with a host tier, wired as in an engine. Copies take no time here."""

    def __init__(self, blocks: int, host_blocks: int, min_frequency: int = 2) -> None:
        self.events: list[BlockEvent] = []
        self.record = NodeRecord(CuckooFilter(512, random.Random(1), fingerprint_bits=32))
        self.host = HostTier(
            host_blocks, self.record, block_tokens=16, min_frequency=min_frequency, sink=self.events.append
        )
        policy = Recorded(make_policy("Lru", capacity=blocks, rng=random.Random(1)), self.record)
        self.pool = BlockPool(blocks, policy, self.events.append, on_evict=self.host.offer)

    def serve(self, prompt: list[int]) -> tuple[int, int]:
        """Blocks found in the GPU, and in the host after them."""
        known = self.pool.pin(prompt, 0.0)
        below = self.host.match(prompt, known)
        assert self.pool.allocate(len(prompt) - known, 0.0)
        self.host.load(prompt[known : known + below])
        self.pool.commit(prompt[known:], prompt[known - 1] if known else None, 0.0)
        self.pool.release(prompt, 0, 0.0)
        return known, below


class TestHostTier:
    def test_node_is_copied_at_its_second_use(self) -> None:
        engine = Engine(blocks=4, host_blocks=8)
        engine.serve([1, 2, 3])
        engine.serve([7, 8, 9])
        assert engine.host.used == 0
        assert engine.host.refused > 0
        engine.serve([1, 2, 3])
        engine.serve([7, 8, 9])
        assert engine.host.used > 0
        gpu, host = engine.serve([1, 2, 3])
        assert gpu + host == 3

    def test_tier_stays_within_its_capacity_and_reports_dropped_nodes(self) -> None:
        engine = Engine(blocks=6, host_blocks=7, min_frequency=1)
        rng = random.Random(3)
        held: dict[int, int] = {}
        for _ in range(300):
            group = rng.randrange(6)
            engine.serve([10 * group + i for i in range(rng.randint(1, 6))])
            assert engine.host.used <= 7
        for event in engine.events:
            if isinstance(event, Stored) and event.medium == CPU:
                held |= dict.fromkeys(event.hashes, 1)
            elif isinstance(event, Removed) and event.medium == CPU:
                for block in event.hashes:
                    del held[block]
        assert len(held) == engine.host.used
        assert all(block in engine.host for block in held)

    def test_erratum_promotion_takes_roots_of_the_host_tier(self) -> None:
        engine = Engine(blocks=8, host_blocks=16, min_frequency=1)
        engine.serve([1, 2, 3, 4])
        engine.serve([1, 2, 8])
        assert engine.pool.allocate(8, 0.0)
        engine.pool.release([], 8, 0.0)
        assert engine.pool.cached == 0
        for key in (4, 8, 2):
            engine.record.table.put(key, NodeUses(50, 255))
        budget = PromotionBudget(tokens=10**4, free_tokens=8 * 16)
        promoted = engine.host.plan(engine.pool.tree, budget)
        assert promoted
        for one in promoted:
            assert one.node.parent is None, "its parent is in the host tier too, and must be promoted first"
            assert engine.pool.bring(engine.host.blocks_of(one.node), one.node.parent, 1.0)
        children = engine.host.plan(engine.pool.tree, budget)
        assert children
        assert all(one.node.parent in engine.pool.tree for one in children)

    def test_entry_has_no_gap_where_its_middle_is_here_already(self) -> None:
        engine = Engine(blocks=8, host_blocks=16, min_frequency=1)
        engine.serve([1, 2, 3, 4, 5])
        run = next(engine.pool.tree.runs())
        assert engine.host.offer(run, [3]) == 1
        assert engine.host.offer(run, [1, 2, 3, 4, 5]) == 4
        stored = [event.hashes for event in engine.events if isinstance(event, Stored) and event.medium == CPU]
        assert stored == [(3,), (1, 2), (4, 5)], "a promotion copies an entry as a chain"
        assert engine.host.match([1, 2, 3, 4, 5], 0) == 5

    def test_clear_and_wrong_settings(self) -> None:
        engine = Engine(blocks=4, host_blocks=8, min_frequency=1)
        engine.serve([1, 2, 3])
        engine.serve([7, 8, 9])
        engine.host.clear()
        assert engine.host.used == 0
        assert engine.host.match([1, 2, 3], 0) == 0
        with pytest.raises(ConfigurationError, match="host tier"):
            HostTier(0, engine.record)


class TestColdestFirst:
    @given(st.lists(st.tuples(st.sampled_from("adhr"), st.integers(0, 15), st.integers(0, 30)), max_size=80))
    def test_order_is_right_while_hotness_only_rises(self, steps: list[tuple[str, int, int]]) -> None:
        values: dict[int, int] = {}
        residents: ColdestFirst[int] = ColdestFirst(lambda key: float(values[key]))
        live: set[int] = set()
        for what, key, amount in steps:
            if what == "a" and key not in live:
                values[key] = amount
                residents.add(key)
                live.add(key)
            elif what == "d" and key in live:
                residents.discard(key)
                live.discard(key)
            elif what == "h" and key in live:
                values[key] += amount
            elif what == "r":
                read: list[int] = []
                residents.ask(lambda coldest, read=read, amount=amount: read.extend(islice(coldest, amount)))
                assert [values[one] for one in read] == sorted(values[one] for one in live)[:amount]
            assert len(residents) == len(live)

    def test_falling_hotness_is_noticed_after_a_while(self) -> None:
        values = {1: 5.0, 2: 6.0}
        residents: ColdestFirst[int] = ColdestFirst(lambda key: values[key])
        residents.add(1)
        residents.add(2)
        values[2] = 1.0
        read: list[int] = []
        for _ in range(REBUILD):
            residents.ask(lambda coldest: read.append(next(coldest)))
        assert (read[0], read[-1]) == (1, 2)
