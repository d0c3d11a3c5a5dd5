"""An InferencePool → the processes that make it up on one machine, with their settings. No I/O, no clock.

Every process is `python -m MODULE --config FILE.json`; the file's content is `settings`. Ports, folders and keys come
in through `Site`, so that a plan is a plain value that tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.scheduling import Placement
from plumage.directory.publisher.held_chunks import capacity_within
from plumage.errors import ManifestError
from plumage.settings import (
    VLLM_READY_SECONDS,
    Meeting,
    SecretFiles,
    agent_settings,
    router_settings,
    simulator_settings,
)
from plumage_cli.local import vllm

__all__ = [
    "HOST",
    "WITHOUT_EFFECT",
    "ProcessPlan",
    "ReplicaPlan",
    "Role",
    "Site",
    "is_set",
    "plan_replica",
    "plan_router",
    "refuse_what_needs_a_cluster",
    "unused",
]

HOST = "127.0.0.1"
Role = Literal["engine", "agent", "router"]


# By their Python names; `unused` spells them as the manifest does. A test walks all fields of the manifest: what is not
# here has an effect on one machine, or is refused there.
WITHOUT_EFFECT = (
    "model.revision",
    "model.token_ref",
    "model.adapters.uri",
    "model.fetch_resources",
    "autoscaling",
    "engine.image",
    "engine.image_pull_policy",
    "engine.env",
    "engine.resources",
    "engine.agent_resources",
    "engine.shared_memory",
    "engine.model_cache",
    "engine.startup_timeout_seconds",
    "engine.host_memory.capacity",
    "engine.host_memory.disk.capacity",
    "engine.host_memory.disk.claim_name",
    "engine.host_memory.disk.path",
    *(f"engine.{name}" for name in Placement.model_fields),
    "engine.runtime_class_name",
    "engine.scheduler_name",
    "engine.service_account_name",
    "engine.image_pull_secrets",
    "router.replicas",
    "router.service.type",
    "router.service.annotations",
    "router.ingress",
    "router.http_route",
    "router.resources",
    *(f"router.{name}" for name in Placement.model_fields),
    "router.limits.max_held",
    "router.timeouts.wake_seconds",
    "directory.managed.resources",
    *(f"directory.managed.{name}" for name in Placement.model_fields),
    "rollout.max_surge",
    "rollout.max_unavailable",
    "network_policy",
    "monitoring",
)


_USED_BY_VLLM = (
    "model.adapters.uri",
    "engine.env",
    "engine.host_memory.capacity",
    "engine.host_memory.disk.capacity",
    "engine.host_memory.disk.path",
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a pool runs: its folder of state (short, for Unix sockets), the model's folder, the directory's address.
    weights: the folder that vLLM loads, where that is another; vllm: where vLLM is, for a pool that wants it."""

    folder: Path
    model_folder: Path
    directory_url: str
    weights: Path | None = None
    vllm: vllm.VllmSite | None = None

    @property
    def membership(self) -> Path:
        return self.folder / "membership.json"

    @property
    def token(self) -> Path:
        """The bearer token of engines and agents."""
        return self.folder / "fleet.token"

    def meeting(self, index: int) -> Meeting:
        """Where the engine and the agent of replica `index` meet."""
        events, replay = (f"ipc://{self.folder}/{name}-{index}" for name in ("events", "replay"))
        return Meeting(events, replay, str(self.token), self.secrets.engine_key)

    @property
    def secrets(self) -> SecretFiles:
        """The keys of the pool itself."""
        return SecretFiles.in_folder(str(self.folder))

    @property
    def admin_key(self) -> Path:
        """The key of the router's admin endpoints."""
        return self.folder / "admin.key"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process. `ready`: an address that answers 200 once it can work. `url`: its base address."""

    name: str
    role: Role
    module: str
    settings: Mapping[str, Any]
    url: str
    ready: str
    ready_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """An engine and the agent beside it."""

    id: str
    index: int
    engine: ProcessPlan
    agent: ProcessPlan


def refuse_what_needs_a_cluster(pool: InferencePool, source: str) -> None:
    """ManifestError naming the fields that one machine can't serve."""
    spec, mistakes = pool.spec, []
    if spec.engine.runtime == "VLLM":
        mistakes += vllm.mistakes(pool)
    if spec.router.gateway_ref is not None:
        mistakes.append("spec.router.gatewayRef: may not be set in local mode: a pool brings its own router here")
    if spec.router.auth.api_keys_ref is not None or spec.router.auth.admin_key_ref is not None:
        mistakes.append("spec.router.auth: may not refer to Secrets in local mode; use plumage up --api-keys FILE")
    if spec.keys_ref is not None:
        mistakes.append("spec.keysRef: may not refer to a Secret in local mode: plumage up makes the pool's keys")
    if spec.directory.redis_ref is not None:
        secrets = (("passwordRef", spec.directory.redis_ref.password_ref), ("caRef", spec.directory.redis_ref.ca_ref))
        mistakes += [
            f"spec.directory.redisRef.{name}: may not refer to a Secret in local mode"
            for name, secret in secrets
            if secret is not None
        ]
    if not spec.model.uri.startswith(("builtin://", "file://")):
        mistakes.append(f"spec.model.uri: must be builtin:// or file:// in local mode, got {spec.model.uri!r}")
    if mistakes:
        raise ManifestError(source, mistakes)


def unused(pool: InferencePool) -> list[str]:
    """Fields that the manifest sets and that one machine makes no use of."""
    used = _USED_BY_VLLM if pool.spec.engine.runtime == "VLLM" else ()
    ways = [path.split(".") for path in WITHOUT_EFFECT if path not in used]
    return [".".join(["spec", *map(to_camel, way)]) for way in ways if is_set(pool.spec, way)]


def is_set(struct: object, path: list[str]) -> bool:
    """Whether a person wrote the field at `path` (Python names); of a list, in any of its items."""
    if isinstance(struct, tuple):
        return any(is_set(item, path) for item in struct)
    return path[0] in getattr(struct, "model_fields_set", ()) and (
        len(path) == 1 or is_set(getattr(struct, path[0]), path[1:])
    )


def plan_replica(pool: InferencePool, site: Site, index: int, engine_port: int, agent_port: int) -> ReplicaPlan:
    """The engine and the agent of replica `index`."""
    replica = f"{pool.metadata.name}-{index}"
    return ReplicaPlan(
        id=replica,
        index=index,
        engine=_engine(pool, site, replica, index, engine_port),
        agent=_agent(pool, site, replica, index, engine_port, agent_port),
    )


def _engine(pool: InferencePool, site: Site, replica: str, index: int, port: int) -> ProcessPlan:
    url = f"http://{HOST}:{port}"
    if pool.spec.engine.runtime == "VLLM":
        return _vllm(pool, site, replica, index, port)
    settings = simulator_settings(
        pool,
        site.meeting(index),
        model_folder=str(site.model_folder),
        host=HOST,
        port=port,
        seed=pool.spec.engine.simulator.seed + index,
    )
    return ProcessPlan(f"engine {replica}", "engine", "plumage_engine.simulator", settings, url, f"{url}/health")


def _vllm(pool: InferencePool, site: Site, replica: str, index: int, port: int) -> ProcessPlan:
    assert site.vllm is not None, "a site of a pool that wants vLLM has it"
    url = f"http://{HOST}:{port}"
    settings = vllm.settings(
        pool,
        site.vllm,
        site.meeting(index),
        model_folder=site.weights or site.model_folder,
        index=index,
        port=port,
        host=HOST,
    )
    name, module = f"engine {replica}", "plumage_cli.local.vllm_child"
    return ProcessPlan(name, "engine", module, settings, url, f"{url}/health", VLLM_READY_SECONDS)


def _agent(pool: InferencePool, site: Site, replica: str, index: int, engine_port: int, port: int) -> ProcessPlan:
    url, warmup = f"http://{HOST}:{port}", pool.spec.directory.warmup
    settings = agent_settings(
        pool,
        site.meeting(index),
        model_folder=str(site.model_folder),
        engine_url=f"http://{HOST}:{engine_port}",
        directory_url=site.directory_url,
        host=HOST,
        port=port,
        peers={"peersFile": str(site.membership)},
    )
    settings["replica"] = replica
    if pool.spec.directory.redis_ref is None:
        memory = int(pool.spec.directory.managed.max_memory)
        replicas = pool.spec.initial_replicas
        settings["maxChunks"] = capacity_within(memory, max(replicas, index + 1))
        settings["share"] = {"memory": memory, "replicas": replicas, "membersFile": str(site.membership)}
    start = VLLM_READY_SECONDS if pool.spec.engine.runtime == "VLLM" else 60.0
    ready_seconds = start + warmup.timeout_seconds * warmup.enabled
    return ProcessPlan(
        f"agent {replica}", "agent", "plumage_engine.agent", settings, url, f"{url}/readyz", ready_seconds
    )


def plan_router(
    pool: InferencePool, site: Site, port: int, *, host: str = HOST, api_keys: Path | None = None, fd: int | None = None
) -> ProcessPlan:
    """The pool's router, listening for clients on `host`:`port`. fd: the socket there, where the supervisor has it."""
    auth = {"adminKeyFile": str(site.admin_key)}
    if api_keys is not None:
        auth["apiKeysFile"] = str(api_keys)
    settings = router_settings(
        pool,
        model_folder=str(site.model_folder),
        directory_url=site.directory_url,
        host=host,
        port=port,
        membership={"membershipFile": str(site.membership)},
        auth=auth,
        secrets=site.secrets,
    )
    if fd is not None:
        settings["listen"]["fd"] = fd
    url = f"http://{_reached_at(host)}:{port}"
    return ProcessPlan("router", "router", "plumage_router", settings, url, f"{url}/health")


def _reached_at(host: str) -> str:
    """What stands in an address of this machine for the host that is listened on."""
    anywhere = {"0.0.0.0": HOST, "::": "::1"}
    reached = anywhere.get(host, host)
    return f"[{reached}]" if ":" in reached else reached
