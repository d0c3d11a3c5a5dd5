"""The settings file of an agent: what it may contain, and its bounds. Operator and local mode write it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from plumage import defaults
from plumage.cluster import AGENT_PORT
from plumage.directory.client.file_options import with_file_options
from plumage.directory.publisher.held_chunks import MAX_CHUNKS
from plumage.incluster.config import ApiServerConfig
from plumage.loopback import is_loopback
from plumage.settings.addresses import EventEndpoint
from plumage.version_skew import Settings

__all__ = ["ADAPTER_SECONDS", "AdapterConfig", "AgentConfig", "AgentFile", "AgentListen", "ShareConfig", "WarmupConfig"]

ADAPTER_SECONDS = 120.0
"""That a new replica waits for its adapters at most, if the hub is slow. A download takes seconds."""

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+(/|$)")]


class AgentListen(Settings):
    """Where the agent serves. Without a token file only a loopback address is allowed, because `/v1/plumage/hottest`
    answers with token ids, which are prompts."""

    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)


class WarmupConfig(Settings):
    """What a new replica computes before it is ready.

    peers: URLs of agents. peers_file: the membership file, read for each warm-up. peers_service: the pool's headless
    Service, resolved for each warm-up; its agents listen on peers_port. max_tokens: prompt tokens at most.
    timeout_seconds: after it the replica is ready with what it has computed.
    """

    enabled: bool = defaults.WARMUP
    peers: tuple[HttpUrl, ...] = ()
    peers_file: Path | None = None
    peers_service: str | None = Field(None, min_length=1, max_length=253)
    peers_port: int = Field(AGENT_PORT, ge=1, le=65535)
    max_tokens: int = Field(defaults.WARMUP_TOKENS, ge=0, le=10_000_000)
    timeout_seconds: float = Field(defaults.WARMUP_SECONDS, gt=0, le=3600)
    concurrency: int = Field(4, ge=1, le=256)


class ShareConfig(Settings):
    """The share of the directory's memory, for a pool with a directory server of its own.

    memory: bytes that all agents share. replicas: the smallest number of replicas to share by. members_file,
    members_service: the membership file, or the headless Service, that gives the present number of replicas.
    """

    memory: int = Field(ge=1)
    replicas: int = Field(1, ge=0)
    members_file: Path | None = None
    members_service: str | None = Field(None, min_length=1, max_length=253)

    @model_validator(mode="after")
    def _check(self) -> ShareConfig:
        if (self.members_file is None) == (self.members_service is None):
            raise ValueError("exactly one of membersFile and membersService must be set")
        return self


class AdapterConfig(Settings):
    """A LoRA adapter that the engine should serve. path: its folder beside the engine, or its repository in the hub."""

    name: str = Field(min_length=1)
    path: str = Field(min_length=1)


class AgentFile(Settings):
    """One agent beside one engine, without the replica's id: in a cluster the command line has it.

    model: the base model's name, which seeds the hashes of routers and agents.
    served_model: the engine's name for it, where that differs.
    model_folder: a folder with tokenizer.json, or builtin://NAME.
    engine_certificate_file, engine_certificate_key_file: what the agent shows to an engine that asks clients for a
    certificate. An engine with an https URL on a loopback address is not verified: it is in the agent's own pod.
    engine_token_file: bearer token of the engine's /v1/plumage routes. engine_api_key_file: of its /v1 routes.
    token_file: bearer token of this agent's own routes; the agent makes the file where it is missing.
    peer_token_file: the token for peers, where it is not token_file's. In a cluster it is the pod's projected service
    account token, which is read again for each use.
    callers: full names of service accounts whose tokens open `stats` and `hottest` too. api_server: what verifies them.
    figures_only: the callers that may not use `hottest`, because it returns prompts.
    directory_username, directory_password_file, directory_ca_file: what directory_url leaves out.
    feather_file: the engine's settings; the agent sends `feather` to the engine whenever it changes.
    adapters: the LoRA adapters that the engine should serve.
    state_file: the checkpoint of the index, for an engine without a snapshot route; on the pod's own emptyDir.
    max_blocks: blocks in the index (about 500 bytes each). max_ids: token ids kept for peers (4 bytes each).
    max_chunks: bound of its chunks in the directory; with `share`, until the membership file was read.
    publish_rate: chunks a second up to which every new chunk is published; above it only those seen twice are.
    stalled_seconds: an engine that has running requests and makes no step for so long is stalled.
    """

    pool: str = Field(min_length=1)
    model: str = Field(min_length=1)
    served_model: str | None = None
    model_folder: str = Field(min_length=1)
    engine_url: HttpUrl
    engine_token_file: Path | None = None
    engine_api_key_file: Path | None = None
    engine_certificate_file: Path | None = None
    engine_certificate_key_file: Path | None = None
    events_endpoint: EventEndpoint
    replay_endpoint: EventEndpoint | None = None
    events_topic: str = ""
    directory_url: str
    directory_username: str | None = None
    directory_password_file: Path | None = None
    directory_ca_file: Path | None = None
    listen: AgentListen
    feather_file: Path | None = None
    adapters: tuple[AdapterConfig, ...] = ()
    state_file: Path | None = None
    token_file: Path | None = None
    peer_token_file: Path | None = None
    callers: tuple[str, ...] = ()
    figures_only: tuple[str, ...] = ()
    api_server: ApiServerConfig = ApiServerConfig()
    warmup: WarmupConfig = WarmupConfig()
    heartbeat_seconds: float = Field(2.0, gt=0, le=5)
    stalled_seconds: float = Field(10.0, gt=0, le=3600)
    load_seconds: float = Field(0.25, gt=0, le=5)
    max_blocks: int = Field(500_000, ge=1, le=50_000_000)
    max_chunks: int = Field(MAX_CHUNKS, ge=1, le=50_000_000)
    share: ShareConfig | None = None
    max_ids: int = Field(8_000_000, ge=0, le=1_000_000_000)
    publish_rate: float = Field(5_000.0, gt=0)

    @property
    def directory(self) -> str:
        """The directory's whole URL; it holds no secret of a file."""
        return with_file_options(
            self.directory_url, self.directory_username, self.directory_password_file, self.directory_ca_file
        )

    @model_validator(mode="after")
    def _check(self) -> AgentFile:
        if (self.engine_certificate_file is None) != (self.engine_certificate_key_file is None):
            raise ValueError("engineCertificateFile and engineCertificateKeyFile must be set together")
        if self.token_file is None and not is_loopback(self.listen.host):
            raise ValueError(
                f"listen.host {self.listen.host} can be reached from outside: set tokenFile, or listen on 127.0.0.1"
            )
        return self


class AgentConfig(AgentFile):
    """The settings of one agent."""

    replica: str = Field(min_length=1)
