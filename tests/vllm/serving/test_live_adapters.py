"""LoRA adapters are loaded into real vLLM and out of it while it serves, by the route that agents use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.vllm.serving.test_adapters import RANK, _ask, _body, _write_adapter
from vllm.config import ParallelConfig
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels

from plumage.api.v1alpha1.model import ModelSpec
from plumage.settings.vllm import adapter_flags
from plumage_bench.vllm.server import Server
from plumage_engine.adapters import AdapterError
from plumage_engine.agent.engine.client import EngineClient
from plumage_engine.agent.engine_updates.adapters import AdapterSync
from plumage_engine.vllm.compat import adapters as compat
from plumage_engine.vllm.endpoints import PlumageEndpoints
from plumage_engine.vllm.routes.adapters import VllmAdapters

TEXT = "a prompt that is long enough for some blocks of the cache; " * 4


def _start(start_server: Callable[..., Server]) -> Server:
    """vLLM with the flags that a pool's engines get."""
    adapters = [{"name": "sql", "uri": "file:///sql"}]
    model = {"uri": "builtin://tiny-llama", "adapters": adapters, "adapterSlots": 2, "adapterMaxRank": RANK}
    flags = adapter_flags(ModelSpec.model_validate(model))
    assert "--lora-modules" not in flags
    environment = {
        "PLUMAGE_VLLM": "{}",
        "VLLM_PLUGINS": "plumage",
    }
    more = ("--served-model-name=tiny", "--enable-prompt-tokens-details", "--max-model-len=4096")
    return start_server(*more, *flags, environment=environment)


def _write_repository(cache: Path, seed: int) -> Path:
    """acme/law, as a download leaves it. Returns its folder."""
    repository = cache / "models--acme--law"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repository / "refs" / "main").write_text(commit)
    return _write_adapter(repository / "snapshots" / commit, seed)


def _want(server: Server, wanted: dict[str, str]) -> dict[str, Any]:
    url = f"{server.url}/v1/plumage/adapters"
    reply = httpx.post(url, json={"adapters": wanted}, timeout=30, trust_env=False)
    return dict(reply.raise_for_status().json())


def _settled(server: Server, wanted: dict[str, str]) -> dict[str, tuple[str, str]]:
    """State and message of each, once none is loading."""
    end = time.monotonic() + 60
    while True:
        found = {one["name"]: (one["state"], one["message"]) for one in _want(server, wanted)["adapters"]}
        if all(state != "Loading" for state, _ in found.values()):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


def _status(server: Server, model: str) -> int:
    url = f"{server.url}/v1/completions"
    return httpx.post(url, json=_body(model, "hello", 1), timeout=120, trust_env=False).status_code


def test_adapters_come_and_go_without_a_restart(start_server: Callable[..., Server], tmp_path: Path) -> None:
    folders = {
        name: str(_write_adapter(tmp_path / name, seed)) for seed, name in enumerate(("sql", "other", "deep", "law"))
    }
    config = Path(folders["deep"], "adapter_config.json")
    config.write_text(config.read_text().replace(f'"r": {RANK}', f'"r": {4 * RANK}'))
    server = _start(start_server)
    assert _status(server, "sql") == 404

    wanted = {
        "sql": folders["sql"],
        "law": folders["law"],
        "deep": folders["deep"],
        "gone": "/gone",
        "bucket": "s3://b/c",
    }
    states = _settled(server, wanted)
    assert states["sql"] == states["law"] == ("Loaded", "")
    assert [state for state, _ in states.values()] == ["Loaded", "Loaded", "Failed", "Failed", "Failed"]
    assert "rank" in states["deep"][1]
    assert "adapter_config.json" in states["gone"][1]
    assert _want(server, wanted)["served"] == ["law", "sql"]
    answers = {name: _ask(server, name, TEXT)[0] for name in ("tiny", "sql", "law")}
    assert len(set(answers.values())) == 3
    assert _ask(server, "sql", TEXT)[1] > 0, "its prefix is cached"

    assert _settled(server, {"sql": folders["other"]}) == {"sql": ("Loaded", "")}
    assert _ask(server, "sql", TEXT) not in ((answers["sql"], 0), (answers["tiny"], 0))
    assert _status(server, "law") == 404
    assert _settled(server, {"sql": folders["sql"]}) == {"sql": ("Loaded", "")}
    assert _ask(server, "sql", TEXT)[0] == answers["sql"]
    assert asyncio.run(_followed(server, folders["law"])) == [("law", "Loaded")]
    assert (_status(server, "sql"), _ask(server, "law", TEXT)[0]) == (404, answers["law"])


async def _followed(server: Server, folder: str) -> list[tuple[str, str]]:
    """What an agent reports once its engine serves `law` alone, and vLLM's list of models says so too."""
    client = EngineClient(server.url)
    sync = AdapterSync({"law": folder}, client)
    while not sync.settled:
        await sync.check()
        await asyncio.sleep(0.05)
    assert sync.served == ("law",)
    assert await client.adapters() == {"law"}
    await client.close()
    return [(one.name, one.state) for one in sync.reports or ()]


def test_requests_in_flight_finish_with_an_adapter_that_leaves(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    folder = str(_write_adapter(tmp_path / "sql", 0))
    server = _start(start_server)
    _settled(server, {"sql": folder})
    body = _body("sql", "a long answer", 1000) | {"stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert _want(server, {}) == {"adapters": [], "served": []}
        assert _status(server, "sql") == 404
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 500


def test_server_without_slots_says_why(start_server: Callable[..., Server], tmp_path: Path) -> None:
    folder = str(_write_adapter(tmp_path / "sql", 0))
    environment = {"PLUMAGE_VLLM": "{}", "VLLM_PLUGINS": "plumage"}
    server = start_server("--served-model-name=tiny", "--max-model-len=4096", environment=environment)
    ((state, message),) = _settled(server, {"sql": folder}).values()
    assert state == "Failed"
    assert message
    assert _status(server, "tiny") == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(("servers", "reason"), [(2, "2 API servers"), (1, "list of models is a NoneType")])
async def test_several_api_servers_load_none_and_say_so(servers: int, reason: str) -> None:
    """Each would have a list of its own, and a request reaches any of them."""
    config = SimpleNamespace(parallel_config=ParallelConfig(_api_process_count=servers))
    plugin = PlumageEndpoints()
    plugin.attach_router(application := Starlette())
    await plugin.init_state(SimpleNamespace(vllm_config=config), SimpleNamespace(openai_serving_models=None), None)
    transport = httpx.ASGITransport(app=application, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        answer = await http.post("/v1/plumage/adapters", json={"adapters": {}})
    assert answer.status_code == 501
    assert reason in answer.json()["error"]["message"]


@pytest.mark.asyncio
async def test_repository_is_downloaded_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache has one repository, and there is no network. vLLM gets the folder, so it downloads nothing."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = _write_repository(tmp_path, 3)
    adapters = VllmAdapters(SimpleNamespace(lora_requests={}), compat)
    assert await adapters.fetch("acme/law") == str(folder)
    with pytest.raises(AdapterError, match=r"^acme/other cannot be downloaded: .*"):
        await adapters.fetch("acme/other")


class _Worker:
    """An engine that loads what its test lets it. added: path, id and load_inplace of each request."""

    model_config = renderer = input_processor = None

    def __init__(self) -> None:
        self.added: list[tuple[str, int, bool]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.refuses = False

    async def add_lora(self, lora_request: Any) -> bool:
        self.added.append((lora_request.lora_path, lora_request.lora_int_id, lora_request.load_inplace))
        await self.go.wait()
        if self.refuses:
            raise ValueError("no such rank")
        return True


def _list_of_models(worker: _Worker) -> tuple[OpenAIServingModels, VllmAdapters]:
    models = OpenAIServingModels(worker, [BaseModelPath("tiny", "/tiny")])  # type: ignore[arg-type]
    return models, VllmAdapters(models, compat)


@pytest.mark.asyncio
async def test_replaced_adapter_is_loaded_once() -> None:
    """With `load_inplace` in vLLM's list, the worker would load the files again for every batch."""
    worker = _Worker()
    models, adapters = _list_of_models(worker)
    for folder in ("/one", "/two"):
        await adapters.load("sql", folder, folder)
    assert worker.added == [("/one", 1, False), ("/two", 1, True)]
    kept = models.lora_requests["sql"]
    assert (kept.lora_path, kept.load_inplace) == ("/two", False)
    assert adapters.sources() == {"sql": "/two"}
    await adapters.unload("sql")
    assert adapters.sources() == {}


@pytest.mark.asyncio
async def test_adapter_that_comes_back_has_its_id_and_is_served_after_its_load() -> None:
    """vLLM takes two of one name for the same. Until the load ends its engine may have the earlier weights."""
    worker = _Worker()
    models, adapters = _list_of_models(worker)
    await adapters.load("sql", "/one", "/one")
    await adapters.unload("sql")
    await adapters.load("chess", "/chess", "/chess")
    worker.go.clear()
    load = asyncio.create_task(adapters.load("sql", "/two", "/two"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(worker.added) == 3
    assert (list(models.lora_requests), adapters.sources()) == (["chess"], {"chess": "/chess"})
    worker.go.set()
    await load
    assert worker.added == [("/one", 1, False), ("/chess", 2, False), ("/two", 1, True)]
    assert adapters.sources() == {"chess": "/chess", "sql": "/two"}
    await adapters.unload("sql")
    worker.refuses = True
    with pytest.raises(AdapterError, match="no such rank"):
        await adapters.load("sql", "/three", "/three")
    assert adapters.sources() == {"chess": "/chess"}
    worker.refuses = False
    await adapters.load("sql", "/four", "/four")
    assert worker.added[-1] == ("/four", 1, True), "also after a refusal"
