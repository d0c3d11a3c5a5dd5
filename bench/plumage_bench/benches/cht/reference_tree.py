"""A slow, simple Chunked Hash Tree: sets and loops over all requests, from the definitions of FEATHER §4.2."""

from __future__ import annotations

from plumage.batching.interface import Candidate
from plumage.batching.tree import Best, CandidateOrder

__all__ = ["ReferenceTree"]


class ReferenceTree:
    """What `ChunkedHashTree` must answer. Every call costs O(requests × levels)."""

    def __init__(self, order: CandidateOrder) -> None:
        self.order = order
        self.waiting: dict[object, Candidate] = {}
        self.running: dict[object, Candidate] = {}
        self.sequence: dict[object, int] = {}
        self.admitted: tuple[object, ...] = ()  # the vector of the last admission, which may have ended

    def insert(self, candidate: Candidate) -> None:
        self.sequence[candidate.request_id] = len(self.sequence)
        self.waiting[candidate.request_id] = candidate

    def add(self, request_id: object) -> None:
        self.running[request_id] = self.waiting.pop(request_id)
        self.admitted = self.vector(self.running[request_id])

    def finish(self, request_id: object) -> None:
        del self.running[request_id]

    def remove(self, request_id: object) -> None:
        self.waiting.pop(request_id, None)

    def vector(self, candidate: Candidate) -> tuple[object, ...]:
        return candidate.vector or (("stranger", candidate.request_id),)

    @property
    def tip(self) -> tuple[object, ...]:
        vectors = [self.vector(c) for c in self.running.values()]
        depth = 0
        while vectors and all(len(v) > depth and v[depth] == vectors[0][depth] for v in vectors):
            depth += 1
        return vectors[0][:depth] if vectors else ()

    @property
    def last(self) -> tuple[object, ...]:
        """Of the request that was admitted last, of those running."""
        return self.vector(list(self.running.values())[-1])

    @property
    def working_set(self) -> set[tuple[int, object]]:
        return {(i, h) for c in self.running.values() for i, h in enumerate(self.vector(c))}

    def shared_with(self, tip: tuple[object, ...], candidate: Candidate) -> int:
        vector, depth = self.vector(candidate), 0
        for level in tip:
            if depth >= len(vector) or vector[depth] != level:
                break
            depth += 1
        return depth

    def shared_with_batch(self, candidate: Candidate) -> int:
        return max(self.shared_with(self.vector(one), candidate) for one in self.running.values())

    def find_best(self) -> Best | None:
        if not self.waiting:
            return None
        tip, working_set = self.tip, self.working_set

        def missing(candidate: Candidate) -> int:
            return sum(level not in working_set for level in enumerate(self.vector(candidate)))

        def rank(candidate: Candidate) -> tuple[float, ...]:
            age = (candidate.arrival, self.sequence[candidate.request_id])
            if self.order is CandidateOrder.PAPER:
                return (missing(candidate), *age)
            of_last = self.shared_with(self.admitted, candidate)
            if not self.running:
                return (-of_last, missing(candidate) if of_last else 0, *age)
            loss = len(tip) - self.shared_with(tip, candidate)
            new = len(self.vector(candidate)) - max(of_last, self.shared_with_batch(candidate))
            return (loss, -self.shared_with(self.last, candidate), new, *age)

        best = min(self.waiting.values(), key=rank)
        vector = self.vector(best)
        after = self.shared_with(tip, best) if self.running else len(vector)
        peers = sum(
            self.vector(c)[:after] == vector[:after] for c in self.waiting.values() if c is not best and after > 0
        )
        before = len(tip) if self.running else after
        return Best(best.request_id, before, after, peers, missing(best))
