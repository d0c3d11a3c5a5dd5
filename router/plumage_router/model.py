"""The model behind the router, as far as a router knows it: its template, its token bytes, its context length."""

from __future__ import annotations

from datetime import datetime

from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage.rendering import ByteTable, ChatRenderer, ModelFolder
from plumage_router.config import ModelConfig
from plumage_router.prompt import PromptReader

__all__ = ["load_reader"]


def load_reader(config: ModelConfig) -> PromptReader:
    """ConfigurationError when the model folder can't be used."""
    folder = ModelFolder.load(resolve(config.model_folder))
    renderer = ChatRenderer.from_folder(folder, clock=datetime.now)
    return PromptReader(
        renderer,
        config.name,
        aliases=config.aliases,
        adapters=config.adapters,
        context=folder.max_model_len,
        longest_token=_longest_token(folder),
        allow_media=config.allow_media,
        fallbacks=renderer.fallbacks.counts,
    )


def _longest_token(folder: ModelFolder) -> int:
    """Bytes of the model's longest token; 0 where they can't be told."""
    try:
        table = ByteTable.from_tokenizer_json(folder.tokenizer_json)
    except ConfigurationError:
        return 0
    return max(map(len, table.pieces), default=0)
