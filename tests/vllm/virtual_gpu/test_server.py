"""vLLM's own OpenAI server over the virtual GPU, on the wall clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from plumage_bench.vllm.server import Server

EXECUTOR = "plumage_bench.virtual_gpu.executor.VirtualGpuExecutor"


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    """With asynchronous scheduling, as on a GPU, and twice as fast as one. With a much higher speed the API server of a
    busy machine would combine tokens, and stream an answer in one or two pieces."""
    device = {"timeScale": 0.5, "kvGib": 8, "asyncScheduling": True}
    return start_server(
        f"--distributed-executor-backend={EXECUTOR}",
        "--additional-config=" + json.dumps({"virtualGpu": device}),
        "--enable-prompt-tokens-details",
        "--block-size=16",
    )


def ask(server: Server, messages: list[dict[str, str]], tokens: int) -> tuple[str, dict[str, Any], int]:
    """The answer's text, its usage, and the number of its pieces."""
    body = {
        "model": "tiny",
        "messages": messages,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, usage, pieces = "", {}, 0
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == httpx.codes.OK, response.read()
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                pieces += bool(choice["delta"].get("content"))
    return text, usage, pieces


def test_conversation_is_cached_and_aborted_stream_is_freed(server: Server) -> None:
    said = [{"role": "user", "content": "Sing me of the sea. " * 10}]
    answer, usage, pieces = ask(server, said, 100)
    assert (usage["completion_tokens"], len(answer)) == (100, 100)
    assert pieces > 10
    again, _, _ = ask(server, said, 100)
    assert again == answer
    said += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of the shore."}]
    _, later, _ = ask(server, said, 5)
    cached = later["prompt_tokens_details"]["cached_tokens"]
    assert cached >= (usage["prompt_tokens"] + 99) // 16 * 16
    leave(server)


def leave(server: Server) -> None:
    """A client disconnects in the middle: its request ends, and the server continues to serve."""
    body = {"model": "tiny", "prompt": "once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    ask(server, [{"role": "user", "content": "still there?"}], 50)
    metrics = httpx.get(f"{server.url}/metrics", timeout=10).text
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    assert [float(line.split()[-1]) for line in lines] == [0.0]
