"""Addresses, files and keys of a pool in local mode, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plumage.settings.addresses import EngineSockets
from plumage.settings.secrets import SecretFiles
from plumage_cli.local.plan.vllm import VllmInterpreter

__all__ = ["HOST", "LocalPaths"]

HOST = "127.0.0.1"
"""Address of every process of a pool, unless `plumage up --host` names another one for the router."""


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """Files and sockets of a pool in local mode.

    folder: the pool's own, with a path that is short enough for Unix sockets. model_folder: of the tokenizer. weights:
    the folder that vLLM loads, where it is another one. vllm: the interpreter with vLLM, for a pool that runs it.
    """

    folder: Path
    model_folder: Path
    directory_url: str
    weights: Path | None = None
    vllm: VllmInterpreter | None = None

    @property
    def membership(self) -> Path:
        return self.folder / "membership.json"

    @property
    def token(self) -> Path:
        """The bearer token of engines and agents."""
        return self.folder / "fleet.token"

    def sockets(self, index: int) -> EngineSockets:
        """The event sockets and credentials that the engine and the agent of replica `index` share."""
        events, replay = (f"ipc://{self.folder}/{name}-{index}" for name in ("events", "replay"))
        return EngineSockets(events, replay, str(self.token), self.secrets.engine_key)

    @property
    def secrets(self) -> SecretFiles:
        """The keys that the pool's processes share."""
        return SecretFiles.in_folder(str(self.folder))

    @property
    def admin_key(self) -> Path:
        """The key of the router's admin endpoints."""
        return self.folder / "admin.key"
