"""The requests of a simulated engine, the report of a step, and the totals of all steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from plumage.batching.interface import Candidate, RequestId
from plumage.errors import ConfigurationError
from plumage.hashing.token_vectors import strided

__all__ = ["Counters", "Load", "SimRequest", "State", "StepReport", "Tracked"]


@dataclass(slots=True)
class SimRequest:
    """A request as the engine sees it.

    block_hashes: chained hashes of the prompt's *full* blocks. output_tokens: how many it will generate, at least 1.
    output_hashes: hashes of the full blocks that follow (the prompt's tail with the output), where they are known: they
    are cached as the output grows, as vLLM does. vector: the batching policy's chunk hashes; None takes every
    `chunk_blocks`-th block hash. group: a mark for policies of your own. adapter: its LoRA; empty for the base model.
    owner: the salt of its blocks, which names a tenant.
    """

    request_id: RequestId
    prompt_tokens: int
    block_hashes: Sequence[int]
    output_tokens: int
    arrival: float
    output_hashes: Sequence[int] = ()
    vector: tuple[int, ...] | None = None
    group: Hashable | None = None
    adapter: str = ""
    owner: str | None = None

    def check(self, block_size: int, cache_blocks: int) -> None:
        """ConfigurationError if it can never run in such a cache."""
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ConfigurationError("a request needs at least one prompt token and one output token")
        if len(self.block_hashes) > self.prompt_tokens // block_size:
            raise ConfigurationError("block_hashes must be of full blocks of the prompt only")
        blocks = -(-(self.prompt_tokens + self.output_tokens - 1) // block_size)
        if blocks > cache_blocks:
            raise ConfigurationError(f"request {self.request_id!r} needs {blocks} blocks, the cache has {cache_blocks}")

    def candidate(self, stride: int) -> Candidate:
        vector = strided(self.block_hashes, stride) if self.vector is None else self.vector
        return Candidate(self.request_id, vector, self.prompt_tokens, self.arrival, self.group)


@dataclass(frozen=True, slots=True)
class Load:
    """running, waiting: requests. kv_usage: share of the KV blocks in use. prefill_tokens: prompt tokens still to be
    computed, hits of waiting requests not yet known and so not taken off."""

    running: int
    waiting: int
    kv_usage: float
    prefill_tokens: int


@dataclass(slots=True)
class StepReport:
    """One step: what it takes, the share of KV blocks in use meanwhile, and what is true once it has passed.

    first_tokens: requests with their first token. finished: (id, cached tokens of its prompt). tokens: requests with
    one more token, named only under `report_tokens`. admitted: taken into the batch. preempted: sent back to the queue.
    chunks: (id, first token, tokens) of each piece of prefill.
    """

    seconds: float = 0.0
    kv_usage: float = 0.0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    first_tokens: list[RequestId] = field(default_factory=list)
    finished: list[tuple[RequestId, int]] = field(default_factory=list)
    tokens: list[RequestId] = field(default_factory=list)
    admitted: list[RequestId] = field(default_factory=list)
    preempted: list[RequestId] = field(default_factory=list)
    chunks: list[tuple[RequestId, int, int]] = field(default_factory=list)


class State(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    DONE = "done"


class Tracked:
    """A request inside the engine. It holds the cached blocks `hashes[:held]` and `anonymous` blocks after them.

    generated, computed: tokens put out, and tokens with KV. While the request decodes they are the values at entry, and
    the decode clock counts the steps since. target: tokens to prefill: the prompt and, after a preemption, the output
    so far. own: blocks taken in prefill, beyond the hits. backlog: tokens of the target that are still to be computed.
    """

    __slots__ = (
        "anonymous",
        "backlog",
        "cached_tokens",
        "computed",
        "entered",
        "generated",
        "hashes",
        "held",
        "own",
        "request",
        "state",
        "target",
        "ticket",
    )

    def __init__(self, request: SimRequest) -> None:
        self.request = request
        self.hashes = (*request.block_hashes, *request.output_hashes) if request.output_hashes else request.block_hashes
        self.state = State.WAITING
        self.target = request.prompt_tokens
        self.computed = 0
        self.generated = 0
        self.held = 0
        self.anonymous = 0
        self.own = 0
        self.backlog = 0
        self.entered = 0
        self.ticket = -1
        self.cached_tokens: int | None = None


@dataclass(slots=True)
class Counters:
    """Totals since the engine started, as vLLM's counters have them.

    query_tokens and hit_tokens: prompt tokens looked up and found on the device, at each first admission;
    host_query_tokens and host_hit_tokens: the same for the host tier's look-ups. prefill_tokens includes the
    tokens that preempted requests compute again. busy_seconds: sum of the steps."""

    query_tokens: int = 0
    hit_tokens: int = 0
    host_query_tokens: int = 0
    host_hit_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    finished: int = 0
    aborted: int = 0
    preempted: int = 0

    def prompt(self, tokens: int, hits: int, host_hits: int = 0, *, host: bool = False) -> None:
        """A request was admitted for the first time. host: a host tier was asked for the missing tokens."""
        self.query_tokens += tokens
        self.hit_tokens += hits
        if host:
            self.host_query_tokens += tokens - hits
            self.host_hit_tokens += host_hits

    def count(self, report: StepReport, prefilled: int) -> None:
        """Counts a step; `prefilled` requests got a token at the end of their prompt."""
        self.steps += 1
        self.busy_seconds += report.seconds
        self.prefill_tokens += report.prefill_tokens
        self.generated_tokens += report.decode_tokens + prefilled
