"""vLLM's engine, scheduler and block pool over the virtual GPU, in this process and in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from plumage.errors import ConfigurationError, StateError
from plumage_bench.vllm.engine import Engine, Prompt

EXECUTOR = "plumage_bench.virtual_gpu.executor.VirtualGpuExecutor"
BLOCK = 16

Start = Callable[..., Engine]


def arguments(device: Mapping[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    """EngineArgs for a virtual GPU in virtual time, with vLLM's own scheduler."""
    settings = {"feather": None, "eviction": None}
    return {
        "distributed_executor_backend": EXECUTOR,
        "additional_config": {"plumage": settings, "virtualGpu": {"clock": "Virtual", **(device or {})}},
        "block_size": BLOCK,
        **others,
    }


def prompts(count: int, seed: int = 0, *, groups: int = 3, shared: int = 10 * BLOCK, answer: int = 40) -> list[Prompt]:
    rng = random.Random(seed)
    prefixes = [rng.choices(range(256), k=shared) for _ in range(groups)]
    return [
        Prompt(f"{number}", (*prefixes[number % groups], *rng.choices(range(256), k=9)), answer, step=number // 2)
        for number in range(count)
    ]


def spent(engine: Engine) -> None:
    """Nothing is left on the device and every block is free."""
    engine.llm.step()  # the device learns of the last request that ended
    device = engine.core.model_executor
    assert (device.residents, len(device.link)) == (0, 0)
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


def answers(engine: Engine, asked: list[Prompt]) -> dict[str, tuple[int, ...]]:
    run = engine.serve(asked)
    return {name: answer.tokens for name, answer in run.answers.items()}


@pytest.fixture(scope="module")
def spoken() -> dict[str, dict[str, tuple[int, ...]]]:
    """Answers by kind of scheduling, for the test that compares them."""
    return {}


@pytest.mark.parametrize(
    ("way", "device", "others"),
    [
        ("plain", {}, {}),
        ("asynchronous", {"asyncScheduling": True}, {}),
        ("chunked", {"preset": "cpu"}, {"max_num_batched_tokens": 64}),
        ("preempted", {"numBlocks": 66}, {}),
        ("preempted, asynchronous", {"numBlocks": 66, "asyncScheduling": True}, {}),
    ],
)
def test_step_shapes_keep_answers(
    way: str, device: dict[str, Any], others: dict[str, Any], start_engine: Start, spoken: dict[str, Any]
) -> None:
    engine = start_engine(**arguments(device, max_model_len=512, **others))
    assert engine.core.async_scheduling is device.get("asyncScheduling", False)
    run = engine.serve(prompts(24))
    assert (run.preemptions > 0) is ("preempted" in way)
    assert all(answer.finished and len(answer.tokens) == 40 for answer in run.answers.values())
    spoken[way] = {name: answer.tokens for name, answer in run.answers.items()}
    assert spoken[way] == next(iter(spoken.values()))
    assert len(set(spoken[way].values())) == 24
    engine.serve([])
    spent(engine)


def test_time_equals_cost_model(start_engine: Start) -> None:
    engine = start_engine(**arguments())
    device = engine.core.model_executor
    engine.serve(prompts(6))
    assert device.clock.now() == pytest.approx(device.busy_seconds)
    before, steps = device.busy_seconds, device.steps
    engine.serve([Prompt("long", tuple(range(200)), 11)])
    lone = (device.busy_seconds - before) / (device.steps - steps)
    assert device.steps - steps == 11
    assert 0.0249 < lone < 0.026  # 3 ms, 21.9 ms for the weights, and a first step with 0.148 ms a token at most


def test_next_turn_finds_answer_in_cache(start_engine: Start) -> None:
    engine = start_engine(**arguments())
    first = Prompt("first", tuple(range(100)), 60)
    said = engine.serve([first]).answers["first"].tokens
    run = engine.serve([Prompt("second", (*first.tokens, *said, *range(20)), 1)])
    assert run.answers["second"].cached == (100 + 59) // BLOCK * BLOCK  # the last token has no KV yet


def test_aborts_free_blocks(start_engine: Start) -> None:
    engine = start_engine(**arguments({"numBlocks": 80}, max_model_len=512))
    asked = [
        Prompt(one.name, one.tokens, one.answer, one.step, abort=number % 7 if number % 2 else None)
        for number, one in enumerate(prompts(40))
    ]
    run = engine.serve(asked)
    assert {len(run.answers[one.name].tokens) for one in asked if one.abort is None} == {40}
    assert any(len(run.answers[one.name].tokens) < 40 for one in asked)
    spent(engine)


def test_answer_ends_at_end_token(start_engine: Start) -> None:
    from vllm import SamplingParams

    engine = start_engine(**arguments({"answerTokens": 30}))
    for number in range(40):
        engine.llm.add_request(f"{number}", {"prompt_token_ids": [number, 1]}, SamplingParams(max_tokens=500))
    lengths = []
    while engine.llm.has_unfinished_requests():
        ended = [output.outputs[0] for output in engine.llm.step() if output.finished]
        assert {one.finish_reason for one in ended} <= {"stop"}
        lengths += [len(one.token_ids) for one in ended]
    assert 15 < sum(lengths) / len(lengths) < 60


@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning")  # vLLM's own call
@pytest.mark.parametrize("asynchronous", [False, True])
def test_answer_obeys_grammar(asynchronous: bool, start_engine: Start) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = start_engine(**arguments({"asyncScheduling": asynchronous}))
    wanted = StructuredOutputsParams(regex="(ab|cd){3}[0-9]")
    engine.llm.add_request("a", {"prompt_token_ids": [1, 2]}, SamplingParams(max_tokens=20, structured_outputs=wanted))
    engine.llm.add_request("b", {"prompt_token_ids": [1, 2]}, SamplingParams(max_tokens=20, ignore_eos=True))
    ended = {}
    while engine.llm.has_unfinished_requests():
        ended |= {output.request_id: output.outputs[0].text for output in engine.llm.step() if output.finished}
    assert len(ended["a"]) == 7
    assert set(ended["a"][:6]) <= set("abcd")
    assert ended["a"][6].isdigit()
    assert len(ended["b"]) == 20


def offloading(**device: Any) -> dict[str, Any]:
    from vllm.config import KVTransferConfig

    host = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 64 * 2**20},
    )
    return arguments({"numBlocks": 60, **device}, max_model_len=512, max_num_seqs=4, kv_transfer_config=host)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_host_copies_take_modelled_time(asynchronous: bool, start_engine: Start) -> None:
    engine = start_engine(**offloading(asyncScheduling=asynchronous, overrides={"pcie": 1e9}))
    device, moved = engine.core.model_executor, []
    own = device.link.start
    device.link.start = lambda key, size, now, *, down: (moved.append((down, size)), own(key, size, now, down=down))[1]
    asked = [Prompt(f"{number}", tuple([number] * 300), 8) for number in range(6)]
    first = {one.name: engine.serve([one]).answers[one.name].tokens for one in asked}
    begun = device.clock.now()
    again = engine.serve([Prompt("again", asked[0].tokens, 8)])
    assert again.answers["again"].tokens == first["0"]
    loads = [size for down, size in moved if not down]
    assert sum(loads) == 18 * BLOCK * 131_072  # its 18 full blocks, in bytes of the modelled device
    assert any(down for down, _ in moved)
    assert device.clock.now() - begun > sum(loads) / 1e9
    engine.serve([Prompt("last", (1, 2, 3), 40)])  # runs until the transfers under way are reported
    spent(engine)


def test_aborts_during_transfers_free_blocks(start_engine: Start) -> None:
    engine = start_engine(**offloading(overrides={"pcie": 1e8}))
    asked = [Prompt(f"{number}", tuple([number] * 300), 8) for number in range(6)]
    for one in asked:
        engine.serve([one])
    engine.serve([Prompt(f"again {one.name}", one.tokens, 8, abort=number) for number, one in enumerate(asked)])
    engine.serve([Prompt("last", (1, 2, 3), 200)])
    spent(engine)


def test_connector_with_unknown_jobs_is_refused(start_engine: Start) -> None:
    engine = start_engine(**arguments())
    with pytest.raises(StateError, match="object asks for: it knows the OffloadingConnector's jobs only"):
        engine.core.model_executor._transfers.order(object())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative decoding"),
        ({"additional_config": {"virtualGpu": {"preset": "tpu"}}}, "choose one of gpu, cpu"),
    ],
)
def test_unmodelled_option_is_refused_at_start(others: dict[str, Any], message: str, start_engine: Start) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start_engine(**{**arguments(), **others})


def test_sleep_is_refused(start_engine: Start) -> None:
    engine = start_engine(**arguments())
    with pytest.raises(ConfigurationError, match="without --enable-sleep-mode"):
        engine.core.sleep(1)
    engine.core.resume_scheduler()
    assert len(answers(engine, prompts(2))) == 2
    with pytest.raises(ConfigurationError, match="no worker that could do 'save_sharded_state'"):
        engine.core.save_sharded_state("folder")
