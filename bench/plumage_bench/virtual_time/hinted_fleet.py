"""What a router and its engines do with hints about agents' sessions: the contenders of `plumage bench agents`.

A hint is what a server can see: the session's name, the agent by its system prompt, and the tool that an answer calls.
Only `Hints(expects="Truth")` sees the future, as a bound. None of this is in the product (decision 0318).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, cast

from plumage.blocks.run import Run
from plumage.blocks.tree import PrefixTree
from plumage.eviction.hotness_formula import Hotness
from plumage.routing.former import MOST_HELD
from plumage.routing.interface import Choice, Query, ReplicaState, RoutingPolicy
from plumage_bench.virtual_time.fleet import FleetRouting
from plumage_bench.workloads.workflows import Call, WorkflowSessions
from plumage_engine.simulator.engine.request import SimRequest

__all__ = ["HORIZON", "AffinePolicy", "HintedHotness", "HintedRouting", "Hints", "ReturnTimes"]

HORIZON: Final = 120.0
"""Seconds. A prompt that nothing continues until then counts as continued then."""
_SEARCHED: Final = 512  # blocks back from a prompt's end, in which the prompt is found that it continues
_LEAST_MISSING: Final = 32  # blocks: fewer are not worth a pre-cache
_MOST_USAGE: Final = 0.6  # of a replica's blocks in use, above which it pre-caches nothing
_BEGINS, _EVERY, _GIVES_UP = 0.3, 0.1, 3.0  # of the expected pause
_MOST_OPEN: Final = 4096


@dataclass(frozen=True, slots=True)
class Hints:
    """affinity: prefer the replica of the session's last request, or of the agent's (`prompt_cache_key`), where no
    replica holds half of the prompt. expects: how eviction expects an answer's next call: "ToolCall" soon after a tool
    call and after `HORIZON` otherwise; "Learned" by the mean for this agent and tool; "Truth" exactly. precaches:
    compute an evicted prefix again before its expected call, on an idle replica. late: seconds after the answer until
    eviction knows what it expects; 0 if it knows when the answer ends."""

    label: str
    affinity: Literal["", "Session", "Agent"] = ""
    expects: Literal["", "ToolCall", "Learned", "Truth"] = ""
    precaches: bool = False
    late: float = 0.0


class ReturnTimes:
    """The mean seconds until a prompt is continued, by key. Bounded: old prompts count as continued at `HORIZON`."""

    def __init__(self) -> None:
        self._means: dict[Hashable, tuple[int, float]] = {}
        self._open: dict[int, tuple[Hashable, float]] = {}

    def ended(self, end: int, key: Hashable, now: float) -> None:
        """The answer to a prompt whose last block is `end` is complete."""
        self._open[end] = (key, now)
        while self._open:
            oldest, (old_key, at) = next(iter(self._open.items()))
            if now - at < HORIZON and len(self._open) <= _MOST_OPEN:
                return
            del self._open[oldest]
            self._learn(old_key, HORIZON)

    def continued(self, blocks: Sequence[int], now: float) -> None:
        """A prompt arrived. It may continue one whose end is among its last blocks."""
        for block in reversed(blocks[-_SEARCHED:]):
            found = self._open.pop(block, None)
            if found is not None:
                self._learn(found[0], now - found[1])
                return

    def expected(self, key: Hashable) -> float | None:
        """None before two were seen."""
        count, mean = self._means.get(key, (0, 0.0))
        return mean if count > 1 else None

    def _learn(self, key: Hashable, seconds: float) -> None:
        count, mean = self._means.get(key, (0, 0.0))
        self._means[key] = (count + 1, mean + (min(seconds, HORIZON) - mean) / min(count + 1, 50))


class HintedHotness(Hotness):
    """Hotness, and each prompt's expected seconds until its next use count as unused already: the blocks that are
    needed last go first. A prefix with more than one continuation keeps its score. An eviction policy of a simulated
    engine."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._waits: dict[int, float] = {}  # a prompt's last block → expected seconds
        self._early = 0.0
        self._below: Run | None = None
        self._second = 0.0  # in blocks of time

    def expect(self, chain: Sequence[int], seconds: float, now: float) -> None:
        """`chain` is used by a request, and then again so many seconds after that."""
        self._second = self._time / max(now, 1.0)
        for block in chain[-2:]:  # the last token is never cached, so the last block may not be
            self._waits[block] = min(seconds, 10.0 * HORIZON)
        while len(self._waits) > _MOST_OPEN:
            del self._waits[next(iter(self._waits))]

    def expect_late(self, tree: PrefixTree, chain: Sequence[int], seconds: float, now: float) -> None:
        """As `expect`, for a chain that a request used before. Blocks that are evicted or in use are left out."""
        known = tree.match(chain)
        early = seconds * self._time / max(now, 1.0)
        run = tree.run_at(chain[known - 1]) if known else None
        while run is not None and run.children <= 1 and run in self._idle and run.hashes[-1] in chain:
            past, blocks = self._idle[run], len(run.hashes)
            self._idle[run] = later = past._replace(since=past.since - early)
            self._shadows.again(past.since, past.worth, blocks)
            self._shadows.idle(later.since, later.worth, blocks, self._cached)
            if run.evictable:
                self.hold(run)
                self.release(run)
            run = run.parent

    def idle(self, run: Run) -> None:
        if self._below is None or self._below.parent is not run or run.children > 1:
            self._early = 0.0
        self._below = run
        seconds = self._waits.pop(run.hashes[-1], None)
        if seconds is not None:
            self._early = seconds * self._second
        time = self._time
        self._time -= int(self._early)  # what `Hotness` takes as the end of the use
        super().idle(run)
        self._idle[run] = self._idle[run]._replace(used=time)
        self._time = time


class AffinePolicy:
    """A routing policy, with a replica that it prefers where no replica holds half of the prompt: its score counts
    half, as that of LBGR's former home does. preferred: the slot, for the next request."""

    name: ClassVar[str] = "Affine"

    def __init__(self, policy: RoutingPolicy) -> None:
        self.preferred: int | None = None
        self._policy = policy
        self.routed, self.first_token, self.finished = policy.routed, policy.first_token, policy.finished
        self.failed, self.forget = policy.failed, policy.forget

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        choice = self._policy.choose(query, replicas)
        if self.preferred is None or max(query.hits.values(), default=0.0) >= MOST_HELD * query.tokens:
            return choice
        considered = choice.considered or replicas
        scores = [
            score / 2.0 if replica.slot == self.preferred else score
            for replica, score in zip(considered, choice.scores, strict=True)
        ]
        best = min(range(len(scores)), key=scores.__getitem__)
        return Choice(considered[best].slot, scores, choice.considered)


class _PreCache:
    """A prefix that may be computed before its call. until: when that is given up."""

    __slots__ = ("chain", "every", "left", "slot", "until")

    def __init__(self, chain: Sequence[int], slot: int, now: float, expected: float) -> None:
        self.chain, self.slot, self.left = chain, slot, expected * (1.0 - _BEGINS)
        self.every, self.until = max(0.2, _EVERY * expected), now + _GIVES_UP * expected


class HintedRouting(FleetRouting):
    """The router's part of a fleet with `hints`, for a source of workflows. precomputed: tokens computed before their
    calls; at most one prefix at a time on each replica. Use `run_fleet(make=partial(HintedRouting, hints=…))`."""

    def __init__(self, *given: Any, hints: Hints) -> None:
        super().__init__(*given)
        self.precomputed = 0
        self._hints = hints
        self._sessions = cast(WorkflowSessions, self._source)
        self._times = ReturnTimes()
        self._homes: dict[Hashable, int] = {}
        self._precached: dict[object, SimRequest] = {}  # under way, by id
        self._busy: set[int] = set()
        self._waiting: dict[tuple[int, str], _PreCache] = {}
        self._ids = 0

    def route(self, request: SimRequest, now: float) -> int:
        client = self._arrivals[cast(int, request.request_id)].client
        call = self._call(client)
        self._waiting.pop((client, call.agent), None)
        self._times.continued(call.prompt.blocks, now)
        key: Hashable = client if self._hints.affinity == "Session" else call.agent
        if isinstance(self._policy, AffinePolicy):
            self._policy.preferred = self._homes.get(key)
        slot = super().route(request, now)
        self._homes[key] = slot
        seconds = self._expected(client, call)
        if seconds is not None and self._hints.expects and not self._hints.late:
            self._expect(slot, _chain(call), seconds, now)
        return slot

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        if request.request_id not in self._precached:
            super().first_token(request, slot, now)

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        if self._precached.pop(request.request_id, None) is not None:
            self._busy.discard(slot)
            self.precomputed += request.prompt_tokens - cached_tokens
            return
        client = self._arrivals[cast(int, request.request_id)].client
        call = self._call(client)
        self._times.ended(call.prompt.blocks[-1], (call.agent, call.tool), now)
        expected = self._times.expected((call.agent, call.tool))
        if self._hints.precaches and expected is not None and expected < HORIZON / 2:
            waiting = self._waiting[client, call.agent] = _PreCache(_chain(call), slot, now, expected)
            self._later(now + _BEGINS * expected, (client, call.agent), waiting)
        if self._hints.late:
            chain, seconds = _chain(call), self._expected(client, call) or 0.0
            self.fleet.call_at(now + self._hints.late, lambda: self._expect_late(slot, chain, seconds))
        super().finished(request, slot, now, cached_tokens)

    def _expect_late(self, slot: int, chain: Sequence[int], seconds: float) -> None:
        pool = self.workers[slot].engine.pool
        assert isinstance(pool.policy, HintedHotness)
        pool.policy.expect_late(pool.tree, chain, seconds, self.fleet.now)

    def _call(self, client: int) -> Call:
        return self._sessions.calls[client][self._sessions.place[client]]

    def _expected(self, client: int, call: Call) -> float | None:
        if self._hints.expects == "Truth":
            return self._sessions.until_continued(client)
        if self._hints.expects == "ToolCall":
            return 0.0 if call.tool else HORIZON
        return self._times.expected((call.agent, call.tool))

    def _expect(self, slot: int, chain: Sequence[int], seconds: float, now: float) -> None:
        policy = self.workers[slot].engine.pool.policy
        assert isinstance(policy, HintedHotness)
        policy.expect(chain, seconds, now)

    def _later(self, at: float, key: tuple[int, str], waiting: _PreCache) -> None:
        self.fleet.call_at(at, lambda: self._precache(key, waiting))

    def _precache(self, key: tuple[int, str], waiting: _PreCache) -> None:
        """Compute the prefix if it was evicted everywhere and its replica is idle; look again later."""
        now, slot = self.fleet.now, waiting.slot
        if self._waiting.get(key) is not waiting or now > waiting.until:
            return
        held = max(self.view.match(waiting.chain, now).values(), default=0)
        load = self.workers[slot].engine.load()
        idle = not load.waiting and not load.prefill_tokens and load.kv_usage < _MOST_USAGE and slot not in self._busy
        if idle and len(waiting.chain) - held >= _LEAST_MISSING:
            self._compute(waiting.chain, slot, waiting.left, now)
        self._later(now + waiting.every, key, waiting)

    def _compute(self, chain: Sequence[int], slot: int, left: float, now: float) -> None:
        self._ids -= 1
        request = SimRequest(self._ids, len(chain) * self.block_size + 1, chain, 1, now)
        self._precached[self._ids] = request
        self._busy.add(slot)
        if self._hints.expects:
            self._expect(slot, chain, left, now)
        self.view.hold_pending(chain, slot, now)
        self.fleet.submit(slot, request)


def _chain(call: Call) -> Sequence[int]:
    return (*call.prompt.blocks, *call.prompt.output_blocks)
