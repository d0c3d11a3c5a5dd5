"""The heuristic's answers against its rules, computed from the whole history."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.batching import BatchState, Decision
from plumage.batching.stop import Heuristic


@settings(max_examples=300, deadline=None)
@given(
    history=st.lists(st.builds(BatchState, *(st.integers(0, 12) for _ in range(6))), max_size=60),
    max_loss=st.integers(0, 4),
    more=st.integers(0, 4),
    many=st.integers(0, 6),
    top=st.integers(1, 8),
)
def test_heuristic_answers_by_its_rules(
    history: list[BatchState], max_loss: int, more: int, many: int, top: int
) -> None:
    """§4.3.2. The floor is counted from the whole history: one more for each admission without a loss."""
    policy = Heuristic(max_loss=max_loss, relaxed_loss=max_loss + more, many_peers=many, max_floor=top)
    for number, state in enumerate(history):
        free = sum(earlier.loss == 0 for earlier in history[:number])
        shared_now, shared_then = state.depth, state.depth - state.loss
        elsewhere = state.sibling_gain > shared_then  # a batch of its siblings would share more
        small = state.batch < min(1 + free, top)
        tolerable = state.loss <= max_loss or (state.peers >= many and state.loss <= max_loss + more)
        nothing_to_lose = not elsewhere and (state.batch <= 1 or shared_now == shared_then)
        add = state.loss == 0 or small or nothing_to_lose or tolerable
        assert (policy.decide(state) is Decision.ADD) is add
