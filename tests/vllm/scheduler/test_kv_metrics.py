"""The article's metrics in vLLM's scheduler: what they count is what the prompts imply."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from plumage.kv_metrics import PrefillCost
from plumage_bench.vllm.engine import Engine, Prompt, plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine
from plumage_engine.vllm.kv_metrics import KvMetrics, cost_of
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics

SIZE = 32
PLAIN = {"feather": None, "eviction": None, "batchLimit": "Static"}


class Clock:
    """Advances only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(model: Path, clock: Clock, blocks: int = 64, settings: Any = PLAIN, **arguments: Any) -> PretendEngine:
    engine = PretendEngine(model, blocks=blocks, block_size=SIZE, **arguments, **plugin_arguments(settings))
    of(engine)._wall = engine.scheduler.plumage._clock = clock
    return engine


def of(engine: Any) -> KvMetrics:
    metrics = engine.scheduler.plumage._kv_metrics
    assert metrics is not None
    return metrics


def cost(engine: Any) -> PrefillCost:
    found = cost_of(engine.scheduler.vllm_config.model_config.hf_text_config)
    assert found is not None
    return found


def serve(engine: PretendEngine, name: str, tokens: list[int], answer: int = 2) -> None:
    engine.add(name, tokens, answer)
    engine.finish()


def text(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(3, 250), k=tokens)


def test_flops_of_the_tiny_model(tiny_model: Path) -> None:
    flops = cost(made(tiny_model, Clock()))
    assert flops.row == 2 * 2 * (4 * 64 * 64 + 3 * 64 * 128)  # two layers, hidden size 64, MLP of 128
    assert flops.pair == 4 * 2 * 64


@pytest.mark.parametrize("chunk", [512, 48])
def test_prompt_that_was_evicted_is_repeated_work(tiny_model: Path, chunk: int) -> None:
    engine = made(tiny_model, Clock(), blocks=16, max_num_batched_tokens=chunk, max_num_seqs=4)
    flops, metrics, prompt = cost(engine), of(engine), text(1, 3 * SIZE + 9)
    serve(engine, "first", prompt)
    assert (metrics.work.total, metrics.work.repeated) == (pytest.approx(flops.flops(0, 105)), 0)
    serve(engine, "cached", prompt)
    assert engine.cached["cached"][0] == 3 * SIZE
    assert metrics.work.total == pytest.approx(flops.flops(0, 105) + flops.flops(96, 105))
    assert (metrics.work.repeated, metrics.evictions) == (0, 0)
    before = metrics.work.total
    serve(engine, "flood", text(2, 14 * SIZE))
    assert metrics.evictions > 0
    assert metrics.work.repeated == 0
    serve(engine, "again", prompt)
    assert engine.cached["again"][0] == 0
    assert metrics.work.total - before == pytest.approx(flops.flops(0, 14 * SIZE) + flops.flops(0, 105))
    assert metrics.work.repeated == pytest.approx(flops.flops(0, 3 * SIZE))  # nine tokens fill no block


@pytest.mark.parametrize("chunk", [512, SIZE - 1])  # with the second the last step of prefill has one token
def test_history_that_decoding_computed_is_repeated_work(tiny_model: Path, chunk: int) -> None:
    engine = made(tiny_model, Clock(), blocks=16, max_num_batched_tokens=chunk, max_num_seqs=4)
    flops, metrics = cost(engine), of(engine)
    serve(engine, "turn", text(1, SIZE), 3 * SIZE)
    history = list(engine.requests["turn"].all_token_ids)
    assert len(history) == 4 * SIZE
    serve(engine, "flood", text(2, 14 * SIZE))
    before = metrics.work.repeated
    serve(engine, "next turn", history + text(3, SIZE))
    # The last block of the history ends with a token that no step has read: its KV was never computed.
    assert metrics.work.repeated - before == pytest.approx(flops.flops(0, 3 * SIZE))


def test_work_equals_a_count_from_the_steps(tiny_model: Path) -> None:
    """Many requests with shared prefixes, preemptions and aborts, in both orders of eviction."""
    for settings in (PLAIN, {}):
        engine = made(tiny_model, Clock(), blocks=26, settings=settings, max_num_seqs=8, max_num_batched_tokens=96)
        flops, metrics, rng = cost(engine), of(engine), random.Random(5)
        total = repeated = 0.0
        computed: set[bytes] = set()
        preempted = 0
        for number in range(60):
            prefix = text(rng.randrange(4), SIZE * rng.randrange(1, 6))
            engine.add(f"{number}", prefix + text(100 + number, rng.randrange(1, 40)), rng.randrange(1, 150))
        while engine.scheduler.has_requests():
            output = engine.step()
            preempted += len(output.preempted_req_ids or ())
            for start, end, request in chunks(engine, output):
                total += flops.flops(start, end)
                for at in range(start, end):
                    block = at // SIZE
                    if block < len(request.block_hashes) and request.block_hashes[block] in computed:
                        repeated += flops.flops(at, at + 1)
                computed |= set(request.block_hashes[start // SIZE : end // SIZE])
            for request in engine.requests.values():  # what decoding has filled
                if request.num_computed_tokens > request.num_prompt_tokens:
                    computed |= set(request.block_hashes[: request.num_computed_tokens // SIZE])
            if engine.steps == 30:
                engine.abort("0")
                engine.abort("59")
        assert preempted > 3
        assert repeated > 0.05 * total
        assert metrics.work.total == pytest.approx(total)
        assert metrics.work.repeated == pytest.approx(repeated)
        assert not metrics._prompts
        assert not metrics._reached
        assert not metrics.latency._began
        assert metrics._context == 0


def chunks(engine: PretendEngine, output: Any) -> Iterator[tuple[int, int, Any]]:
    """(start, end, request) of the prefill in a step that has ended: its answer has one token more since."""
    fresh = {new.req_id for new in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
    for name, tokens in output.num_scheduled_tokens.items():
        request = engine.requests[name]
        end = request.num_computed_tokens
        if tokens > 1 or name in fresh:
            yield end - tokens, end, request


def test_usage_deviates_over_the_time_of_steps(tiny_model: Path) -> None:
    clock = Clock()
    engine = made(tiny_model, clock)
    metrics = of(engine)
    own, seen = engine.scheduler.update_from_output, []

    def device(output: Any, sampled: Any) -> Any:
        if output.total_num_scheduled_tokens:
            seen.append(engine.scheduler.kv_cache_manager.usage)
        clock.now += 1.0
        return own(output, sampled)

    engine.scheduler.update_from_output = device
    engine.add("long", text(1, 300), 40)
    for _ in range(10):
        engine.step()
    engine.add("short", text(2, 200), 4)
    engine.finish()
    clock.now += 500.0  # idle
    serve(engine, "later", text(3, 40))
    assert metrics.usage.seconds == len(seen)
    mean = sum(seen) / len(seen)
    spread = (sum((one - mean) ** 2 for one in seen) / len(seen)) ** 0.5
    assert metrics.usage.deviation == pytest.approx(spread)
    assert spread > 0.01


def test_latency_is_kept_apart_where_blocks_were_evicted(tiny_model: Path) -> None:
    clock = Clock()
    engine = made(tiny_model, clock, blocks=16)
    metrics = of(engine)
    clock.now = 3.0
    serve(engine, "calm", text(1, 4 * SIZE))
    serve(engine, "fills the cache", text(2, 10 * SIZE))
    clock.now = 40.0
    serve(engine, "evicts", text(3, 8 * SIZE))
    engine.add("gone", text(4, 8 * SIZE), 4)
    engine.step()
    engine.abort("gone")
    assert metrics.latency.without.sum == 6.0
    assert (metrics.latency.under.count, metrics.latency.under.sum) == (1, 40.0)


def test_page_has_every_figure(tiny_model: Path) -> None:
    clock = Clock()
    engine = made(tiny_model, clock, blocks=16)
    metrics = of(engine)
    own, steps = engine.scheduler.update_from_output, []

    def device(output: Any, sampled: Any) -> Any:
        clock.now += 2.0
        steps.append(output.total_num_scheduled_tokens > 0)
        return own(output, sampled)

    engine.scheduler.update_from_output = device
    for number in range(4):
        serve(engine, f"{number}", text(number % 2, 7 * SIZE), 12)
    status, body = engine.scheduler.routes.answer("stats", b"")
    assert status == 200
    page, registry = PluginMetrics(), CollectorRegistry()
    page.stats = json.loads(body)
    registry.register(page)
    found = {
        (sample.name.removeprefix("plumage_engine_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    assert found["prefill_flops_total",] == pytest.approx(metrics.work.total)
    assert found["repeated_prefill_flops_total",] == pytest.approx(metrics.work.repeated)
    assert found["step_seconds_total",] == 2.0 * sum(steps)
    mean = found["kv_usage_seconds_total",] / found["step_seconds_total",]
    square = found["kv_usage_squared_seconds_total",] / found["step_seconds_total",]
    assert (square - mean**2) ** 0.5 == pytest.approx(metrics.usage.deviation)
    assert found["sustained_seconds_total", "2k", "1"] == pytest.approx(found["step_seconds_total",], abs=10)
    assert found["optimal_batch", "2k"] == 1
    assert found["saturation_tokens_per_second", "2k"] == pytest.approx(0.5)  # one token each two seconds
    assert sum(found["request_seconds_count", evicting] for evicting in ("true", "false")) == 4
    assert found["request_seconds_bucket", "true", "+Inf"] == found["request_seconds_count", "true"]


def test_failure_leaves_vllm_as_it_was(tiny_model: Path) -> None:
    engine = made(tiny_model, Clock(), blocks=16)
    serve(engine, "before", text(1, 100))
    of(engine).work = None  # type: ignore[assignment]
    for number in range(6):
        serve(engine, f"{number}", text(number, 5 * SIZE))
    guard = engine.scheduler.plumage.guards["kvMetrics"]
    assert not guard.on
    assert "_maybe_evict_cached_block" not in vars(engine.pool)
    assert engine.scheduler.plumage.kv_metrics() == {}


def test_hook_that_something_else_removed_ends_no_engine(tiny_model: Path) -> None:
    """It runs inside vLLM's allocation of blocks, where no guard catches an error."""
    engine = made(tiny_model, Clock(), blocks=9)
    serve(engine, "first", text(1, 4 * SIZE))
    later = KvMetrics(engine.scheduler)  # made while the first one waits for an eviction
    later._watch_evictions()
    serve(engine, "second", text(2, 6 * SIZE))
    assert later.evictions == 1
    assert "_maybe_evict_cached_block" not in vars(engine.pool)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_real_engine_counts_what_its_prompts_imply(start_engine: Callable[..., Engine], asynchronous: bool) -> None:
    """Two prompts share 256 tokens. The second arrives when the first is cached."""
    engine = start_engine(block_size=32, async_scheduling=asynchronous, **plugin_arguments({}))
    shared = text(1, 256)
    prompts = [Prompt(f"{number}", tuple(shared + text(2 + number, 45)), 6, step=8 * number) for number in range(2)]
    answers = engine.serve(prompts).answers
    metrics, flops = of(engine), cost(engine)
    assert [answers[name].cached for name in ("0", "1")] == [0, 256]
    assert metrics.work.total == pytest.approx(flops.flops(0, 301) + flops.flops(256, 301))
    assert metrics.work.repeated == 0
    assert (metrics.latency.without.count, metrics.latency.under.count) == (2, 0)
    assert metrics.usage.seconds > 0
    assert not metrics._prompts
    assert not metrics._reached
