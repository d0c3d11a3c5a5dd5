"""A user's own policies inside vLLM: the examples of `docs/how-to/own-policy.md`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.vllm.scheduler.test_feather_in_vllm import nothing_left, prompts, tokens

from plumage_bench.vllm.engine import Engine, plugin_arguments

EXAMPLES = Path(__file__).parents[3] / "examples" / "policies"
SMALL = {"num_gpu_blocks_override": 24, "max_model_len": 384, "max_num_seqs": 8}


def test_own_policies_decide_and_answers_equal_vllm(
    start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    wanted = prompts(7, 40, answer=30)
    expected = tokens(start_engine(**SMALL), wanted)
    own = {
        "feather": {"policy": "own_stop:StrangersInSmallBatches", "chunkTokens": 32, "options": {"small": 2}},
        "eviction": {"policy": "own_eviction:UsesAreSeconds"},
    }
    engine = start_engine(**SMALL, **plugin_arguments(own))
    assert tokens(engine, wanted) == expected
    plumage = engine.scheduler.plumage
    assert plumage.guards["feather"].on, plumage.guards["feather"].reason
    assert plumage.guards["eviction"].on, plumage.guards["eviction"].reason
    assert plumage.counters.get("stops") > 0
    assert plumage.counters.get("evictions", "own_eviction:UsesAreSeconds") > 0
    nothing_left(engine)
