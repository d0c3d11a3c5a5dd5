"""Usage in streams and the form of errors: the simulator answers as real vLLM does, and a router before vLLM passes the
requested usage to the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from support.ports import free_port

from plumage_bench.vllm.server import Server

NAME = "tiny"
FLAGS = ("--served-model-name=tiny", "--enable-prompt-tokens-details", "--max-model-len=512")
EVERY = {"include_usage": True, "continuous_usage_stats": True}
OPTIONS = (None, {}, {"include_usage": False}, {"continuous_usage_stats": True}, {"include_usage": True}, EVERY)
BODIES = {
    "/v1/completions": {"prompt": "a prompt of some words"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a prompt of some words"}]},
}
WRONG: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True}},
    {"max_tokens": "many"},
    {"temperature": 1.0, "max_tokens": 0},
    {"model": "nobody"},
)


def _body(path: str, **more: Any) -> dict[str, Any]:
    return {"model": NAME, **BODIES[path], "max_tokens": 6, "ignore_eos": True, **more}


def _events(url: str, path: str, options: dict[str, bool] | None) -> list[dict[str, Any]]:
    body = _body(path, stream=True) | ({} if options is None else {"stream_options": options})
    answer = httpx.post(url + path, json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def _shape(events: list[dict[str, Any]]) -> set[tuple[int, tuple[str, ...], bool]]:
    """The number of an event's choices, the fields of its usage, and whether it counts no answer token yet."""
    return {
        (
            len(event["choices"]),
            tuple(sorted(event.get("usage") or ())),
            (event.get("usage") or {}).get("completion_tokens") == 0,
        )
        for event in events
    }


def _langchain(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Input and output tokens as langchain-openai counts them: the sum over all chunks."""
    usages = [event["usage"] for event in events if event.get("usage")]
    return sum(u.get("prompt_tokens") or 0 for u in usages), sum(u.get("completion_tokens") or 0 for u in usages)


def _final_usage(events: list[dict[str, Any]]) -> tuple[int, int] | None:
    """Input and output tokens in the last event that has a usage."""
    last = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    return last and (last["prompt_tokens"], last["completion_tokens"])


def _simulator(model: Path) -> dict[str, Any]:
    return {"model": NAME, "modelFolder": str(model), "port": free_port(), "maxModelLen": 512,
            "device": {"preset": "gpu", "timeScale": 0.02}}  # fmt: skip


def test_simulator_usage_equals_vllm_and_router_filters_it(
    start_server: Callable[..., Server], process: Callable[[str, dict[str, Any]], str], tiny_model: Path, tmp_path: Path
) -> None:
    vllm = start_server(*FLAGS).url
    simulator = process("plumage_engine.simulator", _simulator(tiny_model))
    for path in BODIES:
        for options in OPTIONS:
            assert _shape(_events(simulator, path, options)) == _shape(_events(vllm, path, options)), (path, options)
        for wrong in WRONG:
            answers = [httpx.post(url + path, json=_body(path) | wrong, timeout=60, trust_env=False)
                    for url in (simulator, vllm)]  # fmt: skip
            ours, theirs = (answer.json()["error"] for answer in answers)
            assert answers[0].status_code == answers[1].status_code == ours["code"] == theirs["code"], (
                wrong,
                ours,
                theirs,
            )
            assert ours.keys() == theirs.keys()
    members = tmp_path / "members.json"
    members.write_text(
        json.dumps({"pool": "p", "replicas": [{"id": "v", "url": vllm, "agent": None, "state": "Ready"}]})
    )
    router = process("plumage_router", {
        "pool": "p", "model": {"name": NAME, "modelFolder": str(tiny_model)}, "membershipFile": str(members),
        "listen": {"port": free_port()},
    })  # fmt: skip
    for path in BODIES:
        for options in OPTIONS:
            routed, direct = _events(router, path, options), _events(vllm, path, options)
            assert _shape(routed) == _shape(direct), (path, options)
            assert _final_usage(routed) == _final_usage(direct)
            if options != EVERY:  # its sum counts events, and for a slow client vLLM puts several tokens into one event
                assert _langchain(routed) == _langchain(direct)
        asked = _langchain(_events(router, path, {"include_usage": True}))
        whole = httpx.post(router + path, json=_body(path), timeout=60, trust_env=False).json()["usage"]
        assert asked == (whole["prompt_tokens"], whole["completion_tokens"])
    counted = httpx.get(f"{router}/metrics", timeout=60, trust_env=False).text
    assert "plumage_router_usage_missing_total 0\n" in counted


def test_forced_usage_is_removed_by_router(
    start_server: Callable[..., Server], process: Callable[[str, dict[str, Any]], str], tiny_model: Path, tmp_path: Path
) -> None:
    vllm = start_server(*FLAGS, "--enable-force-include-usage").url
    simulator = process("plumage_engine.simulator", {**_simulator(tiny_model), "enableForceIncludeUsage": True})
    members = tmp_path / "members.json"
    members.write_text(
        json.dumps({"pool": "p", "replicas": [{"id": "v", "url": vllm, "agent": None, "state": "Ready"}]})
    )
    router = process("plumage_router", {
        "pool": "p", "model": {"name": NAME, "modelFolder": str(tiny_model)}, "membershipFile": str(members),
        "listen": {"port": free_port()},
    })  # fmt: skip
    for path in BODIES:
        for options in OPTIONS:
            forced = _events(vllm, path, options)
            assert all(event.get("usage") for event in forced)
            assert _shape(_events(simulator, path, options)) == _shape(forced), (path, options)
        assert _langchain(_events(router, path, None)) == (0, 0)
        prompt, completion = _langchain(_events(router, path, {"include_usage": True}))
        assert completion == 6
        assert prompt == forced[-1]["usage"]["prompt_tokens"]
