"""vLLM's second model runner keeps the order of the scheduler's output, which `orderBatch` relies on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu import model_runner

from plumage.settings.plugin_config import PluginSettings
from plumage_engine.vllm.compat.second_runner import problems
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather.row_order import OutputOrder
from plumage_engine.vllm.features import Features

_SORTED = PluginSettings.model_validate(
    {"feather": {"policy": "Fcfs", "orderBatch": True}, "eviction": None, "batchLimit": "Static"}
)


def output_of(blocks: dict[str, list[int]], tokens: dict[str, int]) -> SchedulerOutput:
    """vLLM's own classes, with new requests."""
    made = SchedulerOutput.make_empty()
    made.scheduled_new_reqs = [
        NewRequestData(
            req_id=name, prompt_token_ids=[], mm_features=[], sampling_params=None, pooling_params=None,
            block_ids=(own,), num_computed_tokens=0, lora_request=None,
        )
        for name, own in blocks.items()
    ]  # fmt: skip
    made.num_scheduled_tokens = tokens
    return made


def test_runner_puts_decodes_in_the_order_of_the_output() -> None:
    assert problems() == []
    output = output_of({"a": [1], "b": [2], "c": [1], "p": [2]}, {"a": 1, "b": 1, "c": 1, "p": 30})
    assert isinstance(output.scheduled_cached_reqs, CachedRequestData)
    OutputOrder().scheduled(output)
    batch = model_runner.sort_batch_req_ids(output.num_scheduled_tokens, {}, 1)
    assert list(batch) == ["a", "c", "b", "p"]


@pytest.mark.parametrize("gone", [True, False])
def test_changed_runner_leaves_the_batch_unsorted(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    if gone:
        monkeypatch.delattr(model_runner, "sort_batch_req_ids")
    else:
        monkeypatch.setattr(model_runner, "sort_batch_req_ids", lambda tokens, *_: sorted(tokens))
    features = features_of_second_runner()
    features._order_batch(_SORTED.feather)
    assert not features.guards["batchOrder"].on
    assert features.guards["batchOrder"].reason
    assert not features._at_schedule


def features_of_second_runner() -> Features:
    """Features of a scheduler whose workers are other processes."""
    parallel = SimpleNamespace(distributed_executor_backend="mp")
    config = SimpleNamespace(use_v2_model_runner=True, parallel_config=parallel)
    features = Features.__new__(Features)
    features.guards, features._at_schedule = {}, []
    features.counters, features._scheduler = Counters(), SimpleNamespace(vllm_config=config)  # type: ignore[assignment]
    return features


def test_scheduler_sorts_for_a_second_runner_in_any_process() -> None:
    features = features_of_second_runner()
    features._order_batch(_SORTED.feather)
    assert features.guards["batchOrder"].on
    assert len(features._at_schedule) == 1
