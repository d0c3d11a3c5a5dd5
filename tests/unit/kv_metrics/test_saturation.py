"""Throughput by context and batch: which windows count, and the best batch of a class."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumage.kv_metrics import BATCHES, CONTEXTS, Cell, Saturation, class_of, rung_of


def run(
    saturation: Saturation, running: int, tokens: int, *, windows: int = 1, context: int = 1000, **step: int
) -> None:
    """Windows of ten steps of a second each."""
    for _ in range(10 * windows):
        saturation.step(1.0, running, running * context, tokens, step.get("preempted", 0))


def test_classes_end_at_their_lengths() -> None:
    assert [class_of(tokens) for tokens in (1, 2048, 2049, 8192, 32_768, 32_769)] == [
        "2k", "2k", "8k", "8k", "32k", "more",
    ]  # fmt: skip


def test_rung_is_the_nearest_by_ratio() -> None:
    assert [rung_of(batch) for batch in (0, 0.4, 1, 1.4, 1.5, 22, 23, 5000)] == [1, 1, 1, 1, 2, 16, 32, 1024]


def test_best_is_the_batch_with_most_tokens_a_second() -> None:
    saturation = Saturation()
    for running, tokens in ((4, 40), (16, 150), (64, 120)):
        run(saturation, running, tokens, windows=7)
    assert saturation.best("2k") == (16, 150.0)
    assert saturation.best("8k") is None


def test_window_with_a_preemption_sustains_nothing() -> None:
    saturation = Saturation()
    run(saturation, 8, 100, windows=7)
    run(saturation, 32, 300, windows=7)
    run(saturation, 32, 300, windows=15, preempted=1)
    assert saturation.best("2k") == (8, 100.0)
    cells = {batch: (cell.tokens, cell.seconds) for _, batch, cell in saturation.cells()}
    assert cells == {8: (7_000, 70), 32: (21_000, 220)}


def test_slow_steps_miss_the_objective() -> None:
    saturation = Saturation(slowest=0.5)
    run(saturation, 8, 100, windows=7)
    assert saturation.best("2k") is None
    assert Saturation(slowest=1.0).best("2k") is None
    kept = Saturation(slowest=1.0)
    run(kept, 8, 100, windows=7)
    assert kept.best("2k") == (8, 100.0)


def test_few_seconds_are_not_the_best() -> None:
    saturation = Saturation(enough=60)
    run(saturation, 4, 10, windows=6)
    run(saturation, 8, 999, windows=5)
    assert saturation.best("2k") == (4, 10.0)


def test_class_is_that_of_the_mean_prompt() -> None:
    saturation = Saturation(enough=10)
    for number in range(10):
        saturation.step(1.0, 2, 2000 if number % 2 else 60_000, 5, 0)
    assert [(context, batch) for context, batch, _ in saturation.cells()] == [("32k", 2)]


def test_old_windows_are_forgotten_by_halves() -> None:
    cell = Cell()
    for _ in range(720):
        cell.add(1000, 10)
    assert cell.rate == 100
    for _ in range(720):
        cell.add(0, 10)
    assert cell.rate < 30
    assert (cell.tokens, cell.seconds) == (720_000, 14_400)
    assert cell.recent_seconds <= 3610


@given(
    steps=st.lists(
        st.tuples(st.floats(0.001, 30), st.integers(0, 3000), st.integers(0, 10**8), st.integers(0, 3000)), max_size=60
    )
)
def test_cells_are_bounded_and_lose_no_second(steps: list[tuple[float, int, int, int]]) -> None:
    saturation = Saturation(window=5)
    for seconds, running, context, tokens in steps:
        saturation.step(seconds, running, context, tokens, 0)
    cells = list(saturation.cells())
    assert len(cells) <= len(CONTEXTS) * len(BATCHES)
    assert sum(cell.seconds for _, _, cell in cells) <= sum(step[0] for step in steps) + 1e-6
    assert sum(cell.tokens for _, _, cell in cells) <= sum(step[3] for step in steps)
