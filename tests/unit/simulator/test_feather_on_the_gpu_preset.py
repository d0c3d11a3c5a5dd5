"""FEATHER's Experiment 3 on the whole engine: the parts of Takeaway 3 that depend on the block pool, not on the device.

Throughput falls from one prefix group to two, stays, and falls again when memory no longer holds all prefixes.
"""

from __future__ import annotations

import random
from itertools import count

from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

PREFIX, SUFFIX, DECODE, REQUESTS = 10_000, 20, 50, 500
CACHE = 245_760 // 16  # the KV tokens that 48 GB leave beside the weights of an 8B model


def serve(groups: int) -> tuple[float, float]:
    """Decoded tokens a second and mean running batch. Each prefix was prefilled before, as in the paper's warm-up."""
    settings = EngineSettings(
        block_size=16, cache_blocks=CACHE, max_num_seqs=REQUESTS, max_batched_tokens=32_768, queue="Fcfs",
        eviction="Lru", batch_limit="Static",
    )  # fmt: skip
    engine = SimEngine(settings, rng=random.Random(0))
    fresh = count()
    prefixes = [[next(fresh) for _ in range(PREFIX // 16)] for _ in range(groups)]
    for group, prefix in enumerate(prefixes):
        engine.submit(SimRequest(("warm", group), PREFIX, prefix, 1, 0.0), 0.0)
    now = run(engine, 0.0)[0]
    order = [number % groups for number in range(REQUESTS)]
    random.Random(1).shuffle(order)
    for number, group in enumerate(order):
        hashes = [*prefixes[group], next(fresh)]
        engine.submit(SimRequest(number, PREFIX + SUFFIX, hashes, DECODE, now), now)
    seconds, tokens, steps = run(engine, now)
    return tokens / (seconds - now), tokens / steps


def run(engine: SimEngine, now: float) -> tuple[float, int, int]:
    tokens = steps = 0
    while (report := engine.step(now)) is not None:
        now += report.seconds
        tokens += report.decode_tokens
        steps += 1
    return now, tokens, steps


def test_experiment_3_one_two_twenty_and_a_hundred_groups() -> None:
    one, two, twenty, hundred = (serve(groups) for groups in (1, 2, 20, 100))
    assert one[0] > 1.6 * two[0]
    assert twenty[0] > 0.9 * two[0]
    assert hundred[0] < 0.7 * twenty[0]
    assert hundred[1] < 0.7 * twenty[1]
