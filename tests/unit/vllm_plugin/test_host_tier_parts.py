"""The host tier's parts that need no vLLM: uses of chunks, residents of host memory, and the available memory."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.priority_formula import parse_formula
from plumage_engine.vllm.offload.host_tier.chunk_hotness import ChunkHotness, Prior
from plumage_engine.vllm.offload.host_tier.memory_check import check_host_memory, machine_memory
from plumage_engine.vllm.offload.host_tier.residents import Residents, chunk_key

TOKENS = 16


@dataclass(slots=True)
class Chunk:
    """As vLLM's ChunkStatus."""

    ref_cnt: int = 0

    @property
    def is_ready(self) -> bool:
        return self.ref_cnt >= 0


class PoolPrior:
    """Pool-wide hotness that was handed over."""

    def __init__(self, **hotness: float) -> None:
        self.hotness = {chunk_key(key_of(name)): value for name, value in hotness.items()}

    def prior(self, key: int) -> float | None:
        return self.hotness.get(key)


class Broken:
    def prior(self, key: int) -> float | None:
        raise RuntimeError("the table is torn")


def key_of(name: str, group: int = 0) -> bytes:
    return name.encode().rjust(32, b"\1") + group.to_bytes(4, "big")


def new_hotness(prior: Prior | None = None, failed: list[Exception] | None = None) -> ChunkHotness:
    formula = parse_formula("frequency * clock")
    return ChunkHotness(
        CuckooFilter(4096, random.Random(0), fingerprint_bits=16),
        tokens=TOKENS,
        admission=formula,
        promotion=formula,
        prior=prior,
        failed=(lambda error: None) if failed is None else failed.append,
    )


def used(known: ChunkHotness, names: str, times: int) -> list[bytes]:
    """The chain of chunks named by letters, used so often."""
    keys = [key_of(name) for name in names]
    for _ in range(times):
        known.request([chunk_key(key) for key in keys])
    return keys


def stored(residents: Residents, keys: list[bytes], parent: bytes | None = None, start: int = 0) -> None:
    for key in keys:
        residents.insert(key, Chunk())
    residents.add_entry(keys, parent, start)


class TestHotness:
    def test_request_uses_its_whole_chain_once(self) -> None:
        known = new_hotness()
        used(known, "abc", 3)
        used(known, "ab", 2)
        assert [known.frequency(chunk_key(key_of(name))) for name in "abcd"] == [5, 5, 3, 0]

    def test_pool_wide_hotness_comes_first_and_the_own_one_decides_the_rest(self) -> None:
        known = new_hotness(PoolPrior(a=7.0, b=8.0, c=7.0))
        used(known, "acd", 9)
        used(known, "aef", 1)
        used(known, "ae", 2)
        for rank in (known.admission, known.promotion):
            order = sorted("abcdefg", key=lambda name: rank(chunk_key(key_of(name))), reverse=True)
            assert order == list("bacdefg")

    def test_uses_elsewhere_count_where_they_are_more(self) -> None:
        known = new_hotness(PoolPrior(a=7.0, b=2.0))
        used(known, "abc", 3)
        assert [known.frequency(chunk_key(key_of(name))) for name in "abcd"] == [7, 3, 3, 0]

    def test_failing_prior_is_logged_once_and_not_asked_again(self) -> None:
        failures: list[Exception] = []
        known = new_hotness(Broken(), failures)
        used(known, "a", 1)
        assert known.admission(chunk_key(key_of("a"))) == 255
        assert known.admission(chunk_key(key_of("a"))) == 255
        assert [str(failure) for failure in failures] == ["the table is torn"]

    def test_same_hash_in_two_groups_is_two_chunks(self) -> None:
        assert chunk_key(key_of("a", 0)) != chunk_key(key_of("a", 1))
        assert chunk_key(key_of("a")) == int.from_bytes(key_of("a")[24:32], "big")


class TestResidents:
    def test_rarely_used_chunk_and_its_children_are_not_admitted(self) -> None:
        known = new_hotness()
        keys = used(known, "abc", 1)
        used(known, "a", 4)
        assert Residents(8, known).admit(keys, 8, 2, keys) == 1

    def test_hot_chunk_replaces_the_coldest_and_a_cold_one_does_not(self) -> None:
        known = new_hotness()
        cold, warm, hot = used(known, "a", 2), used(known, "b", 3), used(known, "c", 4)
        residents = Residents(2, known)
        stored(residents, cold)
        stored(residents, hot)
        assert residents.admit(warm, 0, 2, warm) == 1
        gone = residents.evict(1, set(warm))
        assert gone is not None
        assert [key for key, _ in gone] == cold
        stored(residents, warm)
        assert residents.admit(cold, 0, 2, cold) == 0

    def test_equal_chunks_do_not_replace_each_other(self) -> None:
        known = new_hotness()
        first, second = used(known, "a", 2), used(known, "b", 2)
        residents = Residents(1, known)
        stored(residents, first)
        assert residents.admit(second, 0, 2, second) == 0
        assert residents.admit(second, 0, 2, second, always=True) == 1

    def test_deepest_chunk_of_a_chain_is_dropped_first(self) -> None:
        known = new_hotness()
        chain, hot = used(known, "abc", 2), used(known, "xy", 5)
        residents = Residents(3, known)
        stored(residents, chain[:1])
        stored(residents, chain[1:], chain[0], 1)
        assert residents.admit(hot, 0, 2, hot) == 2
        gone = residents.evict(2, set(hot))
        assert gone is not None
        assert [key for key, _ in gone] == [chain[2], chain[1]]

    def test_offered_or_moving_chunk_is_not_dropped(self) -> None:
        known = new_hotness()
        old, busy, hot = used(known, "a", 2), used(known, "b", 2), used(known, "c", 9)
        residents = Residents(2, known)
        stored(residents, old)
        residents.insert(busy[0], Chunk(ref_cnt=1))
        residents.add_entry(busy, None, 0)
        assert residents.admit(hot, 0, 2, [*hot, *old]) == 0
        assert residents.evict(1, set(old)) is None
        assert len(residents) == 2

    def test_chunk_that_returned_is_dropped_once(self) -> None:
        known = new_hotness()
        first, second = used(known, "a", 2), used(known, "b", 3)
        residents = Residents(2, known)
        for _ in range(3):
            stored(residents, first)
            assert residents.evict(1, set()) is not None
        stored(residents, first)
        stored(residents, second)
        gone = residents.evict(2, set())
        assert gone is not None
        assert [key for key, _ in gone] == [*first, *second]

    def test_chain_is_admitted_as_far_as_there_is_room(self) -> None:
        known = new_hotness()
        chain, hotter = used(known, "abcd", 3), used(known, "x", 9)
        residents = Residents(3, known)
        stored(residents, hotter)
        assert residents.admit(chain, 2, 2, chain) == 2

    def test_entries_are_listed_newest_first_until_their_last_chunk_is_dropped(self) -> None:
        known = new_hotness()
        residents = Residents(4, known)
        stored(residents, used(known, "ab", 2))
        stored(residents, used(known, "c", 3))
        assert [entry.keys for entry in residents.newest()] == [[key_of("c")], [key_of("a"), key_of("b")]]
        assert residents.evict(2, set()) is not None
        assert [entry.keys for entry in residents.newest()] == [[key_of("c")]]
        residents.clear()
        assert not list(residents.newest())
        assert not len(residents)

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=60), st.integers(1, 6))
    def test_hottest_of_the_often_used_chunks_stay(self, uses: list[tuple[int, int]], room: int) -> None:
        """Against a slow model: new chains of one chunk, each compared with the coldest resident."""
        known, slow = new_hotness(), dict[bytes, None]()
        residents = Residents(room, known)
        for name, times in uses:
            key = used(known, chr(97 + name), times)[0]
            if key in slow:
                continue
            taken = residents.admit([key], room - len(slow), 2, [key])
            hotness = {one: known.admission(chunk_key(one)) for one in slow}
            coldest = min(slow, key=lambda one: hotness[one], default=None)
            fits = len(slow) < room or (coldest is not None and hotness[coldest] < known.admission(chunk_key(key)))
            assert taken == (known.frequency(chunk_key(key)) >= 2 and fits)
            if taken:
                if len(slow) == room:
                    gone = residents.evict(1, {key})
                    assert gone is not None
                    assert hotness[gone[0][0]] == min(hotness.values())
                    del slow[gone[0][0]]
                stored(residents, [key])
                slow[key] = None
            assert {key for key, _ in residents.items()} == set(slow)


class TestMemory:
    def test_memory_is_that_of_the_machine_or_the_limit_of_its_container(self, tmp_path: Path) -> None:
        limit, none = tmp_path / "memory.max", tmp_path / "missing"
        limit.write_text("123456789\n")
        assert machine_memory((limit, none)) == 123456789
        limit.write_text("max\n")
        assert machine_memory((limit, none)) > 123456789

    def test_size_beyond_the_memory_is_refused_with_both_figures(self) -> None:
        check_host_memory(2**30, 2**30, shared=False)
        with pytest.raises(ConfigurationError, match=r"cpu_bytes_to_use is 2\.00 GiB, but this machine has 1\.00 GiB"):
            check_host_memory(2 * 2**30, 2**30, shared=False)

    def test_small_shared_memory_is_refused_with_a_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="emptyDir"):
            check_host_memory(2**60, 2**61, shared=True, folder=tmp_path)
        check_host_memory(2**60, 2**61, shared=True, folder=tmp_path / "missing")
