"""The processes of an InferencePool on one machine, with their settings. No I/O, no clock.

Every process is `python -m MODULE --config FILE.json`; the file's content is `settings`. Folders and keys come from
`LocalPaths`, ports from the caller, so a plan is a plain value that tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from plumage.api.v1alpha1 import InferencePool
from plumage.settings.addresses import DirectoryAddress
from plumage.settings.agent import agent_settings
from plumage.settings.agent_config import AgentConfig, AgentListen
from plumage.settings.router import router_settings
from plumage.settings.router_config import AuthConfig, ListenConfig
from plumage.settings.simulator import simulator_settings
from plumage.settings.vllm import VLLM_READY_SECONDS
from plumage_cli.local.plan.paths import HOST, LocalPaths
from plumage_cli.local.plan.vllm import adapter_folders, vllm_settings
from plumage_cli.local.pool_view import router_name

__all__ = ["ProcessPlan", "ReplicaPlan", "Role", "plan_replica", "plan_router", "reached_at"]

Role = Literal["engine", "agent", "router"]


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process.

    settings: the content of its file. port: the one it listens on. url: its base address. ready: a URL that answers 200
    once it is ready. ready_seconds: the timeout.
    """

    name: str
    role: Role
    module: str
    settings: Mapping[str, Any]
    port: int
    url: str
    ready: str
    ready_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """An engine and its agent."""

    id: str
    index: int
    engine: ProcessPlan
    agent: ProcessPlan


def plan_replica(pool: InferencePool, paths: LocalPaths, index: int, engine_port: int, agent_port: int) -> ReplicaPlan:
    """The engine and the agent of replica `index`."""
    replica = f"{pool.metadata.name}-{index}"
    return ReplicaPlan(
        id=replica,
        index=index,
        engine=_engine(pool, paths, replica, index, engine_port),
        agent=_agent(pool, paths, replica, index, engine_port, agent_port),
    )


def _engine(pool: InferencePool, paths: LocalPaths, replica: str, index: int, port: int) -> ProcessPlan:
    url = f"http://{HOST}:{port}"
    if pool.spec.engine.runtime == "VLLM":
        return _vllm(pool, paths, replica, index, port)
    settings = simulator_settings(
        pool,
        paths.sockets(index),
        model_folder=str(paths.model_folder),
        host=HOST,
        port=port,
        seed=pool.spec.engine.simulator.seed + index,
    ).written()
    return ProcessPlan(f"engine {replica}", "engine", "plumage_engine.simulator", settings, port, url, f"{url}/health")


def _vllm(pool: InferencePool, paths: LocalPaths, replica: str, index: int, port: int) -> ProcessPlan:
    assert paths.vllm is not None, "the caller found the interpreter of a pool that runs vLLM"
    url = f"http://{HOST}:{port}"
    settings = vllm_settings(
        pool,
        paths.vllm,
        paths.sockets(index),
        model_folder=paths.weights or paths.model_folder,
        index=index,
        port=port,
        host=HOST,
    )
    name, module = f"engine {replica}", "plumage_cli.local.processes.vllm_child"
    return ProcessPlan(name, "engine", module, settings, port, url, f"{url}/health", VLLM_READY_SECONDS)


def _agent(
    pool: InferencePool, paths: LocalPaths, replica: str, index: int, engine_port: int, port: int
) -> ProcessPlan:
    url, warmup = f"http://{HOST}:{port}", pool.spec.directory.warmup
    file = agent_settings(
        pool,
        paths.sockets(index),
        model_folder=str(paths.model_folder),
        engine_url=f"http://{HOST}:{engine_port}",
        directory=DirectoryAddress(paths.directory_url),
        listen=AgentListen(host=HOST, port=port),
        members=paths.membership,
        index=index,
        adapters=adapter_folders(pool),
    )
    settings = AgentConfig(**file.given(), replica=replica).written()
    start = VLLM_READY_SECONDS if pool.spec.engine.runtime == "VLLM" else 60.0
    ready_seconds = start + warmup.timeout_seconds * warmup.enabled
    return ProcessPlan(
        f"agent {replica}", "agent", "plumage_engine.agent", settings, port, url, f"{url}/readyz", ready_seconds
    )


def plan_router(
    pool: InferencePool,
    paths: LocalPaths,
    port: int,
    *,
    number: int = 0,
    host: str = HOST,
    api_keys: Path | None = None,
    handover_fd: int | None = None,
) -> ProcessPlan:
    """A router of the pool, which listens on `host`:`port`. handover_fd: to a supervisor that passes clients on."""
    settings = router_settings(
        pool,
        model_folder=str(paths.model_folder),
        directory=DirectoryAddress(paths.directory_url),
        listen=ListenConfig(host=host, port=port, handover_fd=handover_fd),
        membership=paths.membership,
        auth=AuthConfig(admin_key_file=paths.admin_key, api_keys_file=api_keys),
        secrets=paths.secrets,
    ).written()
    url = f"http://{reached_at(host)}:{port}"
    return ProcessPlan(router_name(number), "router", "plumage_router", settings, port, url, f"{url}/health")


def reached_at(host: str) -> str:
    """The host of a URL for a listening address: a wildcard address is replaced by the loopback address."""
    anywhere = {"0.0.0.0": HOST, "::": "::1"}
    reached = anywhere.get(host, host)
    return f"[{reached}]" if ":" in reached else reached
