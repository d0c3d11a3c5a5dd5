"""Makes an engine's request from a client's: it renders, tokenizes, checks, hashes, and composes the answer.

A long text takes half a second to tokenize, which would block the event loop. So a text that is certainly too long is
refused before. A long one is tokenized in a thread, one at a time, as vLLM does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plumage.errors import ConfigurationError
from plumage.rendering import ChatRenderer, ModelFolder, RenderingError
from plumage.rendering.errors import RequestShapeError
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.events.block_hashes import block_hashes, root
from plumage_engine.simulator.events.block_table import Origin
from plumage_engine.simulator.http.adapters import SimulatedAdapters
from plumage_engine.simulator.http.protocol import ApiError, Generation
from plumage_engine.simulator.job import Job
from plumage_engine.simulator.model.answers import Limits, compose
from plumage_engine.simulator.model.text import Text

__all__ = ["LONG", "Prompt", "Prompts"]

_CONTEXT = 32_768  # where neither the file nor the model folder says
LONG = 16_384  # characters: up to here a text is tokenized within some ten milliseconds


@dataclass(frozen=True, slots=True)
class Prompt:
    """A client's request, and its prompt: text, or token ids where it sent those."""

    generation: Generation
    content: str | list[int]

    @property
    def long(self) -> bool:
        """Whether it is tokenized in the thread, so that other requests run meanwhile."""
        return isinstance(self.content, str) and len(self.content) > LONG


class Prompts:
    """The model's side of one engine. `max_model_len`: prompt and answer together, in tokens. `encoding`: long texts
    under way or waiting for it."""

    def __init__(self, config: SimulatorConfig, folder: ModelFolder, adapters: SimulatedAdapters | None = None) -> None:
        self._config = config
        self._adapters = SimulatedAdapters(config.adapters) if adapters is None else adapters
        self._text = Text(folder.tokenizer_json)
        self._renderer = ChatRenderer.from_folder(folder, clock=datetime.now)
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        self.encoding = 0
        cache = config.cache_blocks * config.block_size
        self.max_model_len = config.max_model_len or min(folder.max_model_len or _CONTEXT, cache)
        if self.max_model_len > cache:
            raise ConfigurationError(
                f"maxModelLen {self.max_model_len} does not fit into the KV cache of {cache} tokens: "
                "lower it, or raise cacheBlocks"
            )

    def close(self) -> None:
        """Texts that wait for the thread are not tokenized any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def as_chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the chat that vLLM makes of an Anthropic message's, with what a template sees. ApiError for a
        wrong type, and for what is not converted."""
        try:
            chat, known = self._renderer.anthropic_as_chat(body)
        except RequestShapeError as error:
            raise ApiError(400, str(error), param=error.field) from error
        if not known:
            raise ApiError(
                400,
                "the simulator reads no tool_addition, no tool_removal and no tool_use without an id",
                param="messages",
            )
        return chat

    def read(self, generation: Generation) -> Prompt:
        """Rendered; ApiError if the model is unknown, the template refuses, or no tokens of that text could fit."""
        self._adapter(generation.model)
        if isinstance(generation.prompt, list):
            worst = max(generation.prompt)
            if worst >= self._text.vocabulary:
                raise ApiError(400, f"token id {worst} is out of the vocabulary", param="prompt")
            return Prompt(generation, generation.prompt)
        text = generation.prompt if generation.prompt is not None else self._render(generation)
        self._refuse_size(generation, text)
        return Prompt(generation, text)

    async def tokens_of(self, generation: Generation) -> list[int]:
        """The token ids of a text or of a rendered chat, of any length. ApiError if the model is unknown or the
        template refuses."""
        self._adapter(generation.model)
        if isinstance(generation.prompt, list):
            raise ApiError(400, "prompt must be a string", param="prompt")
        text = generation.prompt if generation.prompt is not None else self._render(generation)
        return await self._encode(text, generation.add_special_tokens, long=len(text) > LONG)

    def strings_of(self, token_ids: Sequence[int]) -> list[str]:
        """The tokenizer's own name of each id."""
        return self._text.names(token_ids)

    def stand_in(self, seed: int, tokens: int) -> list[int]:
        """Token ids in place of what has none, such as audio; the same ones for the same seed."""
        return random.Random(seed).choices(self._text.words, k=tokens)

    def text_of(self, token_ids: Sequence[int], model: str) -> str:
        """The text of ids. ApiError if the model or an id is unknown."""
        self._adapter(model)
        if token_ids and (worst := max(token_ids)) >= self._text.vocabulary:
            raise ApiError(400, f"token id {worst} is out of the vocabulary", param="tokens")
        return self._text.decode(token_ids)

    async def token_ids(self, prompt: Prompt) -> list[int]:
        """The prompt's; ApiError if there are none. A text that is still waiting when this is cancelled is not
        tokenized."""
        if isinstance(prompt.content, list):
            return self._cut(prompt.generation, prompt.content, 0)
        special = prompt.generation.add_special_tokens
        ids = await self._encode(prompt.content, special, long=prompt.long)
        ids = self._cut(prompt.generation, ids, self._text.added_before if special else 0)
        if not ids:
            raise ApiError(400, "the prompt has no tokens")
        return ids

    async def _encode(self, text: str, special: bool, *, long: bool) -> list[int]:
        if not long:
            return self._text.encode(text, add_special_tokens=special)
        self.encoding += 1
        try:
            run = asyncio.get_running_loop().run_in_executor
            return await run(self._thread, lambda: self._text.encode(text, add_special_tokens=special))
        finally:
            self.encoding -= 1

    def job(self, generation: Generation, token_ids: list[int], request_id: str) -> Job:
        """ApiError if the model is unknown or prompt and answer are longer than the context."""
        adapter = self._adapter(generation.model)
        limits = self._limits(generation, len(token_ids))
        config = self._config
        (whole,) = block_hashes(token_ids, len(token_ids), root(config.model, adapter))
        answer = compose(self._text, whole, config.answer_tokens, limits)
        sequence = [*token_ids, *answer.token_ids]
        hashes = block_hashes(sequence, config.block_size, root(config.model, adapter, generation.cache_salt or ""))
        full = len(token_ids) // config.block_size
        now = time.monotonic()
        request = SimRequest(
            request_id, len(token_ids), hashes[:full], len(answer.token_ids), now, output_hashes=hashes[full:],
            adapter=adapter, owner=generation.cache_salt,
        )  # fmt: skip
        origin = Origin(sequence, adapter or None, generation.cache_salt)
        return Job(request, origin, answer, stream=generation.stream, now=now)

    def _adapter(self, model: str) -> str:
        """The adapter that a model name stands for; "" for the base model, also where no name is given."""
        if model in self._adapters:
            return model
        if model and model != self._config.model:
            raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")
        return ""

    def _cut(self, generation: Generation, ids: list[int], before: int) -> list[int]:
        """The prompt's end, where it is to be cut; what the tokenizer put before it stays, as in vLLM."""
        kept = generation.truncate_prompt_tokens
        if kept is None:
            return ids
        most = self.max_model_len - (generation.max_tokens or 0)
        if kept > most:
            raise ApiError(
                400,
                f"truncate_prompt_tokens={kept} cannot be above {most}, the context less the answer",
                param="truncate_prompt_tokens",
            )
        kept = most if kept < 0 else kept
        return ids if len(ids) <= kept else [*ids[:before], *ids[len(ids) - max(0, kept - before) :]][:kept]

    def _render(self, generation: Generation) -> str:
        try:
            return self._renderer.render_text(generation.body)
        except RenderingError as error:
            raise ApiError(400, str(error), param="messages") from error

    def _refuse_size(self, generation: Generation, text: str) -> None:
        """ApiError for a text with more bytes than a context of the vocabulary's longest tokens. The bound is on the
        normalized text, which may be much shorter (blanks stripped)."""
        longest = self._text.longest
        if longest is None or generation.truncate_prompt_tokens is not None:
            return
        most = (self.max_model_len - 1) * longest  # an answer has one token at least
        if len(text.encode()) > most and (size := len(self._text.normalize(text).encode())) > most:
            raise self._too_long(generation, f"at least {-(-size // longest)}")

    def _too_long(self, generation: Generation, prompt: str) -> ApiError:
        answer = "" if generation.max_tokens is None else f" and {generation.max_tokens} for the answer"
        return ApiError(
            400,
            f"This model's maximum context length is {self.max_model_len} tokens. "
            f"However, you requested {prompt} tokens in the prompt{answer}. Please reduce them.",
            param="messages" if generation.prompt is None else "prompt",
        )

    def _limits(self, generation: Generation, prompt: int) -> Limits:
        room = self.max_model_len - prompt
        asked = generation.max_tokens
        if room < 1 or (asked is not None and asked > room):
            raise self._too_long(generation, str(prompt))
        most = room if asked is None else asked
        if generation.min_tokens > most:
            raise ApiError(400, f"min_tokens {generation.min_tokens} is above max_tokens {most}", param="min_tokens")
        return Limits(most, generation.min_tokens, generation.ignore_eos, generation.stop, generation.seed)
