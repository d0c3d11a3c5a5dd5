"""The token ids of answers: whole words of the model's own tokenizer. So an answer that returns as text in the next
prompt has the same ids, and is found in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.virtual_gpu.config import VirtualGpuConfig
from plumage_bench.virtual_gpu.speech import Speech
from plumage_engine.simulator.model.text import Text

__all__ = ["make_speech"]


def make_speech(config: VirtualGpuConfig, model: Any) -> Speech:
    """model: vLLM's ModelConfig. Without a tokenizer (--skip-tokenizer-init) every id but the ends is a word."""
    ends = _ends(model)
    words = [word for word in _words(config, model) if word not in ends]
    return Speech(words, seed=config.seed, end=min(ends, default=None), mean=config.answer_tokens)


def _words(config: VirtualGpuConfig, model: Any) -> list[int]:
    if config.vocabulary == "All" or model.skip_tokenizer_init:
        return list(range(model.get_vocab_size()))
    path = Path(model.tokenizer) / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(
            f"virtualGpu.vocabulary: Words needs a tokenizer.json in {model.tokenizer!r}, which must be a folder; "
            "without one set it to All"
        )
    return Text(path.read_bytes()).words


def _ends(model: Any) -> set[int]:
    """The ids that end an answer, from the model's configuration: one, several or none."""
    named = getattr(model.hf_text_config, "eos_token_id", None)
    named = model.try_get_generation_config().get("eos_token_id", named)
    if named is None:
        return set()
    return {named} if isinstance(named, int) else set(named)
