"""The configuration file of one agent: what it may hold, and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from plumage import defaults
from plumage.cluster import AGENT_PORT
from plumage.directory.client.password_file import with_file_options
from plumage.incluster.config import ApiServerConfig
from plumage_engine.configuration import Section, is_loopback
from plumage_engine.endpoints import EventEndpoint

__all__ = ["AgentConfig", "ListenConfig", "ShareConfig", "WarmupConfig"]

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+(/|$)")]


class ListenConfig(Section):
    """Where the agent serves. Without a token file only a loopback address makes sense: `/v1/plumage/hottest` answers
    with token ids, which are prompts."""

    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)


class WarmupConfig(Section):
    """What a new replica computes before it is Ready. peers: agents' URLs. peers_file: the membership file, read at
    the time of warming. peers_service: the pool's headless Service, whose name is resolved then; its agents listen on
    peers_port. max_tokens: of prompt, at most. timeout_seconds: then it is Ready with what it has."""

    enabled: bool = defaults.WARMUP
    peers: tuple[HttpUrl, ...] = ()
    peers_file: Path | None = None
    peers_service: str | None = Field(None, min_length=1, max_length=253)
    peers_port: int = Field(AGENT_PORT, ge=1, le=65535)
    max_tokens: int = Field(defaults.WARMUP_TOKENS, ge=0, le=10_000_000)
    timeout_seconds: float = Field(defaults.WARMUP_SECONDS, gt=0, le=3600)
    concurrency: int = Field(4, ge=1, le=256)


class ShareConfig(Section):
    """The directory's server is the pool's own and all agents share its memory (bytes), by as many replicas as the
    membership file names, or as pods are behind the headless Service, or by `replicas` while those are fewer."""

    memory: int = Field(ge=1)
    replicas: int = Field(1, ge=0)
    members_file: Path | None = None
    members_service: str | None = Field(None, min_length=1, max_length=253)

    @model_validator(mode="after")
    def _check(self) -> ShareConfig:
        if (self.members_file is None) == (self.members_service is None):
            raise ValueError("exactly one of membersFile and membersService must be set")
        return self


class AgentConfig(Section):
    """One agent beside one engine.

    model: the base model's name as routers seed their hashes with it; served_model: how the engine calls it, when that
    differs. model_folder: a folder with tokenizer.json, or builtin://NAME. engine_token_file: bearer token of the
    engine's /v1/plumage routes; engine_api_key_file: of its /v1 routes; token_file: of this agent's own routes, made
    where it is not there yet, and of its peers' unless peer_token_file names another: in a cluster this pod's projected
    service account token, read anew at each use. callers: service accounts, by their full names, whose tokens open
    `stats` and `hottest` too, as the cluster's API server (api_server) signed them; figures_only: those of them that
    `hottest`, which tells prompts, stays shut for.
    directory_username, directory_password_file, directory_ca_file: what directory_url does not say.
    feather_file: the engine's settings, whose `feather` is handed to it whenever it changes.
    state_file: where the index is kept beside an engine that has no snapshot route, on the pod's own emptyDir.
    max_blocks: blocks the index keeps (about 500 bytes each). max_ids: token ids kept for warming peers (4 bytes each).
    max_chunks: that it may hold in the directory; with `share`, until the membership file was read.
    publish_rate: chunks a second up to which every new chunk is published; above it only those seen twice are.
    stalled_seconds: running requests and no step for so long is a stalled engine.
    """

    pool: str = Field(min_length=1)
    replica: str = Field(min_length=1)
    model: str = Field(min_length=1)
    served_model: str | None = None
    model_folder: str = Field(min_length=1)
    engine_url: HttpUrl
    engine_token_file: Path | None = None
    engine_api_key_file: Path | None = None
    events_endpoint: EventEndpoint
    replay_endpoint: EventEndpoint | None = None
    events_topic: str = ""
    directory_url: str
    directory_username: str | None = None
    directory_password_file: Path | None = None
    directory_ca_file: Path | None = None
    listen: ListenConfig
    feather_file: Path | None = None
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
    max_chunks: int = Field(1_000_000, ge=1, le=50_000_000)
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
    def _check(self) -> AgentConfig:
        if self.token_file is None and not is_loopback(self.listen.host):
            raise ValueError(
                f"listen.host {self.listen.host} can be reached from outside: set tokenFile, or listen on 127.0.0.1"
            )
        return self
