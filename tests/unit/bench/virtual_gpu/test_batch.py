"""The cost of a scheduler's output: shapes from block tables, without vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from plumage_bench.virtual_gpu.batch import Batch
from plumage_bench.virtual_gpu.readers import Readers
from plumage_bench.virtual_gpu.speech import Answer

SIZE = 4
ANSWER = Answer(0, None)


def new(name: str, prompt: int, blocks: Sequence[int], computed: int = 0, prefill: int | None = None) -> Any:
    """A request as vLLM first announces it."""
    return SimpleNamespace(
        req_id=name,
        prompt_len=prompt,
        prefill_token_ids=None if prefill is None else [0] * prefill,
        block_ids=(list(blocks),),
        num_computed_tokens=computed,
    )


def output(
    scheduled: Mapping[str, int],
    fresh: Sequence[Any] = (),
    known: Sequence[tuple[str, int, Sequence[int] | None]] = (),
    resumed: Mapping[str, int] | None = None,
    finished: Sequence[str] = (),
    preempted: Sequence[str] = (),
) -> Any:
    """known: (name, computed, new blocks). resumed: tokens of output by name."""
    resumed = resumed or {}
    return SimpleNamespace(
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted),
        scheduled_new_reqs=list(fresh),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _, _ in known],
            resumed_req_ids=set(resumed),
            new_block_ids=[None if blocks is None else (list(blocks),) for _, _, blocks in known],
            num_computed_tokens=[computed for _, computed, _ in known],
            num_output_tokens=[resumed.get(name, 0) for name, _, _ in known],
        ),
        num_scheduled_tokens=dict(scheduled),
    )


@pytest.fixture
def batch() -> Batch:
    return Batch(SIZE, lambda data: ANSWER)


def positions(turns: Sequence[Any]) -> dict[str, int | None]:
    return {turn.request_id: turn.position for turn in turns}


def test_prompt_in_chunks_gets_its_token_with_the_last_chunk(batch: Batch) -> None:
    turns = batch.step(output({"a": 6}, [new("a", 10, [1, 2], computed=0)]))
    assert positions(turns) == {"a": None}
    assert (batch.shape.prefill_tokens, batch.shape.prefill_pairs) == (6, 21.0)
    turns = batch.step(output({"a": 4}, known=[("a", 6, [3])]))
    assert positions(turns) == {"a": 10}
    assert (batch.shape.decodes, batch.shape.prefill_pairs) == (0, 7 + 8 + 9 + 10)
    assert positions(batch.step(output({"a": 1}, known=[("a", 10, None)]))) == {"a": 11}
    shape = batch.shape
    assert (shape.decodes, shape.context, shape.distinct, shape.prefill_tokens) == (1, 11, 12, 0)


def decoding(batch: Batch, tables: Mapping[str, Sequence[int]]) -> None:
    """All decode, with full block tables."""
    fresh = [new(name, SIZE * len(blocks), blocks) for name, blocks in tables.items()]
    batch.step(output({name: SIZE * len(blocks) for name, blocks in tables.items()}, fresh))
    known = [(name, SIZE * len(blocks), None) for name, blocks in tables.items()]
    batch.step(output(dict.fromkeys(tables, 1), known=known))


def test_shared_blocks_are_read_once(batch: Batch) -> None:
    decoding(batch, {"a": [1, 2, 3], "b": [1, 2, 4], "c": [1, 5]})
    shape = batch.shape
    assert (shape.decodes, shape.context) == (3, 13 + 13 + 9)
    assert (shape.distinct, shape.shared) == (5 * SIZE, 1 * SIZE)


def test_ended_request_reads_no_more(batch: Batch) -> None:
    decoding(batch, {"a": [1, 2, 3], "b": [1, 2, 4], "c": [1, 5]})
    batch.step(output({"a": 1, "b": 1}, known=[("a", 13, [6]), ("b", 13, None)], finished=["c"]))
    assert (batch.shape.distinct, batch.shape.shared, len(batch)) == (5 * SIZE, 2 * SIZE, 2)


def test_preempted_request_prefills_its_output_too(batch: Batch) -> None:
    decoding(batch, {"a": [1, 2], "b": [1, 3]})
    batch.step(output({"a": 1}, known=[("a", 9, [4])]))
    assert (batch.shape.decodes, batch.shape.distinct, len(batch)) == (1, 3 * SIZE, 2)
    turns = batch.step(output({"b": 6}, known=[("b", 4, [1, 7, 8])], resumed={"b": 2}))
    assert positions(turns) == {"b": 10}
    assert (batch.shape.decodes, batch.shape.prefill_tokens, batch.shape.distinct) == (0, 6, 1 * SIZE)
    batch.step(output({"b": 1}, known=[("b", 10, None)]))
    assert (batch.shape.decodes, batch.shape.context, batch.shape.distinct) == (1, 11, 3 * SIZE)


def test_cached_part_of_a_prompt_is_read(batch: Batch) -> None:
    decoding(batch, {"a": [1, 2]})
    batch.step(output({"a": 1, "b": 3}, [new("b", 20, [1, 3, 4, 5, 6], computed=8)], known=[("a", 9, [7])]))
    assert (batch.shape.decodes, batch.shape.distinct) == (1, 4 * SIZE)  # 1, 2, 7 and 3
    batch.step(output({"a": 1}, known=[("a", 10, None)]))
    assert batch.shape.distinct == 4 * SIZE, "the request keeps them while the step has no room for it"
    batch.step(output({"a": 1}, known=[("a", 11, None)], preempted=["b"]))
    assert batch.shape.distinct == 3 * SIZE


def test_second_runner_announces_a_resumed_request_as_new(batch: Batch) -> None:
    decoding(batch, {"a": [1, 2]})
    turns = batch.step(output({"a": 10}, [new("a", 8, [4, 5, 6], prefill=10)]))
    assert positions(turns) == {"a": 10}
    assert (batch.shape.decodes, batch.shape.prefill_tokens, len(batch)) == (0, 10, 1)


@pytest.mark.parametrize("sorting", [True, False])
def test_sorting_worker_makes_every_batch_sorted(sorting: bool) -> None:
    batch = Batch(SIZE, lambda data: ANSWER, ordered=sorting)
    decoding(batch, {"a": [1, 2], "b": [3, 4], "c": [1, 5]})
    assert batch.shape.ordered is sorting


def test_device_without_cost_needs_no_shape() -> None:
    batch = Batch(SIZE, lambda data: ANSWER, measured=False)
    decoding(batch, {"a": [1, 2]})
    assert batch.shape.decodes == 0


def test_reader_counts_stay_right_through_many_changes() -> None:
    readers, tables = Readers(), {str(n): [n % 3, 10 + n % 6, 100 + n] for n in range(30)}
    for name, table in tables.items():
        readers.prefill(name, table[:1])
        readers.decode(name, table)
        readers.decode(name, table)  # once is enough
    for name in [str(n) for n in range(0, 30, 2)]:
        readers.leave(name)
        readers.leave(name)
    tables["1"].append(999)
    readers.grow("1", [999])
    readers.grow("0", [998])
    left = {str(n) for n in range(1, 30, 2)}
    assert readers.distinct == len({block for name in left for block in tables[name]})
    readers.keep(["1", "7"])
    assert (len(readers), readers.distinct, readers.shared) == (2, 5, 2)
