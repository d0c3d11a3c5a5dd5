"""The settings files of a pool's ConfigMaps, and the Secrets that its pods mount. Pure.

The files are those of local mode, with the paths and addresses of a cluster. The operator may create Secrets and has no
other verb on them. So it creates the Secret with a pool's keys once, under a name that no other object has, and never
changes it. To rotate a key, change its content. A Secret that `spec.keysRef` names belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from plumage.api.v1alpha1.exposure import TlsSpec
from plumage.api.v1alpha1.field_types import SecretKeyRef
from plumage.api.v1alpha1.router import AuthSpec
from plumage.cluster import (
    AGENT_PORT,
    CONFIG_FOLDER,
    DIRECTORY_PORT,
    ENDPOINT_PICKER_PORT,
    ENGINE_PORT,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    RUN_FOLDER,
    TOKEN_FOLDER,
)
from plumage.settings import agent, router, simulator, vllm
from plumage.settings.addresses import DirectoryAddress, EngineSockets
from plumage.settings.agent_config import AgentFile, AgentListen
from plumage.settings.plugin_config import PluginSettings
from plumage.settings.router_config import (
    AuthConfig,
    EndpointSlicesConfig,
    EngineTlsConfig,
    ListenConfig,
    MembershipConfig,
    RouterConfig,
    TlsConfig,
    WaitQueueConfig,
)
from plumage.settings.secrets import ENGINE_KEY, SALT_KEY, CertificateFiles, EngineTlsFiles, SecretFiles
from plumage.settings.simulator_config import SimulatorConfig
from plumage_operator.config import OperatorConfig
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.model_files import adapter_files, tokenizer_files
from plumage_operator.resources.workload import MountedSecret, secret_volume

__all__ = [
    "ADMIN_FOLDER",
    "AGENT_LIVE",
    "ALL_ADDRESSES",
    "CLIENT_TLS_FOLDER",
    "CORDONED_FILE",
    "DIRECTORY_FOLDER",
    "ENGINE_LIVE",
    "KEYS_FOLDER",
    "KEY_ENTRIES",
    "LEAVE_SECONDS",
    "PLUGIN_KEY",
    "TLS_FOLDER",
    "agent_settings",
    "build_key_secret",
    "directory_mounts",
    "directory_volumes",
    "engine_account",
    "engine_certificates",
    "engine_key",
    "engine_restart_settings",
    "engine_sockets",
    "engine_tls",
    "engine_trust",
    "engine_variable",
    "key_files",
    "keys_mount",
    "keys_secret",
    "keys_volume",
    "plugin_settings",
    "port_certificate",
    "router_auth",
    "router_listen",
    "router_settings",
    "simulator_settings",
]

ALL_ADDRESSES: Final = "0.0.0.0"

DIRECTORY_FOLDER: Final = "/etc/plumage-directory"

KEYS_FOLDER: Final = "/etc/plumage-keys"

ADMIN_FOLDER: Final = "/etc/plumage-admin"

TLS_FOLDER: Final = "/etc/plumage-tls"

CLIENT_TLS_FOLDER: Final = "/etc/plumage-client-tls"

_ENGINE_CA: Final = "/etc/plumage-engine-ca"

_PAIR: Final = ("tls.crt", "tls.key")
_AUTHORITY: Final = "ca.crt"

CORDONED_FILE: Final = "cordoned.json"

LEAVE_SECONDS: Final = 5
"""A router that ends accepts connections for this long, until kube-proxy stops sending them."""

PLUGIN_KEY: Final = "plugin.json"
"""The key of the engine's ConfigMap with the plugin's settings, which vLLM reads from an environment variable."""

# Settings that restart no pod: an agent passes a changed batching policy and changed adapters to the running engine. It
# learns its share of the directory's memory from the membership.
ENGINE_LIVE: Final = ("feather",)

AGENT_LIVE: Final = ("share", "max_chunks", "adapters")


def engine_sockets(context: PoolContext) -> EngineSockets:
    """The sockets and key files that the engine and the agent of one pod share."""
    events, replay = (f"ipc://{RUN_FOLDER}/{name}" for name in ("events", "replay"))
    return EngineSockets(events, replay, f"{RUN_FOLDER}/token", key_files(context).engine_key, _engine_files(context))


def _engine_files(context: PoolContext) -> EngineTlsFiles | None:
    tls = context.pool.spec.engine.tls
    if tls is None:
        return None
    client = None if tls.client_secret_name is None else CertificateFiles.in_folder(CLIENT_TLS_FOLDER)
    return EngineTlsFiles(CertificateFiles.in_folder(TLS_FOLDER), client)


def engine_account(context: PoolContext) -> str:
    """The service account of engine pods."""
    return context.pool.spec.engine.service_account_name or context.name("engine")


def engine_key(context: PoolContext) -> str:
    """The key of the engine's ConfigMap with the engine's settings."""
    return PLUGIN_KEY if context.pool.spec.engine.runtime == "VLLM" else "engine.json"


def simulator_settings(context: PoolContext) -> SimulatorConfig:
    return simulator.simulator_settings(
        context.pool,
        engine_sockets(context),
        model_folder=tokenizer_files(context).path,
        host=ALL_ADDRESSES,
        port=ENGINE_PORT,
        seed=context.pool.spec.engine.simulator.seed,
        adapters=False,
    )


def plugin_settings(context: PoolContext) -> PluginSettings:
    return vllm.plugin_settings(context.pool, engine_sockets(context).token, seed=0)


def agent_settings(context: PoolContext) -> AgentFile:
    """Returns the agent's file. The agent accepts its peers' tokens, and the operator's for reports only.

    The operator's is also among `callers`, because an agent of an older version knows only that list.
    """
    peers = _accounts((context.namespace, engine_account(context)))
    operator = _accounts((context.config.namespace, context.config.service_account))
    return agent.agent_settings(
        context.pool,
        engine_sockets(context),
        model_folder=tokenizer_files(context).path,
        engine_url=f"{'http' if context.pool.spec.engine.tls is None else 'https'}://127.0.0.1:{ENGINE_PORT}",
        directory=_directory(context),
        listen=AgentListen(host=ALL_ADDRESSES, port=AGENT_PORT),
        members=f"{context.name('engine')}.{context.namespace}.svc",
        feather_file=Path(CONFIG_FOLDER, engine_key(context)),
        adapters={name: place.path for name, place in adapter_files(context.pool).items()},
        callers=(*peers, *operator),
        figures_only=operator,
        peer_token_file=Path(TOKEN_FOLDER, "token"),
    )


def router_settings(context: PoolContext, cordoned_file: str = CORDONED_FILE) -> RouterConfig:
    spec = context.pool.spec.router
    slices = EndpointSlicesConfig(
        namespace=context.namespace,
        service=context.name("engine"),
        cordoned_file=Path(CONFIG_FOLDER, cordoned_file),
    )
    return router.router_settings(
        context.pool,
        model_folder=tokenizer_files(context).path,
        directory=_directory(context),
        listen=router_listen(spec.tls),
        membership=MembershipConfig(endpoint_slices=slices),
        auth=router_auth(context.config, spec.auth),
        secrets=key_files(context),
        engine_tls=engine_tls(context),
        wait_queue=WaitQueueConfig(max_requests=spec.limits.max_held, max_seconds=spec.timeouts.wake_seconds),
        leave=LEAVE_SECONDS,
        picker_port=ENDPOINT_PICKER_PORT,
    )


def engine_tls(context: PoolContext) -> EngineTlsConfig | None:
    """A router reaches engines by their addresses, so it asks for the name of their Service."""
    tls = context.pool.spec.engine.tls
    if tls is None:
        return None
    folders = {volume: Path(folder) for volume, folder, *_ in engine_trust(context)}
    client = folders.get(f"client-tls{context.volume_suffix}")
    return EngineTlsConfig(
        ca_file=folders[f"engine-ca{context.volume_suffix}"] / "ca.crt",
        server_name=f"{context.name('engine')}.{context.namespace}.svc",
        certificate_file=None if client is None else client / "tls.crt",
        key_file=None if client is None else client / "tls.key",
    )


def engine_certificates(context: PoolContext) -> list[MountedSecret]:
    """The Secrets of an engine's pod. Of the second the engine needs the authority; agent and probe show the rest."""
    tls = context.pool.spec.engine.tls
    if tls is None:
        return []
    own = MountedSecret("tls", TLS_FOLDER, tls.secret_name, _same(_PAIR))
    if tls.client_secret_name is None:
        return [own]
    return [own, MountedSecret("client-tls", CLIENT_TLS_FOLDER, tls.client_secret_name, _same((*_PAIR, _AUTHORITY)))]


def engine_trust(context: PoolContext) -> list[MountedSecret]:
    """The Secrets of a router's pod: the authority of engines, never their keys, and the router's own certificate."""
    tls, suffix = context.pool.spec.engine.tls, context.volume_suffix
    if tls is None:
        return []
    trusted = MountedSecret(f"engine-ca{suffix}", f"{_ENGINE_CA}{suffix}", tls.secret_name, _same((_AUTHORITY,)))
    if tls.client_secret_name is None:
        return [trusted]
    own = MountedSecret(f"client-tls{suffix}", f"{CLIENT_TLS_FOLDER}{suffix}", tls.client_secret_name, _same(_PAIR))
    return [trusted, own]


def port_certificate(tls: TlsSpec | None) -> list[MountedSecret]:
    """The Secret with the certificate of the clients' port."""
    return [] if tls is None else [MountedSecret("tls", TLS_FOLDER, tls.secret_name, _same(_PAIR))]


def _same(names: Iterable[str]) -> dict[str, str]:
    """Entries whose files have their names."""
    return {name: name for name in names}


def router_listen(tls: TlsSpec | None) -> ListenConfig:
    """Where a router listens, of a pool or of a gateway."""
    folder = Path(TLS_FOLDER)
    return ListenConfig(
        host=ALL_ADDRESSES,
        port=ROUTER_PORT,
        metrics_port=ROUTER_METRICS_PORT,
        tls=None if tls is None else TlsConfig(certificate_file=folder / "tls.crt", key_file=folder / "tls.key"),
    )


def router_auth(config: OperatorConfig, refs: AuthSpec) -> AuthConfig:
    """Keys of clients and of the admin endpoints are files. The operator may read the fleet's report."""
    return AuthConfig(
        callers=_accounts((config.namespace, config.service_account)),
        api_keys_file=None if refs.api_keys_ref is None else Path(KEYS_FOLDER, "keys"),
        admin_key_file=None if refs.admin_key_ref is None else Path(ADMIN_FOLDER, "key"),
    )


def engine_restart_settings(context: PoolContext) -> list[dict[str, Any]]:
    """The settings that an engine pod reads only at its start, so that a change must replace the pod.

    Sorting the batch is a part of FEATHER that the device's workers read at their start.
    """
    simulated = context.pool.spec.engine.runtime == "Simulator"
    engine = simulator_settings(context) if simulated else plugin_settings(context)
    order = {"orderBatch": context.pool.spec.engine.feather.order_batch}
    return [engine.written(without=ENGINE_LIVE), order, agent_settings(context).written(without=AGENT_LIVE)]


def _directory(context: PoolContext) -> DirectoryAddress:
    reference = context.pool.spec.directory.redis_ref
    if reference is None:
        return DirectoryAddress(f"redis://{context.name('directory')}.{context.namespace}.svc:{DIRECTORY_PORT}")
    files = {
        name: Path(f"{DIRECTORY_FOLDER}/{name}{context.volume_suffix}/{name}")
        for name, _ in _directory_secrets(context)
    }
    return DirectoryAddress(reference.url, reference.username, files.get("password"), files.get("ca"))


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


def _accounts(*names: tuple[str, str]) -> tuple[str, ...]:
    return tuple(f"system:serviceaccount:{namespace}:{name}" for namespace, name in names)


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
