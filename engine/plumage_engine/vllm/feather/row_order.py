"""Sorts the rows of the running batch by shared prefix, inside the worker (FEATHER §3; decision 0096).

Attention reads the KV blocks of one request after those of the one before it. If neighbours share their blocks, the
second finds them in the processor's cache. The scheduler admits by group, but a request takes any free slot of the
batch, so groups mix over time. Rows of the block table show the groups: requests with a shared prefix begin with the
same blocks. So sorting the rows sorts the prefix tree depth first, at all its levels.

vLLM's first model runner has a batch of its own. It is sorted in the worker (`install`) when its members change, with
at most one swap a request. Requests are swapped only within the part that the attention backend allows: decoding
requests stay before those in prefill where it needs that. A failure in a worker of the scheduler's own process is
counted and reported in its stats. A worker of another process reports it in its log only.

vLLM's second model runner makes the batch of each step from the scheduler's output, and keeps the order of decoding
requests in it. So there the scheduler sorts the output (`OutputOrder`), and no worker is changed (decision 0273).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt

__all__ = ["OutputOrder", "enabled", "install", "rank_rows", "swaps"]

enabled = True  # a bench that serves several policies in one process switches it


_guard = Guard("batchOrder", Counters())  # the engine's in this process; unused where only its worker is here


def install(guard: Guard | None = None, config: Any = None) -> None:
    """Sort each runner's batch in this process from now on. Idempotent.

    guard: of the scheduler in this process, which reports failures from now on.
    config: vLLM's, where it is known; for the second model runner nothing is installed.
    """
    global _guard
    if guard is not None:
        _guard = guard
    attempt(_guard, lambda: _hook(_guard, config))


def _hook(guard: Guard, config: Any) -> None:
    if config is not None and getattr(config, "use_v2_model_runner", False):
        return  # the scheduler sorts its output
    from plumage_engine.vllm.compat.model_runner import GPUModelRunner, problems

    if reasons := problems():
        guard.refuse(reasons)
    elif not getattr(GPUModelRunner._may_reorder_batch, "plumage", False):
        GPUModelRunner._may_reorder_batch = _sorting(GPUModelRunner._may_reorder_batch)


class OutputOrder:
    """Sorts the requests of the scheduler's output, from which the second model runner makes its batch.

    A row is the blocks that a request had when it was admitted: shared blocks are among them. It is kept until the
    request ends.
    """

    def __init__(self) -> None:
        self._rows: dict[str, bytes] = {}
        self._rank: dict[str, int] = {}

    def scheduled(self, output: Any) -> None:
        """Call it with each output of the scheduler before the runner has it."""
        if _changed(output):
            self._note(output)
        tokens = output.num_scheduled_tokens
        if enabled and len(tokens) > 2:  # two requests are neighbours in any order
            names = sorted(tokens, key=lambda name: self._rank.get(name, len(self._rank)))
            output.num_scheduled_tokens = {name: tokens[name] for name in names}

    def _note(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self._rows.pop(name, None)
        for request in output.scheduled_new_reqs:
            self._rows[request.req_id] = _row(request.block_ids)
        resumed = output.scheduled_cached_reqs
        for name, blocks in zip(resumed.req_ids, resumed.new_block_ids, strict=True):
            if name in resumed.resumed_req_ids and blocks:
                self._rows[name] = _row(blocks)
        names = list(self._rows)
        self._rank = {names[at]: rank for rank, at in enumerate(rank_rows(list(self._rows.values())))}


def _row(blocks: Sequence[Sequence[int]]) -> bytes:
    """The first group's blocks. Their order as bytes is not that of the numbers; equal beginnings stay together."""
    return array("Q", blocks[0]).tobytes() if blocks else b""


def _sorting(own: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def _may_reorder_batch(runner: Any, scheduler_output: Any) -> None:
        own(runner, scheduler_output)
        if enabled and _guard.on and _changed(scheduler_output):
            try:
                _sort(runner, scheduler_output)
            except Exception as error:
                _guard.failed(error)

    _may_reorder_batch.plumage = True  # type: ignore[attr-defined]
    return _may_reorder_batch


def _changed(output: Any) -> bool:
    """Whether the batch has other members than in the step before."""
    return bool(output.scheduled_new_reqs or output.finished_req_ids or output.scheduled_cached_reqs.resumed_req_ids)


def _sort(runner: Any, output: Any) -> None:
    batch = runner.input_batch
    requests = len(batch.req_ids)
    if requests < 3 or not batch.block_table.block_tables:
        return  # two requests are neighbours in any order
    threshold = runner.reorder_batch_threshold
    keep = range(requests if threshold is None else _decodes(batch, output, threshold))
    table = batch.block_table.block_tables[0]
    rows = [table.block_table.np[row, : table.num_blocks_per_row[row]].tobytes() for row in keep]
    for one, other in swaps(rank_rows(rows)):
        batch.swap_states(one, other)


def _decodes(batch: Any, output: Any, threshold: int) -> int:
    """Rows at the front that decode, as vLLM's `reorder_batch_to_split_decodes_and_prefills` has put them there.

    A prompt whose last part is as short does not decode, and stands behind them.
    """
    rows = zip(batch.req_ids, batch.num_computed_tokens_cpu, batch.num_prompt_tokens, strict=False)
    decode = (
        0 < computed >= prompt and output.num_scheduled_tokens[name] <= threshold for name, computed, prompt in rows
    )
    return sum(1 for _ in takewhile(bool, decode))


def rank_rows(rows: Sequence[bytes]) -> list[int]:
    """Returns for each place the row that should stand there. The sort is stable, so equal rows keep their order."""
    return sorted(range(len(rows)), key=rows.__getitem__)


def swaps(wanted: Sequence[int]) -> list[tuple[int, int]]:
    """The swaps that bring the row `wanted[place]` to each `place`: one fewer than the length of each cycle."""
    done: list[tuple[int, int]] = []
    at = list(range(len(wanted)))  # at[place]: the row there now
    place_of = list(range(len(wanted)))
    for place, row in enumerate(wanted):
        here = place_of[row]
        if here != place:
            done.append((place, here))
            displaced = at[place]
            at[place], at[here] = row, displaced
            place_of[row], place_of[displaced] = place, here
    return done
