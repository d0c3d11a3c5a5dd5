"""Two API servers that the tests of this folder share: vLLM with the plugin, all features and keys, and vLLM without
it. Both start when the first one is needed. Tests must tolerate cached blocks of other tests, and compare counters with
their earlier values."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ports import free_port
from support.vllm_forking import forked

from plumage.directory.server.local_server import LocalServer
from plumage.settings.agent_config import AgentConfig
from plumage_bench.vllm.server import Server

CLIENT, ADMIN = "client", "fleet-secret"
_ROUTES = {"VLLM_PLUGINS": "plumage"}
_HOST_TIER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "HostTierSpec",
        "spec_module_path": "plumage_engine.vllm.offload.spec",
        "cpu_bytes_to_use": 32 << 20,
    },
}


@dataclass(frozen=True, slots=True)
class Served:
    """server: a running server. folder: of its event sockets and secrets. keys: the part of an agent's configuration
    with its tokens."""

    server: Server
    folder: Path
    model: Path
    keys: Mapping[str, str]

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def headers(self) -> Mapping[str, str]:
        """A client's headers."""
        return {"Authorization": f"Bearer {CLIENT}"} if self.keys else {}

    def admin(self) -> httpx.Client:
        """A client of Plumage's routes."""
        return httpx.Client(base_url=self.url, timeout=300, headers={"Authorization": f"Bearer {ADMIN}"})

    def stats(self) -> dict[str, Any]:
        with self.admin() as http:
            stats: dict[str, Any] = http.get("/v1/plumage/stats").raise_for_status().json()
        return stats

    def reset(self) -> None:
        """vLLM's own reset of all caches, also of host memory. While a copy uses blocks it resets nothing, and reports
        that."""
        url, deadline = f"{self.url}/reset_prefix_cache?reset_external=true", time.monotonic() + 120
        while not httpx.post(url, headers=self.headers, timeout=60).raise_for_status().json()["success"]:
            assert time.monotonic() < deadline, "blocks were held for two minutes"
            time.sleep(0.1)

    def agent(self, directory: LocalServer, pool: str, **changes: Any) -> AgentConfig:
        """The settings of an agent beside it with short intervals."""
        base = {
            "pool": pool, "replica": "chat-0", "model": "tiny", "modelFolder": str(self.model), "engineUrl": self.url,
            "eventsEndpoint": f"ipc://{self.folder}/events", "replayEndpoint": f"ipc://{self.folder}/replay",
            "directoryUrl": directory.url, "listen": {"port": 0}, "heartbeatSeconds": 0.2, "loadSeconds": 0.1,
        }  # fmt: skip
        return AgentConfig.model_validate({**base, **self.keys, **changes})


@pytest.fixture(scope="package")
def _starting(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Served]]]:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        folders = {name: tmp_path_factory.mktemp(name) for name in ("plugin", "stock")}
        yield {name: pool.submit(_start, stack, name, folder, tiny_model) for name, folder in folders.items()}


def _start(stack: ExitStack, name: str, folder: Path, model: Path) -> Served:
    more, environment, keys = _with_plugin(folder) if name == "plugin" else ((), _ROUTES, {})
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    arguments = (
        f"--kv-events-config={json.dumps(events)}",
        "--enable-prompt-tokens-details",
        "--num-gpu-blocks-override=400",
        "--max-model-len=4096",
        *more,
    )
    log = folder / "vllm.log"
    started = forked(model, free_port(), log, arguments, environment, seconds=550.0)
    server = stack.enter_context(started)
    return Served(server, folder, model, keys)


def _with_plugin(folder: Path) -> tuple[tuple[str, ...], Mapping[str, str], Mapping[str, str]]:
    for name, secret in (("admin", ADMIN), ("client", CLIENT)):
        (folder / name).write_text(secret + "\n")
    environment = {
        **_ROUTES,
        # A learning policy, for its tables. A prefix that a test requests twice stays cached.
        "PLUMAGE_VLLM": '{"feather": {"policy": "Bandit"}, "hostTier": {"minFrequency": 10}}',
        "PLUMAGE_ADMIN_TOKEN_FILE": str(folder / "admin"),
        "VLLM_SERVER_DEV_MODE": "1",
    }
    arguments = (f"--api-key={CLIENT}", "--max-num-seqs=4", f"--kv-transfer-config={json.dumps(_HOST_TIER)}")
    return (
        arguments,
        environment,
        {"engineTokenFile": str(folder / "admin"), "engineApiKeyFile": str(folder / "client")},
    )


@pytest.fixture
def with_plugin(_starting: Mapping[str, Future[Served]]) -> Served:
    return _starting["plugin"].result(600)


@pytest.fixture
def stock(_starting: Mapping[str, Future[Served]]) -> Served:
    return _starting["stock"].result(600)


@pytest.fixture
def fresh(tiny_model: Path, tmp_path: Path) -> Iterator[Served]:
    """vLLM without the plugin, which has served no request."""
    with ExitStack() as stack:
        yield _start(stack, "stock", tmp_path, tiny_model)
