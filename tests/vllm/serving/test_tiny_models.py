"""The generated model folders serve chats and completions in vLLM's own API server, and it leaves nothing behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from plumage_bench.vllm_engine import Engine, Prompt
from plumage_bench.vllm_server import Server, ServerError


def test_the_server_answers_as_the_engine_in_process_does(
    start_engine: Callable[..., Engine], start_server: Callable[..., Server]
) -> None:
    rng = random.Random(3)
    prompts = [Prompt(str(number), tuple(rng.choices(range(256), k=90)), 8) for number in range(8)]
    in_process = start_engine().serve(prompts)
    server = start_server("--max-model-len=1024", "--return-tokens-as-token-ids")
    for one in prompts:
        body = {"model": "tiny", "prompt": list(one.tokens), "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, "logprobs": 0}, timeout=30).json()
        ids = answer["choices"][0]["logprobs"]["tokens"]
        assert [int(text.removeprefix("token_id:")) for text in ids] == list(in_process.answers[one.name].tokens)


def test_a_chat_with_the_large_vocabulary(start_server: Callable[..., Server], bpe_model: Path) -> None:
    server = start_server("--max-model-len=1024", model=bpe_model)
    group = psutil.Process(server.pid).children(recursive=True)
    assert group
    messages = [{"role": "user", "content": "Tell me of the naïve 鳥 🪶"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 5
    asked = httpx.post(f"{server.url}/tokenize", json={"model": "tiny", "messages": messages}, timeout=30).json()
    assert answer["usage"]["prompt_tokens"] == asked["count"]
    server.end()
    _, left = psutil.wait_procs(group, timeout=30)
    assert left == []


def test_a_server_that_can_not_start_says_why(start_server: Callable[..., Server], tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no-such-flag"):
        start_server("--no-such-flag")
