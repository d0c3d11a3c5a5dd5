"""Whatever happens in mid-transfer, no block and no slot is lost, and no request reads what is not its own."""

from __future__ import annotations

from pathlib import Path

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
    """Requests of few prefixes come and go over a small device; copies take their time; caches are reset."""

    model: Path

    @initialize(
        seed=st.integers(0, 999),
        eviction=st.sampled_from([None, "Hotness", "Rlt"]),
        admission=st.sampled_from(["Hotness", "Frequency", "All"]),
        promotion=st.sampled_from(["Hotness", "Recency"]),
    )
    def start(self, seed: int, eviction: str | None, admission: str, promotion: str) -> None:
        self.tier = Tier(
            self.model, blocks=24, chunks=12, seed=seed, eviction=eviction, admission=admission, promotion=promotion,
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
            self.tier.engine.finish(20_000)
            self.tier.check_idle()
            assert self.tier.engine.reset()
            assert not len(self.tier.manager.residents)


@pytest.mark.timeout(400)
def test_a_storm(tiny_model: Path) -> None:
    Storm.model = tiny_model
    storms = settings(max_examples=20, stateful_step_count=40, phases=(Phase.explicit, Phase.generate))
    run_state_machine_as_test(Storm, settings=storms)  # type: ignore[no-untyped-call]
