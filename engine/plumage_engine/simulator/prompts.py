"""From what a client asks for to a request of the engine: rendered, tokenized, bounded, hashed, its answer composed."""

from __future__ import annotations

import time
from datetime import datetime

from plumage.errors import ConfigurationError
from plumage.rendering import ChatRenderer, ModelFolder, RenderingError
from plumage_engine.simulator.answers import Limits, compose
from plumage_engine.simulator.chain import block_hashes, root
from plumage_engine.simulator.config import SimulatorConfig
from plumage_engine.simulator.protocol import ApiError, Generation
from plumage_engine.simulator.request import SimRequest
from plumage_engine.simulator.runner import Job
from plumage_engine.simulator.table import Origin
from plumage_engine.simulator.text import Text

__all__ = ["Prompts"]

_CONTEXT = 32_768  # where neither the file nor the model folder says


class Prompts:
    """The model's side of one engine. `max_model_len`: prompt and answer together, in tokens."""

    def __init__(self, config: SimulatorConfig, folder: ModelFolder) -> None:
        self._config = config
        self._text = Text(folder.tokenizer_json)
        self._renderer = ChatRenderer.from_folder(folder, clock=datetime.now)
        cache = config.cache_blocks * config.block_size
        self.max_model_len = config.max_model_len or min(folder.max_model_len or _CONTEXT, cache)
        if self.max_model_len > cache:
            raise ConfigurationError(
                f"maxModelLen {self.max_model_len} does not fit into the KV cache of {cache} tokens: "
                "lower it, or raise cacheBlocks"
            )

    def job(self, generation: Generation, request_id: str) -> Job:
        """ApiError if the model is unknown, the template refuses, or the prompt is longer than the context."""
        adapter = self._adapter(generation.model)
        token_ids = self._token_ids(generation)
        limits = self._limits(generation, len(token_ids))
        config = self._config
        (whole,) = block_hashes(token_ids, len(token_ids), root(config.model, adapter))
        answer = compose(self._text, whole, config.answer_tokens, limits)
        sequence = [*token_ids, *answer.token_ids]
        hashes = block_hashes(sequence, config.block_size, root(config.model, adapter, generation.cache_salt or ""))
        full = len(token_ids) // config.block_size
        now = time.monotonic()
        request = SimRequest(
            request_id, len(token_ids), hashes[:full], len(answer.token_ids), now, output_hashes=hashes[full:]
        )
        origin = Origin(sequence, adapter or None, generation.cache_salt)
        return Job(request, origin, answer, stream=generation.stream, now=now)

    def _adapter(self, model: str) -> str:
        """The adapter that a model name stands for; "" for the base model, also where no name is given."""
        if model in self._config.adapters:
            return model
        if model and model != self._config.model:
            raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")
        return ""

    def _token_ids(self, generation: Generation) -> list[int]:
        if isinstance(generation.prompt, list):
            worst = max(generation.prompt)
            if worst >= self._text.vocabulary:
                raise ApiError(400, f"token id {worst} is out of the vocabulary", param="prompt")
            return self._cut(generation, generation.prompt, 0)
        text = generation.prompt if generation.prompt is not None else self._render(generation)
        special = generation.add_special_tokens
        ids = self._text.encode(text, add_special_tokens=special)
        ids = self._cut(generation, ids, self._text.added_before if special else 0)
        if not ids:
            raise ApiError(400, "the prompt has no tokens")
        return ids

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

    def _limits(self, generation: Generation, prompt: int) -> Limits:
        room = self.max_model_len - prompt
        asked = generation.max_tokens
        if room < 1 or (asked is not None and asked > room):
            answer = "" if asked is None else f" and {asked} for the answer"
            raise ApiError(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. "
                f"However, you requested {prompt} tokens in the prompt{answer}. Please reduce them.",
                param="messages" if generation.prompt is None else "prompt",
            )
        most = room if asked is None else asked
        if generation.min_tokens > most:
            raise ApiError(400, f"min_tokens {generation.min_tokens} is above max_tokens {most}", param="min_tokens")
        return Limits(most, generation.min_tokens, generation.ignore_eos, generation.stop, generation.seed)
