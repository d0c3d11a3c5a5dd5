"""The plan of a pool on one machine: a pure function whose settings the processes accept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.api.v1alpha1 import load_pool
from plumage.directory.publisher.held_chunks import ENTRY_BYTES
from plumage.errors import ManifestError
from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage.settings.agent_config import AgentConfig, ShareConfig
from plumage.settings.router_config import RouterConfig
from plumage.settings.simulator import STORE_VARIABLE
from plumage.settings.simulator_config import SimulatorConfig
from plumage_cli.local.plan.paths import LocalPaths
from plumage_cli.local.plan.processes import plan_replica, plan_router
from plumage_cli.local.plan.unused_fields import of_unchosen_policies, refuse_cluster_fields, without_local_effect
from plumage_engine.simulator.engine.settings import engine_settings
from plumage_engine.simulator.http.prompts import Prompts
from plumage_router.http.errors import RequestError
from plumage_router.http.paths import COMPLETION_PATH
from plumage_router.request.model import load_model

PATHS = LocalPaths(Path("/run/plumage/chat"), Path("/models/tiny"), "unix:///run/plumage/chat/dir/directory.sock")


def pool(spec: str = "") -> Any:
    text = f"""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {{name: chat}}
spec:
  model: {{uri: "builtin://tiny-chat", aliases: [small], adapters: [{{name: law, uri: "file:///law"}}]}}
{spec or '''  engine: {runtime: Simulator}'''}
"""
    return load_pool(text, "pool.yaml")


def test_every_process_accepts_its_settings() -> None:
    replica = plan_replica(pool(), PATHS, 2, 20_001, 20_002)
    engine = SimulatorConfig.model_validate(dict(replica.engine.settings))
    agent = AgentConfig.model_validate(dict(replica.agent.settings))
    router = RouterConfig.model_validate(dict(plan_router(pool(), PATHS, 8000).settings))
    assert engine_settings(engine).eviction == "Hotness"
    assert (engine.events_endpoint, engine.replay_endpoint) == (agent.events_endpoint, agent.replay_endpoint)
    assert agent.engine_url == replica.engine.url
    assert agent.replica == replica.id == "chat-2"
    assert agent.model == engine.model == router.model.name == "tiny-chat"
    assert str(router.membership_file) == str(agent.warmup.peers_file)
    assert engine.adapters == router.model.adapters == ("law",)
    assert router.model.aliases == ("small",)


@pytest.mark.parametrize(
    ("model", "simulator", "context"),
    [
        ("", "cacheBlocks: 10000", 32_768),
        ("", "cacheBlocks: 1500", 24_000),
        ("", "cacheBlocks: 1500, blockSize: 8", 12_000),
        (", maxLength: 1000", "cacheBlocks: 1500", 1000),
        (", maxLength: 100000", "cacheBlocks: 10000", 100_000),
    ],
)
def test_router_knows_the_context_length_of_the_engines(model: str, simulator: str, context: int) -> None:
    folder = resolve("builtin://tiny-chat")
    paths = LocalPaths(PATHS.folder, folder, PATHS.directory_url)
    text = f"""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {{name: chat}}
spec:
  model: {{uri: "builtin://tiny-chat"{model}}}
  engine: {{runtime: Simulator, simulator: {{{simulator}}}}}
"""
    asked = load_pool(text, "pool.yaml")
    engine = SimulatorConfig.model_validate(dict(plan_replica(asked, paths, 0, 20_001, 20_002).engine.settings))
    assert Prompts(engine, ModelFolder.load(folder)).max_model_len == context
    router = RouterConfig.model_validate(dict(plan_router(asked, paths, 8000).settings))
    reader = load_model(router.model).reader
    body = {"model": "tiny-chat", "prompt": [5] * context}
    assert reader.read(COMPLETION_PATH, json.dumps(body).encode()).payload
    body["prompt"] = [5] * (context + 1)
    with pytest.raises(RequestError, match=f"context of {context} tokens"):
        reader.read(COMPLETION_PATH, json.dumps(body).encode())


def test_replicas_differ_in_seed_ports_and_sockets() -> None:
    first, second = (plan_replica(pool(), PATHS, index, 20_001 + index, 20_101 + index) for index in (0, 1))
    for field in ("seed", "port", "eventsEndpoint", "replayEndpoint"):
        assert first.engine.settings[field] != second.engine.settings[field]


def test_settings_reach_the_engine() -> None:
    spec = """
  engine:
    runtime: Simulator
    simulator: {blockSize: 32, cacheBlocks: 100, hostBlocks: 50, device: {preset: CPU, timeScalePercent: 25}}
    feather: {policy: QLearning, chunkTokens: 128, maxWaitSeconds: 3, qLearning: {discountFactor: "0.5"}}
    eviction: {policy: Hotness, hotness: {form: Paper, agingInterval: 7}}
    hostMemory: {minFrequency: 4, promotion: "Off", priority: frequency / length, filter: {clockBits: 12}}
"""
    config = SimulatorConfig.model_validate(dict(plan_replica(pool(spec), PATHS, 0, 1, 2).engine.settings))
    settings = engine_settings(config)
    assert (settings.block_size, settings.cache_blocks, settings.host_blocks) == (32, 100, 50)
    assert settings.queue == "QLearning"
    assert settings.queue_options["gamma"] == 0.5
    assert settings.queue_options["max_wait"] == 3
    assert settings.chunk_blocks == 4
    assert settings.eviction == "HotnessPaper"
    assert settings.eviction_options["aging_interval"] == 7
    assert settings.eviction_options["block_tokens"] == 32
    assert settings.tier_options == {
        "min_frequency": 4,
        "admission": "Hotness",
        "promotion": "Off",
        "promotion_tokens": 4096,
        "priority": "frequency / length",
        "record": {
            "fingerprint_bits": 16, "clock_bits": 12, "frequency_bits": 16, "depth_bits": 8, "aging_interval": None,
        },
    }  # fmt: skip
    assert config.device.time_scale == 0.25


def test_each_replica_has_its_share_of_the_directory_memory() -> None:
    def chunks(spec: str, index: int = 0) -> int | None:
        settings = plan_replica(pool(f"  engine: {{runtime: Simulator}}\n{spec}"), PATHS, index, 1, 2).agent.settings
        return AgentConfig.model_validate(dict(settings)).max_chunks

    small = "  directory: {managed: {maxMemory: 24Mi}}\n"
    assert chunks(f"{small}  replicas: 1") == (16 << 20) * 3 // 4 // ENTRY_BYTES
    assert chunks(f"{small}  replicas: 4") == (16 << 20) * 3 // 4 // ENTRY_BYTES // 4
    assert chunks(f"{small}  replicas: 4", index=7) == (16 << 20) * 3 // 4 // ENTRY_BYTES // 8, "scaled up by hand"
    settings = plan_replica(
        pool(f"  engine: {{runtime: Simulator}}\n{small}  replicas: 4"), PATHS, 7, 1, 2
    ).agent.settings
    share = AgentConfig.model_validate(dict(settings)).share
    assert share == ShareConfig(memory=24 << 20, replicas=4, members_file=PATHS.membership), (
        "and follows the pool's size"
    )
    assert chunks("  directory: {managed: {maxMemory: 1Ti}}") == chunks("") == 1_000_000
    assert chunks("  directory: {redisRef: {url: 'redis://other:1'}}") == 1_000_000, "nobody knows how large it is"


def test_without_host_memory_there_is_no_second_tier() -> None:
    spec = "  engine: {runtime: Simulator, simulator: {hostBlocks: 50}}"
    assert plan_replica(pool(spec), PATHS, 0, 1, 2).engine.settings["hostBlocks"] == 0


def test_host_memory_defaults_to_the_size_of_the_device() -> None:
    spec = "  engine: {runtime: Simulator, simulator: {cacheBlocks: 70}, hostMemory: {}}"
    assert plan_replica(pool(spec), PATHS, 0, 1, 2).engine.settings["hostBlocks"] == 70


def test_settings_of_unchosen_policies_are_reported() -> None:
    spec = """
  engine:
    runtime: Simulator
    feather: {policy: Fcfs, candidateOrder: Paper, bandit: {window: 64}}
    eviction: {policy: Rlt, hotness: {form: Paper, filter: {clockBits: 16}}}
    simulator: {hostBlocks: 9}
  router: {policy: RoundRobin, lbgr: {forgetting: "0.9", pendingOwnerSeconds: 5}}
"""
    assert of_unchosen_policies(pool(spec)) == [
        "spec.engine.feather.candidateOrder",
        "spec.engine.feather.bandit",
        "spec.engine.eviction.hotness",
        "spec.engine.simulator.hostBlocks",
        "spec.router.lbgr.forgetting",
    ]
    assert of_unchosen_policies(pool()) == []


def test_fields_without_effect_on_one_machine_are_reported() -> None:
    spec = """
  engine: {runtime: Simulator, hostMemory: {capacity: 1Gi}}
  autoscaling: {maxReplicas: 3}
  rollout: {drainTimeoutSeconds: 5}
"""
    adapter = "spec.model.adapters.uri"  # of every pool here: a simulated engine has no weights
    assert without_local_effect(pool(spec)) == [
        adapter,
        "spec.autoscaling",
        "spec.engine.hostMemory.capacity",
    ]
    assert without_local_effect(pool()) == [adapter]


def test_endpoint_picker_has_the_manifests_port() -> None:
    spec = "  engine: {runtime: Simulator}\n  router: {endpointPicker: {port: 9100, proxyNamespaces: [edge]}}"
    picked = pool(spec)
    router = RouterConfig.model_validate(dict(plan_router(picked, PATHS, 8000).settings))
    assert router.endpoint_picker is not None
    assert router.endpoint_picker.port == 9100
    assert "spec.router.endpointPicker.proxyNamespaces" in without_local_effect(picked)
    assert RouterConfig.model_validate(dict(plan_router(pool(), PATHS, 8000).settings)).endpoint_picker is None


@pytest.mark.parametrize("form", ["Adaptive", "Paper"])
@pytest.mark.parametrize("policy", ["Bandit", "QLearning", "Heuristic", "Predictive", "ChtOrder", "Fcfs"])
def test_engine_can_make_each_queue(policy: str, form: str) -> None:
    import random

    from plumage.batching import make_queue

    forms = f"bandit: {{forgetting: SlidingWindow, form: {form}}}, qLearning: {{form: {form}}}"
    spec = f"  engine: {{runtime: Simulator, feather: {{policy: {policy}, {forms}}}}}"
    config = SimulatorConfig.model_validate(dict(plan_replica(pool(spec), PATHS, 0, 1, 2).engine.settings))
    settings = engine_settings(config)
    printed = form == "Paper" and policy in ("Bandit", "QLearning")
    assert settings.queue == (f"{policy}Paper" if printed else policy)
    assert len(make_queue(settings.queue, rng=random.Random(0), **settings.queue_options)) == 0


@pytest.mark.parametrize("policy", ["Lbgr", "LbgrPaper", "PrefixAware", "LeastLoad", "RoundRobin"])
def test_router_can_make_each_policy(policy: str) -> None:
    import random

    from plumage.routing import make_policy

    spec = (
        f"  engine: {{runtime: Simulator}}\n  router: {{policy: {policy}, lbgr: {{missMillisecondsPerKilotoken: 200}}}}"
    )
    settings = plan_router(pool(spec), PATHS, 8000).settings["policy"]
    assert make_policy(settings["name"], rng=random.Random(0), **settings["lbgr"]).name == policy


def test_wildcard_host_is_reached_by_loopback() -> None:
    plan = plan_router(pool(), PATHS, 8000, host="0.0.0.0")
    assert plan.settings["listen"]["host"] == "0.0.0.0"
    assert plan.url == "http://127.0.0.1:8000"


def test_features_that_need_a_cluster_are_reported_all_at_once() -> None:
    spec = """
  engine: {runtime: VLLM, hostMemory: {capacity: 1Gi}}
  router: {auth: {adminKeyRef: {name: keys, key: admin}}}
  directory: {redisRef: {url: "redis://redis:6379", passwordRef: {name: redis, key: password}}}
"""
    wanted = load_pool(
        f"""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {{name: chat}}
spec:
  model: {{uri: "hf://Qwen/Qwen3-8B"}}
{spec}""",
        "pool.yaml",
    )
    with pytest.raises(ManifestError) as caught:
        refuse_cluster_fields(wanted, "pool.yaml")
    assert [mistake.split(":")[0] for mistake in caught.value.mistakes] == [
        "spec.router.auth",
        "spec.directory.redisRef.passwordRef",
        "spec.model.uri",
    ]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("router.example", "http://router.example:8000"),
    ],
)
def test_printed_address_works(host: str, url: str) -> None:
    assert plan_router(pool(), PATHS, 8000, host=host).url == url


@pytest.mark.parametrize(("value", "stores"), [('value: "1"', True), ('value: "0"', False), ("", False)])
def test_simulator_stores_responses_where_vllm_would(value: str, stores: bool) -> None:
    made = pool(f"  engine: {{runtime: Simulator, env: [{{name: {STORE_VARIABLE}, {value}}}]}}")
    assert "spec.engine.env" not in without_local_effect(made)
    engine = SimulatorConfig.model_validate(dict(plan_replica(made, PATHS, 0, 20_001, 20_002).engine.settings))
    assert engine.store_responses is stores
    both = pool(f"  engine: {{runtime: Simulator, env: [{{name: {STORE_VARIABLE}, {value}}}, {{name: A, value: b}}]}}")
    assert "spec.engine.env" in without_local_effect(both)
