"""Two LoRA adapters on real vLLM with the flags of a manifest: each is a model with its own answers and its own cached
prefixes, and an adapter without a free slot waits for one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from plumage.api.v1alpha1.model import ModelSpec
from plumage.settings.vllm import adapter_flags
from plumage_bench.vllm.server import Server
from plumage_engine.agent.engine.engine_metrics import parse_load
from plumage_engine.vllm.tiny_model import SIZES

RANK = 8
NAMES = ("sql", "chess")


def _write_adapter(folder: Path, seed: int) -> Path:
    """An adapter of the tiny model's attention whose weights are large enough to change each answer."""
    folder.mkdir()
    size, made = SIZES["tiny"], torch.Generator().manual_seed(seed)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight": torch.randn(
            (RANK, size.hidden) if part == "A" else (size.hidden, RANK), generator=made
        )
        for layer in range(size.layers)
        for name in config["target_modules"]
        for part in "AB"
    }
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _body(model: str, text: str, tokens: int = 16) -> dict[str, Any]:
    return {"model": model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def _ask(server: Server, model: str, text: str) -> tuple[str, int]:
    """The answer, and how many of the prompt's tokens were cached."""
    url = f"{server.url}/v1/completions"
    reply = httpx.post(url, json=_body(model, text), timeout=120, trust_env=False).raise_for_status().json()
    return reply["choices"][0]["text"], (reply["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def _start(start_server: Callable[..., Server], folder: Path, slots: int, **named: Any) -> Server:
    """vLLM with both adapters and the flags that a pool's engines get."""
    folders = {name: str(_write_adapter(folder / name, seed)) for seed, name in enumerate(NAMES)}
    adapters = [{"name": name, "uri": f"file://{path}"} for name, path in folders.items()]
    model = {"uri": "builtin://tiny-llama", "adapters": adapters, "adapterSlots": slots, "adapterMaxRank": RANK}
    spec = ModelSpec.model_validate(model)
    more = ("--served-model-name=tiny", "--enable-prompt-tokens-details", "--max-model-len=4096")
    return start_server(*more, *adapter_flags(spec, folders), **named)


def test_each_adapter_has_its_own_answers_and_prefixes(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = _start(start_server, tmp_path, slots=2)
    text = "".join(random.Random(1).choices("abcdefgh ", k=200))
    answers = [_ask(server, name, text) for name in ("tiny", *NAMES)]
    assert len({answer for answer, _ in answers}) == 3, answers
    assert [cached for _, cached in answers] == [0, 0, 0]
    assert [_ask(server, name, text)[1] for name in ("tiny", *NAMES)] == [192] * 3
    load = parse_load(httpx.get(f"{server.url}/metrics", trust_env=False).text)
    assert load.running_adapters == ()


@pytest.mark.parametrize("plugin", ["{}", '{"feather": {"policy": "ChtOrder"}}'], ids=["stock", "FEATHER"])
def test_adapter_waits_for_a_slot_and_the_base_model_does_not(
    start_server: Callable[..., Server], tmp_path: Path, plugin: str
) -> None:
    """Why routers prefer replicas with a slot (0306). The load that the agent reads names the adapter that runs."""
    server = _start(start_server, tmp_path, slots=1, environment={"PLUMAGE_VLLM": plugin})
    url = f"{server.url}/v1/completions"
    with httpx.Client(timeout=120, trust_env=False) as http, ThreadPoolExecutor(1) as pool:
        with http.stream("POST", url, json=_body("sql", "a long answer", 3000) | {"stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            waiting = pool.submit(_ask, server, "chess", "a short answer")
            assert _ask(server, "tiny", "another one")[0]
            assert parse_load(httpx.get(f"{server.url}/metrics", trust_env=False).text).running_adapters == ("sql",)
            assert not waiting.done()
        assert waiting.result(60)[0], "the slot is free once its client has left"
