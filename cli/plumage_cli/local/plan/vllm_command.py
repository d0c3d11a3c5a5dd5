"""The settings file of `plumage_cli.local.processes.vllm_child`. No pydantic: that process never loads it."""

from __future__ import annotations

from typing import NotRequired, TypedDict

__all__ = ["VllmCommand"]


class VllmCommand(TypedDict):
    """command: vLLM's API server. environment: in addition to the process's. apiKeyFile: the file with its key."""

    command: list[str]
    environment: dict[str, str]
    apiKeyFile: NotRequired[str]
