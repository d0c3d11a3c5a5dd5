"""What `vllm-pressure` reports from its rates."""

from __future__ import annotations

import random

from plumage_bench.benches.vllm_pressure import LOADS, OVERSIZED, Load, Rates, closing, over

SHORT, LONG = (next(load for load in LOADS if load.context == length and not load.gated) for length in (2048, 32_768))


def some(best: float, oversized: float, pairs: int = 5) -> list[Rates]:
    """Loads of different weight. The adaptive limit has `best` times the rate of the best static batch, within a
    percent.
    """
    rng, made = random.Random(1), []
    for _ in range(pairs):
        level = rng.uniform(100.0, 1000.0)
        adaptive = level * best * rng.lognormvariate(0.0, 0.01)
        made.append(Rates({6: level, 9: 0.8 * level, OVERSIZED: adaptive / oversized}, adaptive))
    return made


def test_worst_load_counts() -> None:
    keys = closing({SHORT: some(1.0, 1.0), LONG: some(0.94, 1.5)}, 1.0)
    assert 0.92 < keys["min_over_best_static_low"] < keys["min_over_best_static"] < 0.96
    assert keys["min_over_best_static"] < keys["over_best_static"] < 1.0
    assert keys["pairs"] == 10


def test_only_the_longest_contexts_are_compared_with_an_oversized_batch() -> None:
    keys = closing({SHORT: some(1.0, 3.0), LONG: some(1.0, 1.5)}, 1.0)
    assert 1.4 < keys["over_oversized_low"] <= keys["over_oversized"] <= keys["over_oversized_high"] < 1.6
    assert "over_oversized_gated" not in keys


def test_best_static_batch_is_chosen_per_load() -> None:
    changing = [Rates({6: 100.0, 9: 50.0, OVERSIZED: 10.0}, 80.0), Rates({6: 50.0, 9: 100.0, OVERSIZED: 10.0}, 80.0)]
    assert round(over({LONG: changing}, "best").ratio, 6) == 0.8


def test_later_seeds_try_near_best_batches_and_the_oversized_batch() -> None:
    first = Rates({3: 50.0, 6: 100.0, 9: 96.0, 12: 89.0, OVERSIZED: 10.0}, 90.0)
    assert first.worth_again(SHORT) == [6, 9]
    assert first.worth_again(LONG) == [6, 9, OVERSIZED]


def test_seed_repeats_a_load_and_another_draws_another() -> None:
    load = Load(2048, 20, gated=True)
    assert load.asks(1) == load.asks(1)
    assert load.asks(1) != load.asks(2)
    assert all(len(ask.tokens) + ask.answer <= load.context for ask in load.asks(1))
