"""Input from clients: arguments for other components, and images instead of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.vllm.scheduler.test_feather_in_vllm import feather, nothing_left

from plumage.batching import make_queue
from plumage_bench.vllm.engine import Engine
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather.waiting_order import WaitingOrder

BLOCK = 16
SENT: tuple[dict[str, Any], ...] = (
    {"vllm_xargs": {"plumage_group": ["a", "b"]}},  # vLLM allows lists, which can not name a group
    {"vllm_xargs": {"plumage_group": 1.5}},
    {"vllm_xargs": {"plumage_group": "g" * 10_000}},
    {"vllm_xargs": {"plumage_group": "chat", "another": [1, "x"]}},
    {},
)


@pytest.mark.parametrize("policy", ["Oracle", "Bandit"])
def test_client_arguments_keep_feather_on(start_engine: Callable[..., Engine], policy: str) -> None:
    """Parses a body as vLLM's own route does."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    engine = start_engine(max_num_seqs=2, **feather(policy))
    for number, sent in enumerate(SENT):
        body = CompletionRequest(model="tiny", prompt=[1], ignore_eos=True, temperature=0.0, **sent)
        engine.llm.add_request(f"{number}", {"prompt_token_ids": [number, *range(90)]}, body.to_sampling_params(4, {}))
    answered = {}
    while engine.llm.has_unfinished_requests():
        answered |= {output.request_id: output.outputs[0].token_ids for output in engine.llm.step()}
    assert len(answered) == len(SENT)
    assert all(len(tokens) == 4 for tokens in answered.values())
    plumage = engine.scheduler.plumage
    assert plumage.guards["feather"].on, plumage.guards["feather"].reason
    assert plumage.counters.get("failures", "feather") == 0
    nothing_left(engine)


def _request(name: str, image: str, *, end: int) -> Any:
    """A prompt of eight blocks that begins with a block of text, then one image of three blocks. end: its last token.
    Placeholders have the same token ids for all images."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    place = PlaceholderRange(offset=BLOCK, length=3 * BLOCK)
    tokens = [*range(BLOCK), *[7] * (3 * BLOCK), *range(4 * BLOCK), end]
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
        mm_features=[MultiModalFeatureSpec(data=None, modality="image", identifier=image, mm_position=place)],
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def test_other_image_is_other_prefix() -> None:
    queue = make_queue("ChtOrder", rng=random.Random(0), max_wait=10.0)
    order = WaitingOrder(
        queue, block_tokens=BLOCK, stride=1, max_wait=10.0, clock=lambda: 0.0, counters=Counters()
    )  # fmt: skip
    cat, dog, cat_again = _request("cat", "cat", end=1), _request("dog", "dog", end=2), _request("again", "cat", end=3)
    for request in (cat, dog, cat_again):
        order.insert(request)
    one, other, third = (order._candidates[name].vector for name in ("cat", "dog", "again"))
    assert len(one) == 8
    assert one == third
    assert one[0] == other[0], "the text before the image is shared"
    assert not set(one[1:]) & set(other[1:])
    running = [order.choose([])]
    order.pop(running[0])
    assert running[0] is cat
    assert order.choose(running) is cat_again, "the older request of another image waits"
