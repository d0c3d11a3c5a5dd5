"""FEATHER's queue in vLLM's own scheduler: the same answers, no lost request, and nothing left at the end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from plumage.batching.limit import BatchLimit
from plumage_bench.baselines.batching import path
from plumage_bench.vllm.engine import Engine, Prompt, plugin_arguments

BLOCK = 32
_expected: dict[str, tuple[int, ...]] = {}  # vLLM's own answers, for tests with a failing hook; computed once
POLICIES = (
    "Bandit", "BanditPaper", "QLearning", "QLearningPaper", "Heuristic", "Predictive", "ChtOrder", "Fcfs", "Lpm",
    "DfsWeight", "Oracle",
)  # fmt: skip


def prompts(seed: int, count: int = 60, *, groups: int = 5, answer: int = 12, aborts: float = 0.0) -> list[Prompt]:
    """Prompts in groups of one prefix each, and a few without a group, that arrive over some steps."""
    rng = random.Random(seed)
    shared = [tuple(rng.choices(range(256), k=BLOCK * rng.randrange(3, 9))) for _ in range(groups)]
    made = []
    for number in range(count):
        prefix = rng.choice([*shared, ()])
        tokens = prefix + tuple(rng.choices(range(256), k=rng.randrange(2, 60)))
        abort = rng.randrange(12) if rng.random() < aborts else None
        made.append(Prompt(f"{seed}-{number}", tokens, rng.randrange(4, 4 + answer), rng.randrange(20), abort))
    return made


def feather(policy: str, **more: Any) -> dict[str, Any]:
    """Settings with only this feature."""
    return plugin_arguments({"feather": {"policy": path(policy)}, "eviction": None, "batchLimit": "Static", **more})


def tokens(engine: Engine, wanted: list[Prompt]) -> Mapping[str, tuple[int, ...]]:
    answers = engine.serve(wanted, steps=5000).answers
    return {name: answer.tokens for name, answer in answers.items() if answer.finished}


def reported(engine: Engine) -> dict[str, Any]:
    """The stats from which the metrics are made."""
    status, body = engine.scheduler.routes.answer("stats", b"")
    assert status == 200
    return dict(json.loads(body))


def nothing_left(engine: Engine) -> None:
    """No request is in the queue or its policy, and each block is free."""
    scheduler = engine.scheduler
    assert len(scheduler.waiting) == len(scheduler.running) == 0
    order = scheduler.plumage.order
    assert order is not None
    assert len(order) == order.active == order.queue.active == len(order.queue) == 0
    assert not order._candidates
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1  # vLLM keeps a null block in use


def test_each_policy_gives_answers_of_vllm(start_engine: Callable[..., Engine]) -> None:
    wanted = prompts(1, 36)
    expected = tokens(start_engine(max_num_seqs=8), wanted)
    assert len(expected) == len(wanted)
    for policy in POLICIES:
        engine = start_engine(max_num_seqs=8, **feather(policy))
        assert tokens(engine, wanted) == expected, policy
        assert engine.scheduler.plumage.guards["feather"].on, engine.scheduler.plumage.guards["feather"].reason
        assert engine.scheduler.plumage.counters.get("admissions") == len(wanted)
        nothing_left(engine)


def test_preemptions_and_aborts_leak_nothing(start_engine: Callable[..., Engine]) -> None:
    few = {"num_gpu_blocks_override": 40, "max_model_len": 512}
    wanted = prompts(2, 50, answer=80, aborts=0.3)
    expected = tokens(start_engine(**few), wanted)
    engine = start_engine(**few, **plugin_arguments({"feather": {"policy": "Bandit"}, "eviction": None}))
    answered = tokens(engine, wanted)
    stayed = {prompt.name for prompt in wanted if prompt.abort is None}
    assert {name: answered[name] for name in stayed} == {name: expected[name] for name in stayed}
    counters = engine.scheduler.plumage.counters
    assert counters.get("preemptions") > 0
    assert counters.get("failures", "feather") == 0
    nothing_left(engine)


def test_request_of_group_precedes_older_request(start_engine: Callable[..., Engine]) -> None:
    """One at a time beside one long request of the group: requests of the group are admitted first, the other request
    last."""
    rng = random.Random(3)
    shared, other = (tuple(rng.choices(range(256), k=BLOCK * 6)) for _ in range(2))
    wanted = [Prompt("first", (*shared, 1), 60), Prompt("second", (*shared, 1), 8, step=1)]
    wanted += [Prompt("stranger", (*other, 2), 3, step=2)]  # waits while the first two run
    wanted += [Prompt(f"sibling {number}", (*shared, number), 3, step=3) for number in range(3)]
    engine = start_engine(max_num_seqs=2, **feather("ChtOrder"))
    began: list[str] = []
    own = engine.scheduler.schedule

    def noted(*given: Any, **named: Any) -> Any:
        output = own(*given, **named)
        began.extend(request.req_id for request in output.scheduled_new_reqs)
        return output

    engine.scheduler.schedule = noted
    engine.serve(wanted, steps=5000)
    names = [name.rsplit("-", 1)[0] for name in began]  # vLLM appends a number to each name
    assert names[:2] == ["first", "second"]
    assert names[-1] == "stranger", names


@pytest.mark.parametrize("method", ["insert", "choose", "pop", "put_back", "match", "observe", "end"])
def test_failing_hook_restores_vllm_queue(start_engine: Callable[..., Engine], method: str) -> None:
    """No request is lost, answers stay the same, and the failure is counted and named."""
    few = {"num_gpu_blocks_override": 24, "max_model_len": 384, "max_num_seqs": 8}
    wanted = prompts(4, 20, answer=70)
    if not _expected:
        _expected.update(tokens(start_engine(**few), wanted))
    engine = start_engine(**few, **feather("Heuristic"))
    order, calls = engine.scheduler.plumage.order, 0
    own = getattr(order, method)

    def fails_later(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("made to fail")
        return own(*given, **named)

    setattr(order, method, fails_later)
    assert tokens(engine, wanted) == _expected
    plumage = engine.scheduler.plumage
    assert not plumage.guards["feather"].on
    assert plumage.guards["feather"].reason == "RuntimeError: made to fail"
    assert plumage.counters.get("failures", "feather") >= 1
    assert len(engine.scheduler.waiting) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"scheduling_policy": "priority"}, "priority"), ({"enable_prefix_caching": False}, "--enable-prefix-caching")],
)
def test_feather_is_off_if_unsupported(
    start_engine: Callable[..., Engine], arguments: dict[str, Any], words: str
) -> None:
    engine = start_engine(**arguments, **feather("Bandit"))
    guard = engine.scheduler.plumage.guards["feather"]
    assert not guard.on
    assert words in guard.reason
    wanted = prompts(5, 10)
    assert len(tokens(engine, wanted)) == len(wanted)


def test_batch_limit_falls_with_preemptions_and_recovers(start_engine: Callable[..., Engine]) -> None:
    settings = plugin_arguments({"feather": None, "eviction": None})
    engine = start_engine(num_gpu_blocks_override=40, max_model_len=512, max_num_seqs=16, **settings)
    limits: list[int] = []
    own = engine.scheduler.schedule

    def noted(*given: Any, **named: Any) -> Any:
        output = own(*given, **named)
        limits.append(engine.scheduler.max_num_active_reqs)
        assert reported(engine)["batchLimit"] == limits[-1]
        return output

    engine.scheduler.schedule = noted
    wanted = prompts(6, 30, answer=90)
    run = engine.serve(wanted, steps=5000)
    assert all(answer.finished for answer in run.answers.values())
    assert engine.scheduler.plumage.counters.get("preemptions") == run.preemptions > 0
    lowest = min(limits)
    assert lowest < 16
    assert max(limits[limits.index(lowest) :]) > lowest


def test_failing_batch_limit_restores_vllm_limit(
    start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the step after the limit had fallen."""
    few, wanted = {"num_gpu_blocks_override": 40, "max_model_len": 512, "max_num_seqs": 16}, prompts(6, 24, answer=90)
    expected = tokens(start_engine(**few), wanted)
    own, fallen = BatchLimit.observe, list[int]()

    def fail_when_fallen(limit: BatchLimit, *given: Any) -> None:
        if limit.limit < 16:
            fallen.append(engine.scheduler.max_num_active_reqs)
            raise RuntimeError("made to fail")
        own(limit, *given)

    monkeypatch.setattr(BatchLimit, "observe", fail_when_fallen)
    engine = start_engine(**few, **plugin_arguments({"feather": None, "eviction": None}))
    assert tokens(engine, wanted) == expected
    assert len(fallen) == 1
    assert fallen[0] < 16
    assert reported(engine)["batchLimit"] == engine.scheduler.max_num_active_reqs == 16
    plumage = engine.scheduler.plumage
    assert not plumage.guards["batchLimit"].on
    assert plumage.guards["batchLimit"].reason == "RuntimeError: made to fail"
    assert plumage.counters.get("failures", "batchLimit") == 1


def test_running_batch_is_sorted_by_prefix(start_engine: Callable[..., Engine]) -> None:
    rng = random.Random(7)
    shared = [tuple(rng.choices(range(256), k=BLOCK * 4)) for _ in range(3)]
    wanted = [Prompt(f"{number}", (*shared[number % 3], number), 30, step=number // 4) for number in range(12)]
    sorting = {"feather": {"policy": "Fcfs", "orderBatch": True}, "eviction": None, "batchLimit": "Static"}
    engine = start_engine(max_num_seqs=12, **plugin_arguments(sorting))
    runner = engine.core.model_executor.driver_worker.worker.model_runner
    orders: list[list[int]] = []
    own = runner._prepare_inputs

    def noted(*given: Any, **named: Any) -> Any:
        orders.append([int(name.split("-")[0]) % 3 for name in runner.input_batch.req_ids])
        return own(*given, **named)

    runner._prepare_inputs = noted
    assert len(tokens(engine, wanted)) == len(wanted)
    changes = [sum(1 for one, other in pairwise(order) if one != other) for order in orders]
    assert max(len(order) for order in orders) == 12
    assert max(changes) <= 2  # three groups, each in one piece
