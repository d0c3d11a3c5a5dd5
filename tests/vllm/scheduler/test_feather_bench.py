"""What `plumage bench vllm-feather` must not do to the policies that it compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plumage_bench.benches.vllm_feather.cells import BLOCK, Cell
from plumage_bench.benches.vllm_feather.contenders import FCFS, LEARNED, OFF, ORDER
from plumage_bench.benches.vllm_feather.play import Bench
from plumage_bench.device import CPU
from plumage_bench.vllm.engine import Engine, plugin_arguments
from plumage_engine.vllm.feather import row_order


def test_policy_sees_no_warm_up_requests(start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """If a policy took these requests, one of each group, for active ones, its first batch would be mixed."""
    monkeypatch.setattr(row_order, "enabled", True)  # the benchmark changes it; later tests need the old value
    cell = Cell("two groups", 2, prefix=2 * BLOCK, requests=4, output=2, batch=2)
    few = {"block_size": BLOCK, "num_gpu_blocks_override": cell.blocks, "max_model_len": 1024, "max_num_seqs": 2}
    engine = start_engine(**few, **plugin_arguments(OFF))
    bench = Bench(engine, cell, (FCFS, ORDER, LEARNED), CPU)
    bench.warm()
    for contender in (ORDER, LEARNED):
        order = bench._parts[contender.label][0].order
        assert order.active == order.queue.active == 0, contender.label
        assert bench.play(contender, 1).tokens == cell.requests * cell.output
        assert order.queue.tip_loss == 0, contender.label


def test_contenders_of_a_round_find_no_prompt_of_each_other(
    start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without sharing all contenders of a round send the same prompts: the cache must not serve the second."""
    monkeypatch.setattr(row_order, "enabled", True)
    cell = Cell("nothing shared", 0, prefix=2 * BLOCK, requests=4, output=1, batch=2)
    engine = start_engine(
        block_size=BLOCK, num_gpu_blocks_override=64, max_model_len=1024, max_num_seqs=2, **plugin_arguments(OFF)
    )
    bench = Bench(engine, cell, (FCFS, ORDER), CPU)
    cached, step = [], engine.llm.step

    def noted() -> Any:
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(engine.llm, "step", noted)
    for contender in (FCFS, ORDER):
        bench.play(contender, 1)
    assert cached == [0] * 8
