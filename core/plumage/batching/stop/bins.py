"""States small enough to learn in minutes: (b, Δ, w) in bins (FEATHER §4.3.1).

b and w, the batch and the waiting peers, in exponential bins; Δ, the loss of the tip, in coarse thresholds relative to
the tip: losing 2 of 4 levels is not losing 2 of 80.

Ours: a mixed batch has no tip to lose, so in the paper Δ is 0 for any candidate. Where a batch of the candidate and its
siblings would share more, Δ has a value of its own. w then counts those siblings.
"""

from __future__ import annotations

from plumage.batching.interface import BatchState

__all__ = ["Bin", "discretise"]

Bin = tuple[int, int, int]

_MOST = 10  # exponential bins end at 2^10 requests
_LOSS_EIGHTHS = (0, 1, 4, 7)  # thresholds of the loss, in eighths of the tip
_MIXED = 5  # nothing is lost, because the batch shares next to nothing; but the candidate's siblings share much


def discretise(state: BatchState) -> Bin:
    """(b̂, Δ̂, ŵ): b̂ and ŵ in 0..10, Δ̂ in 0..5 (0 means free, 5 that the batch is mixed already)."""
    if state.loss <= 0 and state.dilutes:
        return _log2(state.batch), _MIXED, _log2(state.siblings)
    return _log2(state.batch), _loss(state.loss, state.depth), _log2(state.peers)


def _log2(count: int) -> int:
    return min(count.bit_length(), _MOST)


def _loss(loss: int, depth: int) -> int:
    if loss <= 0:
        return 0
    eighths = 8 * loss / max(depth, 1)
    return sum(eighths > threshold for threshold in _LOSS_EIGHTHS)
