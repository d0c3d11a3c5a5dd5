"""Loads what a router needs of the model: its chat template, its token bytes, its context length."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from plumage.directory.schema import engine_name
from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage.rendering import ByteTable, ChatRenderer, ModelFolder
from plumage.settings.router_config import ModelConfig
from plumage_router.request.prompt import PromptReader

__all__ = ["Model", "load_model"]


_WARM_UP: Final = {"messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}}


class Model(NamedTuple):
    """engine: the name by which agents identify the model (`schema.engine_name`)."""

    reader: PromptReader
    engine: str


def load_model(config: ModelConfig) -> Model:
    """Raises ConfigurationError if the model folder cannot be used."""
    folder = ModelFolder.load(resolve(config.model_folder))
    renderer = ChatRenderer.from_folder(folder, clock=datetime.now)
    renderer.anthropic_as_chat(_WARM_UP)  # probes the template once, so that no request waits for it
    reader = PromptReader(
        renderer,
        config.name,
        aliases=config.aliases,
        adapters=config.adapters,
        context=_context(config, folder),
        longest_token=_longest_token(folder),
        allow_media=config.allow_media,
    )
    return Model(reader, engine_name(config.name, folder.fingerprint))


def _context(config: ModelConfig, folder: ModelFolder) -> int | None:
    """The tokens of the longest prompt and answer together that the pool's engines serve; None if unknown."""
    bounds = (config.max_length or folder.max_model_len, config.cache_tokens)
    return min((bound for bound in bounds if bound is not None), default=None)


def _longest_token(folder: ModelFolder) -> int:
    """Bytes of the model's longest token; 0 if unknown."""
    try:
        table = ByteTable.from_tokenizer_json(folder.tokenizer_json)
    except ConfigurationError:
        return 0
    return max(map(len, table.pieces), default=0)
