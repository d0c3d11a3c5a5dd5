"""Whatever happens in mid-transfer, no block and no slot is lost, and no request reads what is not its own."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.offload_tier import Tier, chain


class Storm(RuleBasedStateMachine):
    """Requests of few prefixes come and go over a small device; copies take their time, as do a disk's threads; caches
    are reset."""

    model: Path

    @initialize(
        seed=st.integers(0, 999),
        eviction=st.sampled_from([None, "Hotness", "Rlt"]),
        admission=st.sampled_from(["Hotness", "Frequency", "All"]),
        promotion=st.sampled_from(["Hotness", "Recency"]),
        disk=st.sampled_from([0, 9, 60]),
    )
    def start(self, seed: int, eviction: str | None, admission: str, promotion: str, disk: int) -> None:
        self.folder = TemporaryDirectory()
        self.tier = Tier(
            self.model, blocks=24, chunks=12, seed=seed, eviction=eviction, admission=admission, promotion=promotion,
            disk=(Path(self.folder.name), disk) if disk else None,
            promotion_tokens=256, arguments={"max_num_seqs": 4, "max_num_batched_tokens": 192},
        )  # fmt: skip
        self.number = 0

    @rule(prefix=st.integers(0, 3), shared=st.integers(0, 6), own=st.integers(1, 90), answer=st.integers(1, 40))
    def arrive(self, prefix: int, shared: int, own: int, answer: int) -> None:
        self.number += 1
        tokens = chain(prefix, shared) + chain(1000 + self.number, 3)[:own]
        self.tier.engine.add(f"r{self.number}", tokens, answer)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.tier.engine.step()
            self.tier.check()

    @precondition(lambda self: self.tier.engine.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.tier.engine.abort(data.draw(st.sampled_from(sorted(self.tier.engine.scheduler.requests))))

    @rule(host=st.booleans(), running=st.booleans())
    def reset(self, host: bool, running: bool) -> None:
        waits_for_a_load = any(
            request.status.name == "WAITING_FOR_REMOTE_KVS" for request in self.tier.engine.scheduler.requests.values()
        )
        # vLLM itself fails when who runs is preempted by a reset during another's load, or finds itself in host memory.
        self.tier.engine.reset(running=running and host and not waits_for_a_load, host=host)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "tier"):
            self.tier.check()

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.engine.finish(200_000)
            if self.tier.disk is not None:
                self.tier.settle()
                assert self.tier.disk.guard.on, self.tier.disk.guard.reason
            self.tier.check_idle()
            assert self.tier.engine.reset()
            assert not len(self.tier.manager.residents)
            self.tier.close()
            self.folder.cleanup()


@pytest.mark.timeout(400)
def test_a_storm(tiny_model: Path) -> None:
    Storm.model = tiny_model
    storms = settings(max_examples=20, stateful_step_count=40, phases=(Phase.explicit, Phase.generate))
    run_state_machine_as_test(Storm, settings=storms)  # type: ignore[no-untyped-call]


@pytest.mark.timeout(400)
def test_a_long_storm_goes_by_the_disk(tiny_model: Path) -> None:
    """What hypothesis draws is short, and may never fill host memory."""
    Storm.model, rng = tiny_model, random.Random(5)
    storm = Storm()
    storm.start(seed=5, eviction="Hotness", admission="All", promotion="Hotness", disk=60)
    try:
        for _ in range(150):
            storm.arrive(rng.randrange(4), rng.randrange(7), rng.randrange(1, 91), rng.randrange(1, 41))
            storm.step(rng.randrange(1, 13))
            if rng.random() < 0.1 and storm.tier.engine.scheduler.requests:
                storm.tier.engine.abort(rng.choice(sorted(storm.tier.engine.scheduler.requests)))
            if rng.random() < 0.05:
                storm.reset(host=rng.random() < 0.3, running=rng.random() < 0.5)
        counters = storm.tier.counters
        storm.tier.settle()
    finally:
        storm.teardown()
    assert counters.get("disk_writes") > 0
    assert counters.get("disk_reads") > 0
