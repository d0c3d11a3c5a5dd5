"""Turns the output of vLLM's scheduler into the shape of a step: the simulator's `StepShape`, from real block tables.

The scheduler sends a request with its blocks once, and later only its changes. The cost of a step is proportional to
its requests and their changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plumage_bench.virtual_gpu.readers import Readers
from plumage_engine.simulator.engine.device import StepShape

if TYPE_CHECKING:
    from plumage_bench.virtual_gpu.compat.executor import CachedRequestData, NewRequestData, SchedulerOutput
    from plumage_bench.virtual_gpu.speech import Answer

__all__ = ["Batch", "Resident", "Turn"]


@dataclass(slots=True)
class Resident:
    """A request on the device. prompt: its tokens. target: tokens to prefill: the prompt and, after a preemption, the
    output so far. blocks: its block table."""

    prompt: int
    target: int
    blocks: list[int]
    answer: Answer


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's part in a step. position: of the token that it samples; None while its prompt is incomplete."""

    request_id: str
    resident: Resident
    position: int | None


class Batch:
    """answers: called once for each request. measured: False leaves the shapes empty, for a device that takes no time.
    ordered: the worker sorts the batch by prefix. The scheduler's order has no effect, since the worker orders the
    rows.

    `step` applies one scheduler output, in the order of `schedule()`; `shape` is the last one's.
    """

    def __init__(
        self,
        block_size: int,
        answers: Callable[[NewRequestData], Answer],
        *,
        measured: bool = True,
        ordered: bool = False,
    ) -> None:
        self.shape = StepShape()
        self._size = block_size
        self._answers = answers
        self._measured = measured
        self._ordered = ordered
        self._residents: dict[str, Resident] = {}
        self._readers = Readers()

    def __len__(self) -> int:
        """Requests on the device, preempted ones included until they end."""
        return len(self._residents)

    def step(self, output: SchedulerOutput) -> list[Turn]:
        """The requests of the step, in the batch's order."""
        for request_id in output.finished_req_ids:
            self._readers.leave(request_id)
            self._residents.pop(request_id, None)
        for request_id in output.preempted_req_ids or ():
            self._readers.leave(request_id)
        computed = dict(self._new(output.scheduled_new_reqs))
        computed.update(self._known(output.scheduled_cached_reqs))
        if self._measured:
            self._measure(output.num_scheduled_tokens, computed)
        return [self._turn(one, computed[one] + tokens) for one, tokens in output.num_scheduled_tokens.items()]

    def _turn(self, request_id: str, reached: int) -> Turn:
        resident = self._residents[request_id]
        return Turn(request_id, resident, reached if reached >= resident.target else None)

    def _new(self, requests: Sequence[NewRequestData]) -> Iterator[tuple[str, int]]:
        """Requests that are new; with vLLM's second model runner also resumed ones."""
        for data in requests:
            request_id = data.req_id
            target = len(data.prefill_token_ids) if data.prefill_token_ids is not None else data.prompt_len
            known = self._residents.get(request_id)
            answer = known.answer if known is not None else self._answers(data)
            self._residents[request_id] = Resident(data.prompt_len, target, list(data.block_ids[0]), answer)
            self._found(request_id, data.num_computed_tokens)
            yield request_id, data.num_computed_tokens

    def _known(self, data: CachedRequestData) -> Iterator[tuple[str, int]]:
        """Requests that were here before, with more blocks, or with a new table after a preemption."""
        for index, request_id in enumerate(data.req_ids):
            resident, blocks = self._residents[request_id], data.new_block_ids[index]
            if request_id in data.resumed_req_ids:
                resident.blocks = list(blocks[0]) if blocks else []
                resident.target = resident.prompt + data.num_output_tokens[index]
                self._found(request_id, data.num_computed_tokens[index])
            elif blocks is not None:
                resident.blocks.extend(blocks[0])
                self._readers.grow(request_id, blocks[0])
            yield request_id, data.num_computed_tokens[index]

    def _found(self, request_id: str, computed: int) -> None:
        """The request begins its prefill after `computed` tokens from the cache."""
        self._readers.prefill(request_id, self._residents[request_id].blocks[: computed // self._size])

    def _measure(self, scheduled: dict[str, int], computed: dict[str, int]) -> None:
        shape = self.shape = StepShape()
        decodes: list[str] = []
        for request_id, tokens in scheduled.items():
            done, resident = computed[request_id], self._residents[request_id]
            if done < resident.target:
                shape.prefill_tokens += tokens
                shape.prefill_pairs += tokens * (done + (tokens + 1) / 2)
                continue
            decodes.append(request_id)
            shape.context += done + 1
            self._readers.decode(request_id, resident.blocks)
        self._readers.keep(decodes)
        shape.decodes = len(decodes)
        shape.distinct = self._readers.distinct * self._size
        shape.shared = self._readers.shared * self._size
        shape.ordered = self._ordered
