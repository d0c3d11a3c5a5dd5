"""Random events during transfers: no block and no slot is lost, and no request reads a wrong block."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from support.offload_tier import SENT, Tier, chain


class Storm(RuleBasedStateMachine):
    """Requests with few prefixes arrive and end on a small device, some with `kv_transfer_params`. Copies and the
    disk's threads take time, and caches are reset."""

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
        self.preempted_in_mid_promotion = 0
        self._count_preemptions()

    def _count_preemptions(self) -> None:
        scheduler, own = self.tier.engine.scheduler, self.tier.engine.scheduler._preempt_request

        def preempt(*given: Any, **named: Any) -> Any:
            self.preempted_in_mid_promotion += self.tier.promoter.pending
            return own(*given, **named)

        scheduler._preempt_request = preempt

    @rule(
        prefix=st.integers(0, 3),
        shared=st.integers(0, 6),
        own=st.integers(1, 90),
        answer=st.integers(1, 40),
        sent=st.one_of(st.none(), st.sampled_from(SENT)),
    )
    def arrive(self, prefix: int, shared: int, own: int, answer: int, sent: object = None) -> None:
        self.number += 1
        tokens = chain(prefix, shared) + chain(1000 + self.number, 3)[:own]
        self.tier.engine.add(f"r{self.number}", tokens, answer, sent=sent)

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
        # vLLM itself fails if a reset preempts a running request while another one loads, or if the preempted request
        # finds its own blocks in host memory.
        self.tier.engine.reset(running=running and host and not waits_for_a_load, host=host)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "tier"):
            self.tier.check()

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.engine.finish(200_000)
            if self.tier.disk is not None:
                self.tier.finish_transfers()
                assert self.tier.disk.guard.on, self.tier.disk.guard.reason
            self.tier.check_idle()
            assert self.tier.engine.reset()
            assert not len(self.tier.manager.residents)
            self.tier.close()
            self.folder.cleanup()


@pytest.mark.timeout(400)
def test_short_random_transfers_lose_nothing(tiny_model: Path) -> None:
    Storm.model = tiny_model
    storms = settings(max_examples=20, stateful_step_count=40, phases=(Phase.explicit, Phase.generate))
    run_state_machine_as_test(Storm, settings=storms)  # type: ignore[no-untyped-call]


def rage(
    storm: Storm,
    rng: random.Random,
    rounds: int,
    *,
    steps: int,
    answers: tuple[int, int],
    sent: Sequence[object] = (None,),
) -> None:
    """hypothesis draws short storms. steps: most steps between two arrivals. sent: a choice for each client."""
    for _ in range(rounds):
        own, answer = rng.randrange(1, 91), rng.randint(*answers)
        storm.arrive(rng.randrange(4), rng.randrange(7), own, answer, rng.choice(sent))
        storm.step(rng.randint(1, steps))
        if rng.random() < 0.1 and storm.tier.engine.scheduler.requests:
            storm.tier.engine.abort(rng.choice(sorted(storm.tier.engine.scheduler.requests)))
        if rng.random() < 0.05:
            storm.reset(host=rng.random() < 0.3, running=rng.random() < 0.5)


@pytest.mark.timeout(400)
def test_long_random_transfers_use_disk(tiny_model: Path) -> None:
    """A short one may never fill host memory."""
    Storm.model, rng = tiny_model, random.Random(5)
    storm = Storm()
    storm.start(seed=5, eviction="Hotness", admission="All", promotion="Hotness", disk=60)
    try:
        rage(storm, rng, 150, steps=12, answers=(1, 40))
        counters = storm.tier.counters
        storm.tier.finish_transfers()
    finally:
        storm.teardown()
    assert counters.get("disk_writes") > 0
    assert counters.get("disk_reads") > 0
    assert counters.get("promotions") > 0


@pytest.mark.timeout(400)
@pytest.mark.parametrize("disk", [0, 60])
def test_long_random_transfers_with_client_parameters(tiny_model: Path, disk: int) -> None:
    """Half of them send parameters."""
    Storm.model, rng = tiny_model, random.Random(7)
    storm = Storm()
    storm.start(seed=7, eviction="Hotness", admission="All", promotion="Hotness", disk=disk)
    try:
        rage(storm, rng, 200, steps=12, answers=(1, 40), sent=(*[None] * len(SENT), *SENT))
        counters = storm.tier.counters
        if disk:
            storm.tier.finish_transfers()
    finally:
        storm.teardown()
    assert counters.get("promotions_used") > 0
    assert (counters.get("disk_reads") > 0) == bool(disk)


@pytest.mark.timeout(400)
def test_long_random_transfers_preempt_and_reset_during_promotion(tiny_model: Path) -> None:
    """Answers need more than the device, and promotions take long. Storms repeat until one had all of these events; the
    first or the second does."""
    Storm.model, seen = tiny_model, Counter[str]()
    for seed in range(6, 16):
        storm = Storm()
        storm.start(seed=seed, eviction="Hotness", admission="All", promotion="Hotness", disk=0)
        storm.tier.engine.promotion_steps = 12
        try:
            rage(storm, random.Random(seed), 100, steps=24, answers=(20, 120))
        finally:
            storm.teardown()
        seen["preempted in mid-promotion"] += storm.preempted_in_mid_promotion
        for name in ("promotions", "promotions_ahead", "promotions_used", "promotions_abandoned"):
            seen[name] += storm.tier.counters.get(name)
        if all(seen.values()):
            break
    assert all(seen.values()), seen
