"""Load is read from vLLM's metrics page."""

from __future__ import annotations

import pytest

from plumage_engine.agent.engine.engine_metrics import EngineLoad, parse_load

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
# TYPE plumage_engine_held_back gauge
plumage_engine_held_back 4.0
"""


def test_vllm_metrics_are_read_and_ranks_are_summed() -> None:
    assert parse_load(PAGE) == EngineLoad(5.0, 7.0, 0.25, 1500.0, 900.0, 211.0, 1.75e9, 4.0)


@pytest.mark.parametrize("text", ["", "<html>", "vllm:num_requests_running", "vllm:num_requests_running{ x", "vllm:"])
def test_page_without_metrics_is_no_load(text: str) -> None:
    assert parse_load(text) == EngineLoad()


def test_adapters_are_those_of_the_newest_series() -> None:
    series = 'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{}",waiting_lora_adapters=""}} {}\n'
    page = series.format("sql,org/chess", 1.7e9) + series.format("sql", 1.6e9)
    assert parse_load(page).running_adapters == ("sql", "org/chess")
    assert parse_load(page + series.format("", 1.8e9)).running_adapters == ()
