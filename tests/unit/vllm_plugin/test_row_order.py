"""The order of a batch's rows: swaps that make rows of one prefix adjacent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather import row_order
from plumage_engine.vllm.feather.row_order import OutputOrder, rank_rows, swaps
from plumage_engine.vllm.guard import Guard


@given(st.lists(st.binary(max_size=3), max_size=30))
def test_swaps_sort_the_rows(rows: list[bytes]) -> None:
    placed = list(rows)
    wanted = rank_rows(rows)
    for one, other in swaps(wanted):
        placed[one], placed[other] = placed[other], placed[one]
    assert placed == sorted(rows)
    assert placed == [rows[row] for row in wanted]


@given(st.permutations(range(12)))
def test_swaps_are_as_few_as_the_cycles_need(wanted: list[int]) -> None:
    moved = sum(1 for place, row in enumerate(wanted) if place != row)
    assert len(swaps(wanted)) <= max(0, moved - 1)


def test_rows_of_one_prefix_are_adjacent_at_every_level() -> None:
    root, left, right = b"\x01\0\0\0", b"\x07\0\0\0", b"\x03\0\0\0"
    rows = [root + left + b"a", b"\x02\0\0\0", root + right + b"b", root + left + b"c"]
    assert [rows[row][:8] for row in rank_rows(rows)] == [root + right, root + left, root + left, rows[1][:8]]


def test_sorted_batch_is_unchanged() -> None:
    assert swaps(rank_rows([b"a", b"a", b"b"])) == []


def test_second_runner_is_left_to_the_scheduler() -> None:
    guard = Guard("batchOrder", Counters())
    row_order.install(guard, SimpleNamespace(use_v2_model_runner=True))
    assert guard.on


def output_of(
    tokens: dict[str, int],
    new: dict[str, list[int]],
    finished: Iterable[str] = (),
    resumed: Mapping[str, list[int]] = MappingProxyType({}),
) -> SimpleNamespace:
    """As vLLM's SchedulerOutput. new, resumed: blocks of these requests."""
    cached = SimpleNamespace(
        req_ids=[*resumed, "other"], new_block_ids=[*((blocks,) for blocks in resumed.values()), None],
        resumed_req_ids=set(resumed),
    )  # fmt: skip
    requests = [SimpleNamespace(req_id=name, block_ids=(blocks,)) for name, blocks in new.items()]
    return SimpleNamespace(
        num_scheduled_tokens=dict(tokens),
        finished_req_ids=set(finished),
        scheduled_new_reqs=requests,
        scheduled_cached_reqs=cached,
    )


def test_output_is_sorted_by_first_blocks() -> None:
    order = OutputOrder()
    tokens = {"a": 1, "b": 1, "c": 1, "d": 1}
    output = output_of(tokens, {"a": [1, 5], "b": [2, 6], "c": [1, 7], "d": [2, 8]})
    order.scheduled(output)
    assert list(output.num_scheduled_tokens) == ["a", "c", "b", "d"]
    assert output.num_scheduled_tokens == tokens
    later = output_of(dict(reversed(tokens.items())), {})
    order.scheduled(later)
    assert list(later.num_scheduled_tokens) == ["a", "c", "b", "d"], "the order is kept while the members stay"


def test_ended_and_resumed_requests_change_the_order() -> None:
    order = OutputOrder()
    order.scheduled(output_of({"a": 1, "b": 1, "c": 1}, {"a": [1], "b": [2], "c": [1]}))
    output = output_of({"b": 1, "c": 1, "d": 4}, {"d": [2]}, finished=["a"], resumed={"c": [3]})
    order.scheduled(output)
    assert list(output.num_scheduled_tokens) == ["b", "d", "c"]
    order.scheduled(output_of({}, {}, finished=["b", "c", "d"]))
    assert not order._rows, "nothing is kept of requests that ended"


def test_unknown_requests_and_switched_off_order_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    order = OutputOrder()
    output = output_of({"x": 1, "b": 1, "a": 1}, {"b": [2], "a": [1]})
    order.scheduled(output)
    assert list(output.num_scheduled_tokens) == ["a", "b", "x"]
    monkeypatch.setattr(row_order, "enabled", False)
    output = output_of({"x": 1, "b": 1, "a": 1}, {})
    order.scheduled(output)
    assert list(output.num_scheduled_tokens) == ["x", "b", "a"]


class Batch:
    """As vLLM's InputBatch. rows: (name, tokens computed, tokens of the prompt, first block)."""

    def __init__(self, rows: list[tuple[str, int, int, int]]) -> None:
        self.req_ids = [name for name, *_ in rows]
        self.num_computed_tokens_cpu = np.array([computed for _, computed, *_ in rows])
        self.num_prompt_tokens = np.array([prompt for _, _, prompt, _ in rows])
        blocks = np.array([[block] for *_, block in rows], np.int32)
        table = SimpleNamespace(block_table=SimpleNamespace(np=blocks), num_blocks_per_row=[1] * len(rows))
        self.block_table = SimpleNamespace(block_tables=[table])

    def swap_states(self, one: int, other: int) -> None:
        names = self.req_ids
        names[one], names[other] = names[other], names[one]


@pytest.mark.parametrize(
    ("threshold", "order"),
    [
        (None, ["first", "dec-1", "short", "dec-5", "long", "dec-9"]),
        (1, ["dec-1", "dec-5", "dec-9", "short", "long", "first"]),
        (0, ["dec-9", "dec-5", "dec-1", "short", "long", "first"]),
    ],
)
def test_decoding_rows_stay_in_front_where_the_backend_requires_it(threshold: int | None, order: list[str]) -> None:
    """A prompt of one token, and the last token of a chunked one, are scheduled with as many tokens as a decode."""
    batch = Batch([
        ("dec-9", 30, 20, 9), ("dec-5", 40, 20, 5), ("dec-1", 25, 20, 1), ("short", 20, 21, 2), ("long", 8, 60, 7),
        ("first", 0, 1, 0),
    ])  # fmt: skip
    scheduled = {name: 8 if name == "long" else 1 for name in batch.req_ids}
    output = SimpleNamespace(num_scheduled_tokens=scheduled)
    row_order._sort(SimpleNamespace(input_batch=batch, reorder_batch_threshold=threshold), output)
    assert batch.req_ids == order
