"""Repeated prefill FLOPs against a count token by token, and the memory of computed blocks against a plain model."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from math import exp, factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.kv_metrics import WAYS, PrefillCost, PrefillWork, SeenBlocks

SIZE = 4
COST = PrefillCost(row=100.0, pair=3.0)


def names(tokens: list[int]) -> list[int]:
    """Chained names of the full blocks: equal exactly where all tokens up to the block's end are."""
    return [hash(tuple(tokens[:end])) & (2**64 - 1) for end in range(SIZE, len(tokens) + 1, SIZE)]


class ByToken:
    """Counts each token of a full block: whether its block was computed before this chunk ended it."""

    def __init__(self) -> None:
        self.total = self.repeated = 0.0
        self.computed: set[int] = set()

    def prefilled(self, start: int, end: int, known: list[int]) -> None:
        for at in range(start, end):
            work = COST.row + COST.pair * (at + 1)
            self.total += work
            block = at // SIZE
            if block < len(known) and known[block] in self.computed:
                self.repeated += work
        self.computed |= {known[block] for block in range(start // SIZE, min(end // SIZE, len(known)))}


@given(start=st.integers(0, 50), tokens=st.integers(0, 50))
def test_flops_are_the_sum_over_tokens(start: int, tokens: int) -> None:
    each = sum(COST.row + COST.pair * (at + 1) for at in range(start, start + tokens))
    assert COST.flops(start, start + tokens) == pytest.approx(each)


def test_cost_of_a_model_counts_its_weights() -> None:
    cost = PrefillCost.of_model(
        layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, intermediate=14_336
    )  # Llama 3 8B
    assert cost.row / 2 == 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336) == 6_979_321_856
    assert cost.pair == 4 * 32 * 4096
    two = PrefillCost.of_model(
        layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, intermediate=14_336, experts=2
    )
    assert two.row - cost.row == 2 * 32 * 3 * 4096 * 14_336


@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=24), st.integers(0, 3), st.integers(1, 9)),
        max_size=12,
    )
)
def test_repeated_work_equals_a_count_by_token(requests: list[tuple[list[int], int, int]]) -> None:
    """Prompts over two tokens share many prefixes. Each begins after some cached blocks, and comes in chunks."""
    work, plain = PrefillWork(COST, SeenBlocks(1 << 12), SIZE), ByToken()
    for tokens, cached, chunk in requests:
        known = names(tokens)
        start = min(cached * SIZE, (len(tokens) - 1) // SIZE * SIZE)
        while start < len(tokens):
            end = min(start + chunk, len(tokens))
            work.prefilled(start, end, known[work.touched(start, end)])
            plain.prefilled(start, end, known)
            start = end
    assert work.total == pytest.approx(plain.total)
    assert work.repeated == pytest.approx(plain.repeated)


def test_evicted_prompt_is_computed_again_but_for_its_tail() -> None:
    work = PrefillWork(COST, SeenBlocks(64), SIZE)
    known = names(list(range(10)))
    work.prefilled(0, 10, known)
    assert work.repeated == 0
    work.prefilled(0, 10, known)
    assert work.total == pytest.approx(2 * COST.flops(0, 10))
    assert work.repeated == pytest.approx(COST.flops(0, 8))  # the last two tokens fill no block


def test_prefill_of_decoded_blocks_repeats() -> None:
    work = PrefillWork(COST, SeenBlocks(64), SIZE)
    known = names(list(range(12)))
    work.prefilled(0, 4, known[:1])
    work.decoded(known[1:])
    work.prefilled(4, 12, known[1:])
    assert work.repeated == pytest.approx(COST.flops(4, 12))


@given(added=st.lists(st.integers(0, 60), max_size=120), capacity=st.integers(1, 24))
def test_memory_keeps_the_newest_eight_of_a_bucket(added: list[int], capacity: int) -> None:
    seen = SeenBlocks(capacity)
    buckets: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
    for block in added:
        name = (block + 1) << 32 | block
        bucket = buckets[block % (seen.places // WAYS)]
        assert (name in seen) == seen.add(name) == (name in bucket)
        bucket[name] = None
        bucket.move_to_end(name)
        if len(bucket) > WAYS:
            bucket.popitem(last=False)


def test_memory_forgets_as_often_as_it_says() -> None:
    rng, seen = random.Random(3), SeenBlocks(1 << 13)
    added = [rng.getrandbits(64) for _ in range(1 << 15)]
    for name in added:
        seen.add(name)
    for share in (0.25, 0.5, 1.0):
        newer = int(share * seen.places)
        about = added[-newer - 500 : -newer + 500]
        forgotten = sum(name not in seen for name in about) / len(about)
        mean = WAYS * share
        stated = 1 - sum(exp(-mean) * mean**count / factorial(count) for count in range(WAYS))
        assert forgotten == pytest.approx(stated, abs=0.06)
    assert not any(rng.getrandbits(64) in seen for _ in range(5000))


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="at least one block"):
        SeenBlocks(0)
    with pytest.raises(ConfigurationError, match="at least one token"):
        PrefillWork(COST, SeenBlocks(1), 0)
    assert (SeenBlocks(1).places, SeenBlocks(9).places, SeenBlocks(1 << 20).bytes) == (8, 16, 4 << 20)
