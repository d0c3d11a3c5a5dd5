"""Prompts of block names as chats: the same name is always the same text, and each word is one token."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage_bench.workloads import Prompt
from plumage_engine.simulator.model.text import Text

__all__ = ["MODEL_FOLDER", "Texts"]

MODEL_FOLDER = "builtin://tiny-chat"
_MODEL = "tiny-chat"
_REMEMBERED = 200_000  # texts of blocks, about 100 bytes each
_LONGEST = 5  # bytes of a word with its space, so that a token has about four bytes, as in English


class Texts:
    """block_size: tokens of a block. message_blocks: see `cases.Case`."""

    def __init__(self, block_size: int, message_blocks: int = 0) -> None:
        text = Text(ModelFolder.load(resolve(MODEL_FOLDER)).tokenizer_json)
        self._words = [word for word in text.pieces(text.words) if len(word) <= _LONGEST]
        self._block_size, self._message_blocks = block_size, message_blocks
        self._block = lru_cache(_REMEMBERED)(self._make_block)  # most blocks are in several prompts

    def messages(self, prompt: Prompt) -> list[str]:
        """A message for each stretch of consecutive names: what prompts share, then what is the prompt's own."""
        contents = ["".join(map(self._block, names)) for names in self._stretches(prompt.blocks)] or [""]
        rest = prompt.tokens - len(prompt.blocks) * self._block_size
        contents[-1] += self._text(f"rest {prompt.blocks[-1:]} {prompt.group}", rest)
        return contents

    def body(self, prompt: Prompt) -> bytes:
        """A streamed chat whose answer has the prompt's number of output tokens."""
        messages = [{"role": "user", "content": text} for text in self.messages(prompt)]
        return json.dumps(
            {"model": _MODEL, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
             "max_tokens": prompt.output_tokens, "messages": messages}
        ).encode()  # fmt: skip

    def _stretches(self, blocks: Sequence[int]) -> Iterator[Sequence[int]]:
        begin = 0
        for at in range(1, len(blocks) + 1):
            jumps = at == len(blocks) or blocks[at] != blocks[at - 1] + 1
            if jumps or at - begin == self._message_blocks:
                yield blocks[begin:at]
                begin = at

    def _make_block(self, name: int) -> str:
        return self._text(name, self._block_size)

    def _text(self, seed: int | str, tokens: int) -> str:
        return "".join(random.Random(seed).choices(self._words, k=tokens))
