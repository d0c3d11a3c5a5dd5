"""Sampled miss-ratio curves against exact stack distances from a slow count."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.mrc import MissRatioCurve, ReuseSampler
from plumage.mrc.sampler import _MASK, _MIX, DistanceHistogram

streams = st.lists(st.integers(0, 40), min_size=1, max_size=200)


def lru_hits(keys: Sequence[int], size: int) -> int:
    """Hits of an LRU cache of `size` keys."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for key in keys:
        hits += key in cache
        cache[key] = None
        cache.move_to_end(key)
        if len(cache) > size:
            cache.popitem(last=False)
    return hits


def curve_of(keys: Sequence[int], **bounds: int) -> MissRatioCurve:
    sampler = ReuseSampler(**bounds)
    sampler.access_all(keys)
    return sampler.curve()


def skewed(keys: int, accesses: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    names = [rng.getrandbits(64) for _ in range(keys)]
    weights = list(accumulate(1.0 / (rank + 1) for rank in range(keys)))
    return rng.choices(names, cum_weights=weights, k=accesses)


class TestExactness:
    """While every key fits the sample, nothing is estimated."""

    @given(keys=streams)
    def test_curve_is_that_of_lru_caches(self, keys: list[int]) -> None:
        curve = curve_of(keys)
        assert curve.rate == 1.0
        for size in range(45):
            assert curve.hit_ratio(size) == pytest.approx(lru_hits(keys, size) / len(keys))

    @given(keys=streams, cuts=st.lists(st.integers(0, 200), max_size=5))
    def test_grouping_of_accesses_does_not_matter(self, keys: list[int], cuts: list[int]) -> None:
        one_by_one, in_lots = ReuseSampler(), ReuseSampler()
        for key in keys:
            one_by_one.access(key)
        ends = [0, *sorted(cuts), len(keys)]
        for start, end in pairwise(ends):
            in_lots.access_all(keys[start:end])
        assert one_by_one.curve() == in_lots.curve()

    @given(prompts=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), max_size=30))
    def test_key_of_a_size_is_so_many_blocks(self, prompts: list[list[str]]) -> None:
        by_key, by_block = ReuseSampler(), ReuseSampler()
        ends = (0, 1, 2, 4, 8, 11, 27)
        for prompt in prompts:
            keys = [hash("".join(prompt[:depth])) for depth in range(1, len(prompt) + 1)]
            by_key.access_all(keys, ends)
            for depth, key in enumerate(keys):
                by_block.access_all([key + number for number in range(ends[depth + 1] - ends[depth])])
        assert by_key.curve() == by_block.curve()

    def test_distances_of_thousands_are_within_two_percent(self) -> None:
        keys = list(range(5000)) * 3
        curve = curve_of(keys, samples=8192)
        assert curve.hit_ratio(4900) == 0.0
        assert curve.hit_ratio(5100) == pytest.approx(2 / 3)

    def test_curve_without_accesses_has_no_hits(self) -> None:
        curve = ReuseSampler().curve()
        assert curve.hit_ratio(0) == curve.hit_ratio(10**6) == 0.0
        assert curve.miss_ratio(10) == 1.0


class TestSampling:
    @given(
        keys=st.lists(st.integers(0, 10**6), max_size=400),
        samples=st.integers(16, 40),
        largest=st.sampled_from([16, 100, 1 << 20]),
    )
    def test_sample_is_bounded_and_the_curve_is_monotonic(self, keys: list[int], samples: int, largest: int) -> None:
        sampler = ReuseSampler(samples=samples, largest=largest)
        for key in keys:
            sampler.access(key)
            assert len(sampler) <= samples
        curve = sampler.curve()
        ratios = [curve.hit_ratio(size) for size in range(0, 2 * largest, max(1, largest // 50))]
        assert ratios == sorted(ratios)
        assert all(0.0 <= ratio <= 1.0 for ratio in ratios)

    @given(prompts=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=40), max_size=30))
    def test_keys_that_are_hashes_are_not_hashed_again(self, prompts: list[list[int]]) -> None:
        plain, hashed = ReuseSampler(16, 1 << 20), ReuseSampler(16, 1 << 20, hashed=True)
        for prompt in prompts:
            plain.access_all(prompt)
            hashed.access_all([key * _MIX & _MASK for key in prompt])
        assert plain.curve() == hashed.curve()
        assert plain.rate == hashed.rate

    def test_prompts_of_a_long_load_count_as_their_keys_do(self) -> None:
        """At a rate at which most prompts have no sampled key."""
        rng = random.Random(3)
        grouped, single = ReuseSampler(64, 1 << 24, hashed=True), ReuseSampler(64, 1 << 24, hashed=True)
        for _ in range(4000):
            prompt = [rng.randrange(5000) * _MIX & _MASK for _ in range(4)] + [rng.getrandbits(64) for _ in range(12)]
            grouped.access_all(prompt)
            for key in prompt:
                single.access(key)
        assert grouped.rate == single.rate < 1 / 256
        assert grouped.curve() == single.curve()

    def test_lower_rate_that_drops_no_key_does_not_break_the_bound(self) -> None:
        sampler = ReuseSampler(16, 16)
        for key in (*range(8), *range(9, 16), 17, 18):
            sampler.access(key)
        assert len(sampler) <= 16

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_small_sample_gives_the_curve_of_a_large_load(self, seed: int) -> None:
        keys = skewed(30_000, 150_000, seed)
        exact, sampled = curve_of(keys, samples=1 << 20), curve_of(keys, samples=2048)
        assert sampled.rate < 0.15
        sizes = range(500, 30_000, 500)
        errors = [abs(exact.hit_ratio(size) - sampled.hit_ratio(size)) for size in sizes]
        assert sum(errors) / len(errors) < 0.015

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_small_sample_of_keys_with_sizes_gives_the_curve_of_a_large_load(self, seed: int) -> None:
        rng = random.Random(seed)
        documents = [[rng.getrandbits(64) for _ in range(60)] for _ in range(300)]
        ends = list(accumulate((1 + depth // 8 for depth in range(60)), initial=0))
        exact, sampled = ReuseSampler(samples=1 << 22, largest=1 << 22), ReuseSampler(samples=4096)
        weights = list(accumulate(1.0 / (rank + 1) for rank in range(300)))
        for document in rng.choices(documents, cum_weights=weights, k=1500):
            exact.access_all(document, ends)
            sampled.access_all(document, ends)
        whole, part = exact.curve(), sampled.curve()
        assert (whole.rate, len(sampled._times) <= 4096) == (1.0, True)
        assert part.rate < 0.2
        sizes = range(1000, 60_000, 1000)
        errors = [abs(whole.hit_ratio(size) - part.hit_ratio(size)) for size in sizes]
        assert sum(errors) / len(errors) < 0.02

    def test_endless_load_keeps_the_resolution(self) -> None:
        """The rate stops falling where the largest cache of interest is still resolved; old keys
        are dropped instead.
        """
        rng = random.Random(7)
        sampler = ReuseSampler(samples=512, largest=4096)
        loop = [rng.getrandbits(64) for _ in range(1000)]
        for _ in range(60):
            sampler.access_all([rng.getrandbits(64) for _ in range(2000)])
            sampler.access_all(loop)
        assert len(sampler) <= 512
        assert sampler.rate == pytest.approx(512 * 0.875 / 4096)
        curve = sampler.curve()
        assert curve.hit_ratio(2500) < 0.05
        assert curve.hit_ratio(3600) == pytest.approx(1 / 3, abs=0.05)

    def test_old_accesses_age(self) -> None:
        sampler = ReuseSampler()
        sampler.access_all(list(range(100)) * 10)
        before = sampler.curve()
        sampler.age(0.5)
        assert sampler.curve().hits == pytest.approx(before.hits)
        assert sampler.accesses == 500
        sampler.access_all([7] * 500)
        assert sampler.curve().hit_ratio(1) == pytest.approx(0.499, abs=0.001)

    def test_impossible_bounds_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="at least 16"):
            ReuseSampler(samples=1)
        with pytest.raises(ConfigurationError, match="at least 16"):
            ReuseSampler(largest=1)


class TestReadingACurve:
    curve = MissRatioCurve([0, 1, 99, 100, 1000], [0.0, 0.1, 0.1, 0.5, 0.6], accesses=10.0)

    def test_curve_is_linear_between_two_sizes(self) -> None:
        assert self.curve.hit_ratio(550) == pytest.approx(0.55)

    def test_curve_is_level_beyond_its_end(self) -> None:
        assert self.curve.hit_ratio(5000) == 0.6

    def test_gain_of_more_and_loss_of_less_cache(self) -> None:
        assert self.curve.gain(50, 50) == pytest.approx(0.4)
        assert self.curve.gain(1000, 1000) == 0.0
        assert self.curve.gain(100, -50) == pytest.approx(-0.4)


@given(distances=st.lists(st.integers(1, 5000), max_size=50), largest=st.integers(16, 4000))
def test_histogram_loses_no_weight_and_keeps_small_distances_apart(distances: list[int], largest: int) -> None:
    histogram = DistanceHistogram(largest)
    for distance in distances:
        histogram.add(distance, 2.0, 1.0)
    sizes, sums = histogram.cumulative(2.0 * len(distances))
    assert histogram.total == 2.0 * len(distances)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] <= largest
    for size, total in zip(sizes, sums, strict=True):
        least = sum(2.0 for distance in distances if distance <= min(size, largest) and distance <= 127)
        assert total >= least
        assert total <= sum(2.0 for distance in distances if distance <= min(largest, size * 1.04))
