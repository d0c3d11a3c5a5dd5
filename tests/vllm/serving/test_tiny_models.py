"""The generated model folders serve chats and completions in vLLM's own API server, which leaves no process behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from plumage_bench.vllm.engine import Engine, Prompt
from plumage_bench.vllm.server import Server


def test_large_vocabulary_gives_equal_answers(
    start_engine: Callable[..., Engine], start_server: Callable[..., Server], bpe_model: Path
) -> None:
    prompts = [Prompt(str(number), tuple(random.Random(number).choices(range(30_000), k=90)), 8) for number in range(8)]
    in_process = start_engine(model=bpe_model).serve(prompts)
    arguments = ("--max-model-len=1024", "--return-tokens-as-token-ids", "--dtype=float32")  # as the engine before
    server = start_server(*arguments, model=bpe_model)
    group = psutil.Process(server.pid).children(recursive=True)
    assert group
    for one in prompts:
        assert completion(server, one) == list(in_process.answers[one.name].tokens)
    chats_are_counted_as_tokenize_says(server)
    server.end()
    _, left = psutil.wait_procs(group, timeout=30)
    assert left == []


def completion(server: Server, prompt: Prompt) -> list[int]:
    body = {"model": "tiny", "prompt": list(prompt.tokens), "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json={**body, "logprobs": 0}, timeout=90).json()
    ids = answer["choices"][0]["logprobs"]["tokens"]
    return [int(text.removeprefix("token_id:")) for text in ids]


def chats_are_counted_as_tokenize_says(server: Server) -> None:
    messages = [{"role": "user", "content": "Sing me of the naïve 鳥 🪶"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=90).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 5
    asked = httpx.post(f"{server.url}/tokenize", json={"model": "tiny", "messages": messages}, timeout=90).json()
    assert answer["usage"]["prompt_tokens"] == asked["count"]
