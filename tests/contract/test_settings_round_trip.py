"""Every settings file that operator and local mode write is read back as the model from which it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.operator_world import CONFIG, pool_object

from plumage.api.v1alpha1 import InferenceGateway, InferencePool, parse_manifest
from plumage.settings.agent_config import AgentConfig
from plumage.settings.plugin_config import PluginSettings
from plumage.settings.router_config import CordonedReplicas, MultiPoolConfig, RouterConfig
from plumage.settings.simulator_config import SimulatorConfig
from plumage.version_skew import Settings, marked
from plumage_cli.local.plan.paths import LocalPaths
from plumage_cli.local.plan.processes import plan_replica, plan_router
from plumage_cli.local.plan.vllm import VllmInterpreter
from plumage_operator.resources import GatewayContext, PoolContext, ServedPool, settings
from plumage_operator.resources.context import read_pool
from plumage_operator.resources.gateway import gateway_settings

PAPER = {"eviction": {"hotness": {"form": "Paper"}}, "hostMemory": {"capacity": "1Gi", "admission": "Frequency"}}
EXTERNAL = {
    "url": "rediss://cache.example:6380/1",
    "username": "plumage",
    "passwordRef": {"name": "redis", "key": "password"},
    "caRef": {"name": "redis", "key": "ca"},
}
SPECS: dict[str, dict[str, Any]] = {
    "simulator": {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator", **PAPER}},
    "bandit": {
        "model": {"uri": "builtin://tiny-chat", "maxLength": 4096, "aliases": ["other"]},
        "engine": {"runtime": "Simulator", "feather": {"policy": "Bandit"}},
        "router": {"policy": "LbgrPaper", "shadowPolicy": "Lbgr", "accessLog": True, "allowedRequestFields": ["user"]},
        "directory": {"redisRef": EXTERNAL},
        "tracing": {"endpoint": "http://collector:4318", "samplingRatePerMillion": 5},
    },
    "vllm": {"model": {"uri": "builtin://tiny-llama"}, "engine": PAPER},
    "plain vllm": {
        "model": {"uri": "builtin://tiny-llama"},
        "engine": {"feather": {"policy": "Fcfs"}, "eviction": {"policy": "Lru"}, "batchLimit": "Static"},
        "router": {"auth": {"apiKeysRef": {"name": "keys", "key": "keys"}}},
    },
}


def context(name: str) -> PoolContext:
    return PoolContext(read_pool(pool_object(SPECS[name])), CONFIG, 2)


def again(settings: Settings) -> Settings:
    """The settings, written as the operator writes them and read as the process reads them."""
    return type(settings).parse(json.loads(json.dumps(marked(settings.written()))), "a file")


@pytest.mark.parametrize("name", SPECS)
def test_operators_settings_are_read_as_they_were_written(name: str) -> None:
    pool = context(name)
    engine: Settings = (
        settings.simulator_settings(pool)
        if pool.pool.spec.engine.runtime == "Simulator"
        else settings.plugin_settings(pool)
    )
    router = settings.router_settings(pool)
    agent = AgentConfig(**settings.agent_settings(pool).given(), replica="chat-0")
    for one in (engine, router, agent):
        read = again(one)
        assert read == one
        assert read.ignored == ()
    assert isinstance(engine, SimulatorConfig | PluginSettings)
    assert agent.directory == router.directory


def test_gateways_settings_are_read_as_they_were_written() -> None:
    spec = {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}}]}]}
    about = {"apiVersion": "inference.plumage.dev/v1alpha1", "metadata": {"name": "front", "namespace": "default"}}
    gateway = parse_manifest({**about, "kind": "InferenceGateway", "spec": spec}, "test")
    assert isinstance(gateway, InferenceGateway)
    pool = read_pool(pool_object({**SPECS["bandit"], "router": {"gatewayRef": {"name": "front"}}}))
    served = ServedPool(PoolContext(pool, CONFIG, 2), ("chat", "more"), ("chat-1",))
    written = gateway_settings(GatewayContext(gateway, CONFIG, (served,)))
    assert isinstance(written, MultiPoolConfig)
    assert again(written) == written
    assert written.pools[0].names == ("chat", "more")


@pytest.mark.parametrize("name", SPECS)
def test_local_settings_are_read_as_they_were_written(name: str) -> None:
    manifest = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "chat"}}
    pool = InferencePool.model_validate({**manifest, "spec": SPECS[name]})
    paths = LocalPaths(Path("/tmp/pool"), Path("/models"), "redis://127.0.0.1:1", vllm=VllmInterpreter("python"))
    replica = plan_replica(pool, paths, 3, 8101, 8201)
    router = plan_router(pool, paths, 8000, api_keys=Path("/keys"), handover_fd=7)
    readers: list[tuple[Any, type[Settings]]] = [
        (replica.agent.settings, AgentConfig),
        (router.settings, RouterConfig),
    ]
    if pool.spec.engine.runtime == "Simulator":
        readers.append((replica.engine.settings, SimulatorConfig))
    else:
        readers.append((json.loads(replica.engine.settings["environment"]["PLUMAGE_VLLM"]), PluginSettings))
    for content, reader in readers:
        assert reader.parse(json.loads(json.dumps(content)), "a file").written() == content


def test_cordoned_replicas_are_read_as_they_were_written() -> None:
    written = CordonedReplicas(cordoned=("chat-1", "chat-2"))
    assert CordonedReplicas.model_validate_json(json.dumps(written.written())) == written


def test_written_file_has_no_default_and_no_null() -> None:
    written = settings.router_settings(context("simulator")).written()
    assert "breaker" not in written, "the reader's default, which another version may change"
    assert not any(value is None for value in written.values())
    assert settings.plugin_settings(context("plain vllm")).written()["feather"] is None, "None is no default there"
