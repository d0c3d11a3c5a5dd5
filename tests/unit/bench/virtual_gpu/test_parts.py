"""The virtual GPU's clock, link, answers, grammar and settings, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from plumage.errors import ConfigurationError
from plumage_bench.virtual_gpu.clock import VirtualClock
from plumage_bench.virtual_gpu.config import VirtualGpuConfig, read_config
from plumage_bench.virtual_gpu.grammar import Grammar
from plumage_bench.virtual_gpu.link import Link
from plumage_bench.virtual_gpu.pending import Pending
from plumage_bench.virtual_gpu.speech import Speech
from plumage_engine.simulator.engine.device import GPU

WORDS = list(range(100, 200))


def speech(**options: int) -> Speech:
    return Speech(WORDS, **{"seed": 1, **options})


def test_answer_depends_on_prompt_and_seeds_only() -> None:
    one, same = speech(), speech()
    prompt = list(range(50))
    text = one.text(one.answer(prompt), 50, 40)
    assert text == same.text(same.answer(prompt), 50, 40)
    assert text[10:] == one.text(one.answer(prompt), 60, 30)
    assert set(text) <= set(WORDS)
    others = [
        one.answer([*prompt[:-1], 99]),
        one.answer(prompt, seed=3),
        speech(seed=2).answer(prompt),
    ]
    assert all(one.text(other, 50, 40) != text for other in others)


def test_answers_spread_over_the_vocabulary() -> None:
    one = speech()
    drawn = [token for prompt in range(50) for token in one.text(one.answer([prompt]), 1, 100)]
    assert min(drawn.count(token) for token in WORDS) > 10  # 50 expected


def test_answer_ends_by_itself_only_where_a_mean_is_set() -> None:
    one = speech(end=7, mean=20)
    ends = [(one.answer([prompt], least=5).end or 0) - 1 for prompt in range(400)]
    assert min(ends) == 5
    assert 17 < sum(ends) / len(ends) < 25
    answer = one.answer([3])
    assert answer.end is not None
    assert [one.token(answer, answer.end - 1) == 7, one.token(answer, answer.end) == 7] == [False, True]
    assert one.answer([3], endless=True).end is None
    assert speech(end=7).answer([3]).end is None


def test_grammar_limits_the_ids() -> None:
    bitmask = np.zeros((2, 3), dtype=np.int32)
    bitmask[1, 0], bitmask[1, 2] = np.int32(-(2**31)), 0b101  # tokens 31, 64 and 66
    grammar = Grammar(SimpleNamespace(structured_output_request_ids=["a", "b"], grammar_bitmask=bitmask))
    assert (grammar.allowed("a"), grammar.allowed("b"), grammar.allowed("c")) == ([], [31, 64, 66], None)
    one = speech()
    drawn = {one.allowed_token(one.answer([1]), position, [31, 64, 66]) for position in range(50)}
    assert drawn == {31, 64, 66}


def test_copies_of_one_direction_follow_each_other() -> None:
    link = Link(lambda size: size / 100, latency=0.5)
    link.start(1, 100, 10.0, down=True)
    link.start(2, 200, 10.0, down=True)
    link.start(3, 100, 10.0, down=False)
    assert link.next_due() == 11.5
    assert (link.last_due([1, 3]), link.last_due([2, 9]), link.last_due([9])) == (11.5, 14.0, 0.0)
    assert [copy.key for copy in link.done(11.5)] == [1, 3]
    assert [(copy.key, copy.seconds) for copy in link.done(99.0)] == [(2, 2.5)]
    assert (len(link), link.next_due()) == (0, None)


def test_pending_output_moves_the_clock_when_it_is_read() -> None:
    clock = VirtualClock()
    made = iter([1, 2])
    pending = Pending(clock, 2.0, lambda: (next(made), clock.now()))
    assert not pending.done()
    assert (pending.result(), pending.result(), clock.now()) == ((1, 2.0), (1, 2.0), 2.0)
    clock.wait_until(1.0)
    assert clock.now() == 2.0


def test_kv_memory_is_that_of_the_modelled_device() -> None:
    config = VirtualGpuConfig(kv_gib=1.0)
    assert config.block_bytes(16) == 16 * GPU.kv_bytes_per_token
    assert config.blocks(16) == 2**30 // (16 * GPU.kv_bytes_per_token)
    assert config.blocks(16, given=77) == 77
    assert VirtualGpuConfig(num_blocks=5).blocks(16, given=77) == 5


def test_device_that_takes_no_time_is_accepted() -> None:
    device = VirtualGpuConfig(time_scale=0).device()
    assert (device.copying(1e9), device.time_scale) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "tpu"}, "unknown 'tpu'; choose one of gpu, cpu"),
        ({"overrides": {"speed": 1}}, "device.speed: unknown"),
        ({"overrides": {"time_scale": 2}}, "time_scale"),
        ({"speed": 2}, "there are: preset, timeScale, overrides, numBlocks, kvGib"),
        ({"clock": "Sundial"}, "virtualGpu.clock"),
    ],
)
def test_mistakes_are_reported_with_the_valid_choice(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match="--additional-config:") as refused:
        read_config({"virtualGpu": given})
    assert message in str(refused.value)


@pytest.mark.parametrize("given", [{}, {"plumage": {}}, object(), None])
def test_defaults_hold_without_the_section(given: object) -> None:
    assert read_config(given) == VirtualGpuConfig()
