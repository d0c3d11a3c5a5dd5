"""A pool's manifest → the settings file of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plumage.api.v1alpha1 import InferencePool
from plumage.directory.publisher.held_chunks import MAX_CHUNKS, capacity_within
from plumage.settings.addresses import DirectoryAddress, EngineSockets
from plumage.settings.agent_config import AdapterConfig, AgentFile, AgentListen, ShareConfig, WarmupConfig

__all__ = ["agent_settings"]


def agent_settings(
    pool: InferencePool,
    sockets: EngineSockets,
    *,
    model_folder: str,
    engine_url: str,
    directory: DirectoryAddress,
    listen: AgentListen,
    members: Path | str,
    index: int = 0,
    feather_file: Path | None = None,
    adapters: Mapping[str, str] | None = None,
    callers: tuple[str, ...] = (),
    figures_only: tuple[str, ...] = (),
    peer_token_file: Path | None = None,
) -> AgentFile:
    """Returns the settings of `python -m plumage_engine.agent`, without the replica's id.

    members: the membership file, or the name of the pool's headless Service. A new replica finds its peers there, and
    the agents their number. index: of the replica, in local mode, where its number may exceed the manifest's.
    adapters: the folder or repository of each, by name.
    """
    client = sockets.tls.client if sockets.tls is not None else None
    return AgentFile(
        pool=pool.metadata.name,
        model=pool.spec.model.served_name,
        model_folder=model_folder,
        engine_url=engine_url,
        engine_token_file=Path(sockets.token),
        engine_api_key_file=Path(sockets.api_key),
        engine_certificate_file=None if client is None else Path(client.certificate),
        engine_certificate_key_file=None if client is None else Path(client.key),
        events_endpoint=sockets.events,
        replay_endpoint=sockets.replay,
        directory_url=directory.url,
        directory_username=directory.username,
        directory_password_file=directory.password_file,
        directory_ca_file=directory.ca_file,
        listen=listen,
        token_file=Path(sockets.token),
        peer_token_file=peer_token_file,
        callers=callers,
        figures_only=figures_only,
        feather_file=feather_file,
        **_adapters(adapters or {}),
        warmup=_warmup(pool, members),
        max_chunks=_max_chunks(pool, index),
        share=_share(pool, members),
    )


def _adapters(adapters: Mapping[str, str]) -> dict[str, tuple[AdapterConfig, ...]]:
    """Left out where there are none, so that agents of an older version read the file without a warning."""
    found = tuple(AdapterConfig(name=name, path=path) for name, path in adapters.items())
    return {"adapters": found} if found else {}


def _warmup(pool: InferencePool, members: Path | str) -> WarmupConfig:
    warmup = pool.spec.directory.warmup
    return WarmupConfig(
        enabled=warmup.enabled,
        peers_file=members if isinstance(members, Path) else None,
        peers_service=members if isinstance(members, str) else None,
        max_tokens=warmup.max_tokens,
        timeout_seconds=warmup.timeout_seconds,
    )


def _max_chunks(pool: InferencePool, index: int) -> int:
    if pool.spec.directory.redis_ref is not None:
        return MAX_CHUNKS
    memory = int(pool.spec.directory.managed.max_memory)
    return capacity_within(memory, max(pool.spec.initial_replicas, index + 1))


def _share(pool: InferencePool, members: Path | str) -> ShareConfig | None:
    """None for a directory that is not the pool's own, because its memory is unknown."""
    if pool.spec.directory.redis_ref is not None:
        return None
    return ShareConfig(
        memory=int(pool.spec.directory.managed.max_memory),
        replicas=max(1, pool.spec.initial_replicas),
        members_file=members if isinstance(members, Path) else None,
        members_service=members if isinstance(members, str) else None,
    )
