"""The limit of running requests falls where memory is short and rises where memory is free."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.batching.limit import BatchLimit
from plumage.errors import ConfigurationError
from plumage_bench.ours import Ours
from plumage_engine.simulator.engine.device import PRESETS
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine


def test_preemption_lowers_the_limit_below_the_batch() -> None:
    limit = BatchLimit(256)
    limit.observe(running=97, preempted=3, kv_usage=1.0, ended=0)
    assert limit.limit == 90
    limit.observe(running=120, preempted=5, kv_usage=1.0, ended=0)
    assert limit.limit == 90, "a batch from before the cut raises nothing"
    limit.observe(running=0, preempted=1, kv_usage=1.0, ended=0)
    assert limit.limit == 1


def raises(limit: BatchLimit, ended: int) -> int:
    """Full steps without preemption, each of which ends so many requests, until the limit rises."""
    before = limit.limit
    for steps in range(1, 100):
        limit.observe(limit.limit, 0, 0.5, ended)
        if limit.limit > before:
            return steps
    return 0


def test_limit_rises_with_a_full_batch_free_memory_and_ended_requests() -> None:
    limit = BatchLimit(12, cut=0.5)
    limit.observe(10, 2, 1.0, 0)
    seen = []
    for running, usage, ended in ((6, 0.95, 1), (6, 0.94, 1), (6, 0.5, 5), (7, 0.5, 0), (7, 0.5, 1)):
        limit.observe(running, 0, usage, ended)
        seen.append(limit.limit)
    assert seen == [6, 7, 7, 8, 8]
    for _ in range(20):
        limit.observe(12, 0, 0.1, 1)
    assert limit.limit == 12
    limit.observe(8, 4, 1.0, 0)
    assert raises(limit, ended=0) == 0


def test_preemption_lengthens_the_wait_and_a_good_try_shortens_it() -> None:
    limit, waited = BatchLimit(40), []
    for _ in range(6):
        limit.observe(20, 1, 1.0, 0)
        waited.append(raises(limit, ended=1))
    assert waited == [2, 2, 2, 2, 2, 2], "a successful try halves the wait"
    for _ in range(6):
        limit.observe(limit.limit, 1, 1.0, 0)
    assert [raises(limit, ended=1) for _ in range(6)] == [16, 8, 4, 2, 1, 1]


@given(
    st.integers(1, 50), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.floats(0, 1), st.integers(0, 9)))
)
def test_limit_stays_between_one_and_the_maximum(most: int, steps: list[tuple[int, int, float, int]]) -> None:
    limit = BatchLimit(most)
    for step in steps:
        before = limit.limit
        limit.observe(*step)
        assert 1 <= limit.limit <= min(most, before + 1)
        assert limit.limit <= before or not step[1]


@pytest.mark.parametrize("options", [{"most": 0}, {"most": 9, "cut": 1.5}, {"most": 9, "high": -1.0}])
def test_settings_out_of_bounds_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        BatchLimit(**options)  # type: ignore[arg-type]


def serve(batch_limit: str, device: str, *, cache_blocks: int, prompt: int, output: int) -> tuple[float, int]:
    """Output tokens a second and preemptions, of 250 requests that arrive faster than they are served."""
    rng = random.Random(5)
    settings = EngineSettings(
        block_size=16,
        cache_blocks=cache_blocks,
        max_num_seqs=256,
        batch_limit=batch_limit,
        device=PRESETS[device],
        queue="Fcfs",
        eviction="Lru",
    )
    engine, now, arrival, left = SimEngine(settings, rng=random.Random(1)), 0.0, 0.0, []
    for number in range(250):
        arrival += rng.expovariate(50.0)
        tokens = rng.randint(output // 2, output * 3 // 2)
        hashes = [(number + 1 << 40) + block for block in range((prompt + tokens) // 16)]
        full = prompt // 16
        left.append(SimRequest(number, prompt, hashes[:full], tokens, arrival, output_hashes=hashes[full:]))
    total = sum(request.output_tokens for request in left)
    left.reverse()
    while left or len(engine):
        while left and left[-1].arrival <= now:
            engine.submit(left.pop(), now)
        report = engine.step(now)
        now = left[-1].arrival if report is None else now + report.seconds
        engine.end_step(now)
    assert engine.counters.generated_tokens == total
    return total / now, engine.counters.preempted


@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize(("prompt", "output", "blocks", "gain"), [(64, 600, 2_000, 1.03), (512, 200, 3_000, 1.02)])
def test_limit_saves_recomputation_where_answers_outgrow_memory(
    device: str, prompt: int, output: int, blocks: int, gain: float
) -> None:
    """On a modelled device: it shows that the limit works, not its gain on a real device."""
    static, thrashed = serve("Static", device, cache_blocks=blocks, prompt=prompt, output=output)
    adaptive, preempted = serve("Adaptive", device, cache_blocks=blocks, prompt=prompt, output=output)
    assert preempted < thrashed / 2
    assert adaptive > gain * static


def test_limit_changes_nothing_where_memory_is_ample() -> None:
    room = {"cache_blocks": 30_000, "prompt": 256, "output": 100}
    assert serve("Adaptive", "gpu", **room) == serve("Static", "gpu", **room)


def test_unknown_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="batch_limit must be Static or Adaptive, got 'Elastic'"):
        replace(Ours().engine(), batch_limit="Elastic")
