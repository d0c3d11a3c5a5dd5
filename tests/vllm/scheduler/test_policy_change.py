"""The batching policy changes while vLLM works: answers stay the same, no request is lost, and the new policy
decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from tests.vllm.scheduler.test_feather_in_vllm import feather, nothing_left, prompts, tokens

from plumage.settings.engine_policies import FeatherConfig
from plumage_bench.vllm.engine import Engine, plugin_arguments

_TIGHT = {"num_gpu_blocks_override": 24, "max_model_len": 384, "max_num_seqs": 8}  # requests are preempted


def _changing(engine: Engine, policies: Iterator[FeatherConfig | None], every: int) -> None:
    """Changes to another policy before each `every`th step."""
    scheduler, steps = engine.scheduler, 0
    own = scheduler.schedule

    def schedule(*given: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps % every == 0:
            assert scheduler.plumage.change_feather(next(policies))
        return own(*given, **named)

    scheduler.schedule = schedule


def test_policy_changes_keep_answers(start_engine: Callable[..., Engine]) -> None:
    """Starting with vLLM's own queue."""
    wanted = prompts(4, 24, answer=80)
    expected = tokens(start_engine(**_TIGHT), wanted)
    engine = start_engine(**_TIGHT, **plugin_arguments({"feather": None, "eviction": None, "batchLimit": "Static"}))
    others = (FeatherConfig(policy="Heuristic"), None, FeatherConfig(policy="ChtOrder", chunk_tokens=32))
    _changing(engine, cycle((*others, FeatherConfig(policy="QLearning"))), every=7)
    assert tokens(engine, wanted) == expected
    counters = engine.scheduler.plumage.counters
    assert counters.get("preemptions") > 0
    assert counters.get("failures", "feather") == 0
    nothing_left(engine)


def test_new_policy_decides_with_empty_table(start_engine: Callable[..., Engine]) -> None:
    engine = start_engine(max_num_seqs=8, **feather("Bandit"))
    features, routes = engine.scheduler.plumage, engine.scheduler.routes
    tokens(engine, prompts(12))
    _, before = routes.answer("tables", b"")
    assert routes.answer("feather", b'{"policy": "QLearning", "options": {"alpha": 0.3}}') == (204, b"")
    assert features.order.queue.policy is not None
    status, table = routes.answer("tables", b"")
    assert status == 200
    assert b'"rows":[]' in table
    assert b'"policy":"QLearning"' in table
    assert table[:40] != before[:40], "it counts as another engine where learned tables are shared"
    tokens(engine, prompts(13))
    assert features.counters.get("failures", "feather") == 0
    nothing_left(engine)


def test_invalid_policy_changes_nothing(start_engine: Callable[..., Engine]) -> None:
    engine = start_engine(max_num_seqs=8, **feather("Heuristic"))
    routes, order = engine.scheduler.routes, engine.scheduler.plumage.order
    for body in (b"{", b'{"policy": "Banditt"}', b'{"policy": "Bandit", "options": {"alpha": 1}}', b'{"chunk": 1}'):
        status, said = routes.answer("feather", body)
        assert status == 400, said
    status, said = routes.answer("feather", b'{"policy": "%s"}' % (b"B" * 4_000_000))
    assert (status, len(said) < 10_000) == (400, True), "a message does not repeat megabytes"
    assert routes.answer("feather", b'{"policy": "Heuristic"}') == (204, b"")
    assert engine.scheduler.plumage.order is order, "what is so already is left alone"


def test_policy_change_keeps_feather_off(start_engine: Callable[..., Engine]) -> None:
    engine = start_engine(scheduling_policy="priority", **feather("Bandit"))
    status, said = engine.scheduler.routes.answer("feather", b'{"policy": "Heuristic"}')
    assert status == 400
    assert b"priority sets the order" in said
