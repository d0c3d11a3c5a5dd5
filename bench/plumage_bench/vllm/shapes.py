"""Shapes of models that users serve, with random weights: a step takes as long as the real model's.

`m8` is `tiny_model`'s, whose answers depend on the prompt. The others are loaded with vLLM's `load_format="dummy"`, so
no weights are written or downloaded. Dimensions are those of the models' published `config.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError

__all__ = ["SHAPES", "Shape", "shape", "write_shape"]

_BYTES = 2
"""Of a number in bf16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's dimensions. family: vLLM's class and Hugging Face's model_type. tied: the output layer is the
    embedding."""

    name: str
    family: tuple[str, str]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    rope_theta: float = 10_000.0

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads: all matrices but the embedding's, of which it reads rows."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return _BYTES * (self.layers * layer + self.hidden * self.vocabulary)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token."""
        return _BYTES * 2 * self.layers * self.kv_heads * self.head_dim

    def kv_over_weights(self, requests: int, tokens: float) -> float:
        """Bytes of keys and values that a decode step reads, ÷ bytes of weights. tokens: context of a request."""
        return requests * tokens * self.kv_bytes / self.weight_bytes

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        architecture, kind = self.family
        return {
            "architectures": [architecture], "model_type": kind, "vocab_size": self.vocabulary,
            "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 32_768, "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied, "dtype": "bfloat16",
        }  # fmt: skip


_LLAMA, _QWEN2 = ("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2")
SHAPES = {
    one.name: one
    for one in (
        Shape("m8", _LLAMA, 8, 512, 8, 8, 64, 1024, 259, tied=False),
        Shape("qwen2.5-0.5b", _QWEN2, 24, 896, 14, 2, 64, 4864, 151_936, tied=True, rope_theta=1e6),
        Shape("llama-3-8b", _LLAMA, 32, 4096, 32, 8, 128, 14_336, 128_256, tied=False, rope_theta=5e5),
        Shape("llama-3-70b", _LLAMA, 80, 8192, 64, 8, 128, 28_672, 128_256, tied=False, rope_theta=5e5),
    )
}


def shape(name: str) -> Shape:
    """The shape with this name. ConfigurationError names the known ones."""
    if name not in SHAPES:
        raise ConfigurationError(f"model={name}: there are: {', '.join(SHAPES)}")
    return SHAPES[name]


def write_shape(folder: Path, shape: Shape) -> dict[str, Any]:
    """Write the model's folder. Returns the arguments of vLLM's EngineArgs that load it."""
    from plumage_engine.vllm.tiny_model import write_model

    if shape.name == "m8":
        write_model(folder, size="m8")
        return {}
    write_model(folder, size="tiny")
    (folder / "model.safetensors").unlink()
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2), encoding="utf-8")
    return {"load_format": "dummy"}
