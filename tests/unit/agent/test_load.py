"""Load is read from vLLM's metrics page, and stalls are found from loads."""

from __future__ import annotations

import pytest

from plumage_engine.agent.engine.load import EngineLoad, parse_load
from plumage_engine.agent.engine.stall_detection import RestartWatch, StallWatch

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model {x}"} 3.0
vllm:num_requests_running{engine="1",model_name="org/model {x}"} 2.0
vllm:num_requests_waiting{engine="0"} 7.0 1700000000000
vllm:num_requests_waiting_by_reason{reason="capacity"} 5.0
vllm:kv_cache_usage_perc 0.25
vllm:prefix_cache_queries_total{engine="0"} 1.5e+03
vllm:prefix_cache_hits_total{engine="0"} 900.0
vllm:iteration_tokens_total_count{engine="0"} 11
vllm:generation_tokens_total{engine="0"} 200
vllm:request_success_total{finished_reason="stop"} 1
python_info{version="3.11"} 1.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.75e+09
"""


def test_vllm_metrics_are_read_and_ranks_are_summed() -> None:
    assert parse_load(PAGE) == EngineLoad(5.0, 7.0, 0.25, 1500.0, 900.0, 211.0, 1.75e9)


@pytest.mark.parametrize("text", ["", "<html>", "vllm:num_requests_running", "vllm:num_requests_running{ x", "vllm:"])
def test_page_without_metrics_is_no_load(text: str) -> None:
    assert parse_load(text) == EngineLoad()


def test_requests_without_a_step_are_a_stall() -> None:
    watch = StallWatch(10.0)
    busy = EngineLoad(running=1, steps=5)
    assert [watch.is_stalled(busy, 0, now) for now in (0.0, 9.0, 10.0, 30.0)] == [False, False, True, True]
    assert not watch.is_stalled(EngineLoad(running=1, steps=6), 0, 31.0)
    assert not watch.is_stalled(EngineLoad(running=1, steps=6), 1, 45.0), "an event is progress too"
    assert watch.is_stalled(EngineLoad(running=1, steps=6), 1, 55.0)


def test_idle_engine_is_not_stalled_and_the_wait_restarts() -> None:
    watch = StallWatch(10.0)
    idle = EngineLoad(running=0, waiting=3, steps=5)
    assert not watch.is_stalled(idle, 0, 0.0)
    assert not watch.is_stalled(idle, 0, 100.0)
    assert not watch.is_stalled(EngineLoad(running=1, steps=5), 0, 105.0)
    assert watch.is_stalled(EngineLoad(running=1, steps=5), 0, 110.0)


@pytest.mark.parametrize(
    ("before", "after", "another"),
    [
        (EngineLoad(steps=9, started=100.0), EngineLoad(steps=9, started=100.0), False),
        (EngineLoad(steps=9, started=100.0), EngineLoad(steps=0, started=100.5), True),
        (EngineLoad(steps=0, started=100.0), EngineLoad(steps=9, started=100.5), True),
        (EngineLoad(steps=9), EngineLoad(steps=10), False),
    ],
    ids=["same", "restarted", "busy at once", "without start time, same"],
)
def test_restarted_engine_is_reported_once(before: EngineLoad, after: EngineLoad, another: bool) -> None:
    watch = RestartWatch()
    assert watch.has_started(before), "the first start is no restart"
    assert watch.has_started(after) is another
    assert not watch.has_started(after)


@pytest.mark.parametrize("started", [0.0, 100.0], ids=["unknown before", "unknown now"])
def test_fallen_counters_in_two_loads_mean_a_restart_where_no_start_time_is_known(started: float) -> None:
    watch = RestartWatch()
    torn, restarted = EngineLoad(), EngineLoad(steps=3)
    assert watch.has_started(EngineLoad(steps=9, started=started))
    for whole in (10, 11):
        assert not watch.has_started(torn), "a page without its counters"
        assert watch.doubtful
        assert not watch.has_started(EngineLoad(steps=whole, started=started)), "the same start as before"
        assert not watch.doubtful
    assert [watch.has_started(load) for load in (restarted, restarted, restarted)] == [False, True, False]
