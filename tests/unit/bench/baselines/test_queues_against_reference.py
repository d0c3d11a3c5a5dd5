"""Queue baselines against slow models: plain lists that are searched completely at each question."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pytest

from plumage.batching import Candidate, StepOutcome
from plumage_bench.baselines.batching import make_queue
from plumage_bench.baselines.batching.dynamic import DynamicBatching

MAX_WAIT = 40.0
TEXTS = ("", "a", "ab", "abc", "abd", "abcaa", "acccc", "b", "ba", "baaaa", "c")


def vector(text: str) -> tuple[int, ...]:
    """Equal up to a level iff the texts are. The order of the hashes differs from that of the texts."""
    return tuple(crc32(text[:level].encode()) for level in range(1, len(text) + 1))


class Slow(ABC):
    """The contract of every queue. `waiting` in order of arrival, `active` in order of admission,
    `front` next first.
    """

    def __init__(self) -> None:
        self.waiting: list[Candidate] = []
        self.front: list[Candidate] = []
        self.active: list[Candidate] = []
        self.admitted: list[Candidate] = []  # ever, and again after each preemption

    def select(self, now: float) -> Any:
        if self.front:
            return self.front[0].request_id
        if not self.waiting:
            return None
        if now - self.waiting[0].arrival >= MAX_WAIT:
            return self.waiting[0].request_id
        return self.pick()

    @abstractmethod
    def pick(self) -> Any:
        """The next waiting request, where none is past the ageing bound."""

    def insert(self, candidate: Candidate) -> None:
        self.waiting.append(candidate)

    def add(self, name: Any) -> None:
        for lane in (self.front, self.waiting):
            for candidate in lane:
                if candidate.request_id == name:
                    lane.remove(candidate)
                    self.active.append(candidate)
                    self.admitted.append(candidate)
                    return

    def take(self, name: Any) -> Candidate:
        (candidate,) = (one for one in self.active if one.request_id == name)
        self.active.remove(candidate)
        return candidate

    def requeue(self, name: Any) -> None:
        self.front.insert(0, self.take(name))

    def remove(self, name: Any) -> None:
        self.waiting = [one for one in self.waiting if one.request_id != name]
        self.front = [one for one in self.front if one.request_id != name]

    def observe(self, outcome: StepOutcome) -> None:
        pass


class SlowSorted(Slow):
    """Sorts at the first question of a step, and again when that order is used up."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[Any] = []

    def observe(self, outcome: StepOutcome) -> None:
        self.order = []

    def pick(self) -> Any:
        there = {one.request_id for one in self.waiting}
        self.order = [name for name in self.order if name in there] or [one.request_id for one in self.sorted()]
        return self.order[0]

    @abstractmethod
    def sorted(self) -> list[Candidate]:
        """All waiting requests, next first."""


class SlowLpm(SlowSorted):
    """Most levels in common with any request that was ever admitted; in a long queue by arrival."""

    FCFS_ABOVE = 12

    def sorted(self) -> list[Candidate]:
        if len(self.waiting) > self.FCFS_ABOVE:
            return self.waiting
        depths = {
            one.request_id: max((common(one, other) for other in self.admitted), default=0) for one in self.waiting
        }
        return [one for depth in range(9, -1, -1) for one in self.waiting if depths[one.request_id] == depth]


class SlowDfs(SlowSorted):
    """A walk through the tree: the requests that end at a node, then its branches, the one with most requests first."""

    def sorted(self) -> list[Candidate]:
        return list(self.walk(self.waiting, 0))

    def walk(self, group: list[Candidate], depth: int) -> Iterator[Candidate]:
        yield from (one for one in group if len(one.vector) == depth)
        branches: dict[int, list[Candidate]] = {}
        for one in group:
            if len(one.vector) > depth:
                branches.setdefault(one.vector[depth], []).append(one)
        for _, branch in sorted(branches.items(), key=lambda item: (-len(item[1]), item[0])):
            yield from self.walk(branch, depth + 1)


class SlowOracle(Slow):
    """The oldest of the batch's group. For an empty batch, the oldest of the largest group. Among equal groups the one
    that has had waiting requests for longest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Any] = []  # groups with waiting requests, in the order in which they got some

    def pick(self) -> Any:
        self.update_groups()
        if self.active:
            group = self.active[0].group
        else:
            sizes = [sum(one.group == group for one in self.waiting) for group in self.groups]
            group = self.groups[sizes.index(max(sizes))]
        return next((one.request_id for one in self.waiting if one.group == group), None)

    def update_groups(self) -> None:
        there = [one.group for one in self.waiting]
        self.groups = [group for group in self.groups if group in there]
        self.groups += [group for group in dict.fromkeys(there) if group not in self.groups]

    def insert(self, candidate: Candidate) -> None:
        super().insert(candidate)
        self.update_groups()

    def add(self, name: Any) -> None:
        super().add(name)
        self.update_groups()

    def remove(self, name: Any) -> None:
        super().remove(name)
        self.update_groups()


class SlowDynamic(Slow):
    """The limit, recomputed each time from all observations."""

    TARGET, SMALLEST, LARGEST, CUT = 0.05, 1, 4, 0.8

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[StepOutcome, int]] = []  # and how many were active

    def observe(self, outcome: StepOutcome) -> None:
        self.seen.append((outcome, len(self.active)))

    @property
    def limit(self) -> int:
        limit = min(max(self.SMALLEST, 8), self.LARGEST)
        for outcome, active in self.seen:
            if outcome.prefill_tokens == 0 and outcome.seconds > self.TARGET:
                limit = max(self.SMALLEST, int(limit * self.CUT))
            elif outcome.prefill_tokens == 0 and active >= limit:
                limit = min(self.LARGEST, limit + 1)
        return limit

    def pick(self) -> Any:
        return self.waiting[0].request_id if len(self.active) < self.limit else None


def common(one: Candidate, other: Candidate) -> int:
    level = 0
    while level < min(len(one.vector), len(other.vector)) and one.vector[level] == other.vector[level]:
        level += 1
    return level


DYNAMIC = {"target": SlowDynamic.TARGET, "smallest": SlowDynamic.SMALLEST, "largest": SlowDynamic.LARGEST}
MODELS: dict[str, tuple[Callable[[], Slow], dict[str, Any]]] = {
    "Lpm": (SlowLpm, {"fcfs_above": SlowLpm.FCFS_ABOVE}),
    "DfsWeight": (SlowDfs, {}),
    "Oracle": (SlowOracle, {}),
    "Dynamic": (SlowDynamic, {**DYNAMIC, "cut": SlowDynamic.CUT}),
}


class Both:
    """A queue and its model, with the same operations applied to both."""

    def __init__(self, policy: str) -> None:
        make, options = MODELS[policy]
        self.queue, self.model = make_queue(policy, rng=random.Random(1), max_wait=MAX_WAIT, **options), make()
        self.number = 0

    def insert(self, rng: random.Random, now: float) -> None:
        self.number += 1
        candidate = Candidate(self.number, vector(rng.choice(TEXTS)), 64, now, rng.choice("xyz"))
        self.queue.insert(candidate)
        self.model.insert(candidate)

    def admit(self, now: float) -> None:
        chosen = self.queue.select(now)
        if chosen is not None:
            self.queue.add(chosen)
            self.model.add(chosen)

    def end(self, rng: random.Random, back: bool) -> None:
        if self.model.active:
            name = rng.choice(self.model.active).request_id
            (self.queue.requeue if back else self.queue.finish)(name)
            if back:
                self.model.requeue(name)
            else:
                self.model.take(name)

    def remove(self, rng: random.Random) -> None:
        if there := [*self.model.waiting, *self.model.front]:
            name = rng.choice(there).request_id
            self.queue.remove(name)
            self.model.remove(name)

    def step(self, rng: random.Random) -> None:
        outcome = StepOutcome(rng.choice([0.01, 0.05, 0.2]), 1, rng.choice([0, 0, 100]))
        self.queue.observe(outcome)
        self.model.observe(outcome)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", MODELS)
def test_every_answer_equals_that_of_the_model(policy: str, seed: int) -> None:
    rng, both, now = random.Random(f"{policy} {seed}"), Both(policy), 0.0
    crowd = rng.choice([4, 10, 16])  # waiting requests at most
    for _ in range(700):
        now += rng.choice([0.1] * 20 + [0.5, 20.0])
        move = rng.random()
        if move < 0.35 and len(both.queue) < crowd:
            both.insert(rng, now)
        elif move < 0.5:
            both.admit(now)
        elif move < 0.75:
            both.end(rng, back=rng.random() < 0.15)
        elif move < 0.8:
            both.remove(rng)
        else:
            both.step(rng)
        queue, model = both.queue, both.model
        assert queue.select(now) == model.select(now)
        assert (len(queue), queue.active) == (len(model.waiting) + len(model.front), len(model.active))
        if isinstance(queue, DynamicBatching):
            assert isinstance(model, SlowDynamic)
            assert queue.limit == model.limit
