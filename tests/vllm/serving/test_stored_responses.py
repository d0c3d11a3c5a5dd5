"""Responses by id: the simulator answers as real vLLM does, and a router leads to the engine that stores them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.ports import free_port

from plumage_bench.vllm.server import Server

NAME = "tiny"
FLAGS = ("--served-model-name=tiny", "--max-model-len=512")
BODY = {"model": NAME, "input": "a prompt of some words", "max_output_tokens": 8, "temperature": 0.0}
STORE = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}


def _client(url: str) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=120, http_client=http)


def _ended(user: openai.OpenAI, name: str) -> Any:
    while (found := user.responses.retrieve(name)).status in ("queued", "in_progress"):
        pass
    return found


def _asked(url: str) -> dict[str, Any]:
    """What an engine, or a router before one, answers to each request about a stored response."""
    found: dict[str, Any] = {}
    with _client(url) as user:
        made = user.responses.create(**BODY)  # type: ignore[call-overload]
        found["read"] = user.responses.retrieve(made.id) == made
        queued = user.responses.create(**BODY, background=True)  # type: ignore[call-overload]
        found["queued"] = (queued.status, queued.usage)
        done = _ended(user, queued.id)
        found["done"] = (done.status, done.usage.output_tokens)
        streamed = list(user.responses.create(**BODY, background=True, stream=True))  # type: ignore[call-overload]
        found["first"] = [event.type for event in streamed][:2]
        name = streamed[0].response.id
        again = list(user.responses.retrieve(name, stream=True, starting_after=1))
        found["continued"] = [event.sequence_number for event in again] == [e.sequence_number for e in streamed[2:]]
        long = user.responses.create(**{**BODY, "max_output_tokens": 400}, background=True)  # type: ignore[call-overload]
        found["cancelled"] = user.responses.cancel(long.id).status
        following = user.responses.create(**{**BODY, "input": "go on"}, previous_response_id=made.id)  # type: ignore[call-overload]
        found["longer"] = following.usage.input_tokens > made.usage.input_tokens
        for what, ask in (
            ("cancel", lambda: user.responses.cancel(made.id)),
            ("unknown", lambda: user.responses.retrieve("resp_1")),
            ("unknown cancel", lambda: user.responses.cancel("resp_1")),
            ("unknown stream", lambda: user.responses.retrieve("resp_1", stream=True)),
        ):
            with pytest.raises(openai.APIStatusError) as refused:
                ask()
            found[what] = refused.value.response.json()
    return found


def test_stored_responses_are_those_of_vllm_also_behind_a_router(
    start_server: Callable[..., Server], process: Callable[[str, dict[str, Any]], str], tiny_model: Path, tmp_path: Path
) -> None:
    vllm = start_server(*FLAGS, environment=STORE).url
    simulator = process("plumage_engine.simulator", {
        "model": NAME, "modelFolder": str(tiny_model), "port": free_port(), "maxModelLen": 512, "storeResponses": True,
        "device": {"preset": "gpu", "timeScale": 0.5},
    })  # fmt: skip
    members = tmp_path / "members.json"
    replicas = [{"id": "v", "url": vllm, "agent": None, "state": "Ready"}]
    members.write_text(json.dumps({"pool": "p", "replicas": replicas}))
    router = process("plumage_router", {
        "pool": "p", "model": {"name": NAME, "modelFolder": str(tiny_model)}, "membershipFile": str(members),
        "listen": {"port": free_port()},
    })  # fmt: skip
    direct = _asked(vllm)
    print(direct)
    assert direct["unknown"]["error"]["code"] == 404
    assert _asked(router) == direct
    simulated = _asked(simulator)
    for one in (simulated, direct):
        one["done"] = one["done"][0] in ("completed", "incomplete")
    assert simulated == direct


def test_stream_of_a_response_that_ran_with_its_client_ends_with_an_error(
    start_server: Callable[..., Server], process: Callable[[str, dict[str, Any]], str], tiny_model: Path, tmp_path: Path
) -> None:
    vllm = start_server(*FLAGS, environment=STORE).url
    members = tmp_path / "members.json"
    replicas = [{"id": "v", "url": vllm, "agent": None, "state": "Ready"}]
    members.write_text(json.dumps({"pool": "p", "replicas": replicas}))
    router = process("plumage_router", {
        "pool": "p", "model": {"name": NAME, "modelFolder": str(tiny_model)}, "membershipFile": str(members),
        "listen": {"port": free_port()},
    })  # fmt: skip
    with _client(router) as user:
        made = user.responses.create(**BODY)  # type: ignore[call-overload]
        statuses = [
            httpx.get(f"{router}/v1/responses/{made.id}?stream=true", timeout=60, trust_env=False).status_code
            for _ in range(12)
        ]
        assert set(statuses) <= {422, 502}, "vLLM drops the connection"
        assert user.responses.retrieve(made.id).id == made.id, "the replica is not blamed for it"
