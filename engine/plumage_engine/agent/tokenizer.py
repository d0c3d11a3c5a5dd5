"""Reads the byte table of the engine's model, and checks it with the real tokenizer.

An agent always starts. A tokenizer whose text can't be rebuilt gives an empty table. Then no chunk is ever complete,
routers do not know the replica's cache, and everything else works. `lossy` lists what is lost, for people.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage.rendering import ByteTable, ModelFolder, Normalizer
from plumage.rendering.bytetable import self_check

__all__ = ["TokenText", "read_tokenizer"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenText:
    """rendering: the model folder's fingerprint, which routers compare with theirs."""

    table: ByteTable
    lossy: tuple[str, ...] = ()
    rendering: str = ""


def read_tokenizer(model_folder: str) -> TokenText:
    """ConfigurationError only when the folder can't be read at all. Takes a second for large tokenizers."""
    folder = ModelFolder.load(resolve(model_folder))
    data, rendering = folder.tokenizer_json, folder.fingerprint
    try:
        table = ByteTable.from_tokenizer_json(data)
    except ConfigurationError as error:
        log.warning("routers will not know this replica's cache: %s", error)
        return TokenText(ByteTable(()), (str(error),), rendering)
    lossy = _check(table, data)
    for line in lossy:
        log.warning("the tokenizer changes text, prompts like it are routed by load: %s", line)
    return TokenText(table, lossy, rendering)


def _check(table: ByteTable, data: bytes) -> tuple[str, ...]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # tokenizers raises bare Exception
        return (f"the self-check could not load the tokenizer: {error}",)
    normalizer = Normalizer.from_tokenizer_json(data)
    special = [str(token) for token in tokenizer.get_added_tokens_decoder().values()][:8]

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return tuple(str(finding) for finding in self_check(table, encode, normalizer, special))
