"""The settings files of a pool's ConfigMaps, and the Secrets that its pods mount. Pure.

The files are those of local mode, with the paths and addresses of a cluster. The operator may create Secrets and has no
other verb on them. So it creates the Secret with a pool's keys once, under a name that no other object has, and never
changes it. To rotate a key, change its content. A Secret that `spec.keysRef` names belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from plumage import settings
from plumage.api.v1alpha1.field_types import SecretKeyRef
from plumage.api.v1alpha1.router import AuthSpec
from plumage.cluster import (
    AGENT_PORT,
    CONFIG_FOLDER,
    DIRECTORY_PORT,
    ENGINE_PORT,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    RUN_FOLDER,
    TOKEN_FOLDER,
)
from plumage.directory.publisher.held_chunks import capacity_within
from plumage.settings import ENGINE_KEY, SALT_KEY, SecretFiles
from plumage_operator.config import OperatorConfig
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.model_files import tokenizer_files
from plumage_operator.resources.workload import secret_volume

__all__ = [
    "ADMIN_FOLDER",
    "AGENT_LIVE",
    "ALL_ADDRESSES",
    "CORDONED_FILE",
    "DIRECTORY_FOLDER",
    "ENGINE_LIVE",
    "KEYS_FOLDER",
    "KEY_ENTRIES",
    "LEAVE_SECONDS",
    "PLUGIN_KEY",
    "agent_settings",
    "build_key_secret",
    "directory_mounts",
    "directory_volumes",
    "engine_account",
    "engine_key",
    "engine_restart_settings",
    "engine_sockets",
    "engine_variable",
    "key_files",
    "keys_mount",
    "keys_secret",
    "keys_volume",
    "plugin_settings",
    "router_auth",
    "router_settings",
    "simulator_settings",
    "without",
]

ALL_ADDRESSES: Final = "0.0.0.0"

DIRECTORY_FOLDER: Final = "/etc/plumage-directory"

KEYS_FOLDER: Final = "/etc/plumage-keys"

ADMIN_FOLDER: Final = "/etc/plumage-admin"

CORDONED_FILE: Final = "cordoned.json"

LEAVE_SECONDS: Final = 5
"""A router that ends accepts connections for this long, until kube-proxy stops sending them."""

PLUGIN_KEY: Final = "plugin.json"
"""The key of the engine's ConfigMap with the plugin's settings, which vLLM reads from an environment variable."""

# Settings that restart no pod: an agent passes a changed batching policy to the running engine, and learns its share of
# the directory's memory from the membership.
ENGINE_LIVE: Final = ("feather",)

AGENT_LIVE: Final = ("share", "maxChunks")


def engine_sockets(context: PoolContext) -> settings.EngineSockets:
    """The sockets and key files that the engine and the agent of one pod share."""
    events, replay = (f"ipc://{RUN_FOLDER}/{name}" for name in ("events", "replay"))
    return settings.EngineSockets(events, replay, f"{RUN_FOLDER}/token", key_files(context).engine_key)


def engine_account(context: PoolContext) -> str:
    """The service account of engine pods."""
    return context.pool.spec.engine.service_account_name or context.name("engine")


def engine_key(context: PoolContext) -> str:
    """The key of the engine's ConfigMap with the engine's settings."""
    return PLUGIN_KEY if context.pool.spec.engine.runtime == "VLLM" else "engine.json"


def simulator_settings(context: PoolContext) -> dict[str, Any]:
    return settings.simulator_settings(
        context.pool,
        engine_sockets(context),
        model_folder=tokenizer_files(context).path,
        host=ALL_ADDRESSES,
        port=ENGINE_PORT,
        seed=context.pool.spec.engine.simulator.seed,
    )


def plugin_settings(context: PoolContext) -> dict[str, Any]:
    return settings.plugin_settings(context.pool, engine_sockets(context).token, seed=0)


def agent_settings(context: PoolContext) -> dict[str, Any]:
    peers = f"{context.name('engine')}.{context.namespace}.svc"
    written = settings.agent_settings(
        context.pool,
        engine_sockets(context),
        model_folder=tokenizer_files(context).path,
        engine_url=f"http://127.0.0.1:{ENGINE_PORT}",
        directory_url=_directory_url(context),
        host=ALL_ADDRESSES,
        port=AGENT_PORT,
        peers={"peersService": peers},
    )
    written["featherFile"] = f"{CONFIG_FOLDER}/{engine_key(context)}"
    return {**written, **_directory_files(context), **_agent_callers(context), **_share(context, peers)}


def router_settings(context: PoolContext, cordoned_file: str = CORDONED_FILE) -> dict[str, Any]:
    spec = context.pool.spec.router
    slices = {
        "namespace": context.namespace,
        "service": context.name("engine"),
        "cordonedFile": f"{CONFIG_FOLDER}/{cordoned_file}",
    }
    written = settings.router_settings(
        context.pool,
        model_folder=tokenizer_files(context).path,
        directory_url=_directory_url(context),
        host=ALL_ADDRESSES,
        port=ROUTER_PORT,
        membership={"membership": {"endpointSlices": slices}},
        auth=router_auth(context.config, spec.auth),
        secrets=key_files(context),
    )
    written["listen"]["metricsPort"] = ROUTER_METRICS_PORT
    written["timeouts"]["leave"] = LEAVE_SECONDS
    hold = {"maxRequests": spec.limits.max_held, "maxSeconds": spec.timeouts.wake_seconds}
    return {**written, "hold": hold, **_directory_files(context)}


def router_auth(config: OperatorConfig, refs: AuthSpec) -> dict[str, Any]:
    """Keys of clients and of the admin endpoints are files. The operator may read the fleet's report."""
    auth: dict[str, Any] = {"callers": _accounts((config.namespace, config.service_account))}
    if refs.api_keys_ref is not None:
        auth["apiKeysFile"] = f"{KEYS_FOLDER}/keys"
    if refs.admin_key_ref is not None:
        auth["adminKeyFile"] = f"{ADMIN_FOLDER}/key"
    return auth


def engine_restart_settings(context: PoolContext) -> list[dict[str, Any]]:
    """The settings that an engine pod reads only at its start, so that a change must replace the pod.

    Sorting the batch is a part of FEATHER that the device's workers read at their start.
    """
    engine = (
        simulator_settings(context) if context.pool.spec.engine.runtime == "Simulator" else plugin_settings(context)
    )
    order = {"orderBatch": context.pool.spec.engine.feather.order_batch}
    return [without(engine, ENGINE_LIVE), order, without(agent_settings(context), AGENT_LIVE)]


def _directory_url(context: PoolContext) -> str:
    reference = context.pool.spec.directory.redis_ref
    if reference is not None:
        return reference.url
    return f"redis://{context.name('directory')}.{context.namespace}.svc:{DIRECTORY_PORT}"


def directory_volumes(context: PoolContext) -> list[dict[str, Any]]:
    """Secrets of an external directory: its password and the certificates to trust."""
    return [
        secret_volume(f"directory-{name}{context.volume_suffix}", ref.name, {ref.key: name})
        for name, ref in _directory_secrets(context)
    ]


def directory_mounts(context: PoolContext) -> list[dict[str, Any]]:
    """A folder each, because two Secrets can't share one."""
    return [
        {
            "name": f"directory-{name}{context.volume_suffix}",
            "mountPath": f"{DIRECTORY_FOLDER}/{name}{context.volume_suffix}",
            "readOnly": True,
        }
        for name, _ in _directory_secrets(context)
    ]


def _directory_secrets(context: PoolContext) -> list[tuple[str, SecretKeyRef]]:
    reference = context.pool.spec.directory.redis_ref
    refs = {} if reference is None else {"password": reference.password_ref, "ca": reference.ca_ref}
    return [(name, ref) for name, ref in refs.items() if ref is not None]


def _directory_files(context: PoolContext) -> dict[str, str]:
    reference = context.pool.spec.directory.redis_ref
    names = {"password": "directoryPasswordFile", "ca": "directoryCaFile"}
    files = {
        names[name]: f"{DIRECTORY_FOLDER}/{name}{context.volume_suffix}/{name}"
        for name, _ in _directory_secrets(context)
    }
    if reference is not None and reference.username is not None:
        files["directoryUsername"] = reference.username
    return files


def _agent_callers(context: PoolContext) -> dict[str, Any]:
    """The service accounts whose tokens an agent accepts: its peers', and the operator's for reports only.

    The operator's is also among `callers`, because an agent of an older version knows only that list.
    """
    peers = _accounts((context.namespace, engine_account(context)))
    operator = _accounts((context.config.namespace, context.config.service_account))
    return {"callers": [*peers, *operator], "figuresOnly": operator, "peerTokenFile": f"{TOKEN_FOLDER}/token"}


def _accounts(*names: tuple[str, str]) -> list[str]:
    return [f"system:serviceaccount:{namespace}:{name}" for namespace, name in names]


def _share(context: PoolContext, members: str) -> dict[str, Any]:
    if context.pool.spec.directory.redis_ref is not None:
        return {}
    memory = int(context.pool.spec.directory.managed.max_memory)
    replicas = max(1, context.pool.spec.initial_replicas)
    return {
        "maxChunks": capacity_within(memory, replicas),
        "share": {"memory": memory, "replicas": replicas, "membersService": members},
    }


KEY_ENTRIES: Final = (ENGINE_KEY, SALT_KEY)
"""The entries of the Secret that the operator creates, each a random token."""

_FOLDER: Final = "/etc/plumage-pool"


def keys_secret(context: PoolContext) -> str:
    """The Secret's name. It contains the uid, because a deleted pool's Secret of that name exists until it is
    collected.
    """
    reference = context.pool.spec.keys_ref
    if reference is not None:
        return reference.name
    return "-".join(part for part in (context.metadata.name, "keys", context.metadata.uid[:8]) if part)


def build_key_secret(context: PoolContext) -> Child:
    """The Secret without its values, which are random and no part of a plan."""
    secret = context.child("v1", "Secret", "engine", {"type": "Opaque"})
    return {**secret, "metadata": {**secret["metadata"], "name": keys_secret(context)}}


def key_files(context: PoolContext) -> SecretFiles:
    """The files of the keys in a pod."""
    return SecretFiles.in_folder(f"{_FOLDER}{context.volume_suffix}")


def keys_volume(context: PoolContext, *, optional: bool = False) -> dict[str, Any]:
    """A volume with all entries, since `previous-engine-key` comes and goes.

    optional: the pod starts without the Secret, as a pod of several pools does.
    """
    secret = {"secretName": keys_secret(context), "defaultMode": 0o440}
    return {
        "name": f"keys-of-pool{context.volume_suffix}",
        "secret": {**secret, "optional": True} if optional else secret,
    }


def keys_mount(context: PoolContext) -> dict[str, Any]:
    """The mount of `keys_volume`."""
    return {
        "name": f"keys-of-pool{context.volume_suffix}",
        "mountPath": f"{_FOLDER}{context.volume_suffix}",
        "readOnly": True,
    }


def engine_variable(context: PoolContext) -> dict[str, Any]:
    """vLLM's key. An argument would show it in the pod's spec and in every list of processes."""
    reference = {"name": keys_secret(context), "key": ENGINE_KEY}
    return {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": reference}}


def without(settings: Mapping[str, Any], live: Iterable[str]) -> dict[str, Any]:
    """The settings without those that a running process reloads, or that only the next process needs."""
    left_out = frozenset(live)
    return {key: value for key, value in settings.items() if key not in left_out}
