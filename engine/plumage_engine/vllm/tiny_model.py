"""Writes the folder of a small Llama that real vLLM serves on a CPU: tokenizer, ChatML template, random weights.

    python -m plumage_engine.vllm.tiny_model FOLDER [--size tiny|m8] [--tokenizer bytes|bpe] [--seed N]

Outputs of vLLM's `--load-format dummy` hardly depend on the prompt (400 requests, 8 different answers), so a wrong
block of the KV cache would not show. These weights are scaled so that each answer depends on the whole context:
changing one block of a prompt changes at least 95 of 100 greedy answers (checked in tests/vllm/parity).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from plumage.models import resolve
from plumage_engine.vllm.tiny_tokenizer import CONTEXT, bytes_only, seeded_text, tokenizer_config, train

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["SIZES", "Size", "llama_config", "write_model"]

VOCABULARY = 32_000


@dataclass(frozen=True, slots=True)
class Size:
    """A Llama's dimensions. `hidden` is heads × head_dim."""

    layers: int
    heads: int
    head_dim: int
    intermediate: int

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "tiny": Size(layers=2, heads=2, head_dim=32, intermediate=128),
        "m8": Size(layers=8, heads=8, head_dim=64, intermediate=1024),
    }
)
"""tiny: for tests, a step takes milliseconds.
m8: attention takes the same share of a step as in a large model (benches).
"""

# Standard deviations, as multiples of 1/√inputs: attention selects a few tokens at any distance, and its result
# outweighs the token's own embedding.
_GAINS: Mapping[str, float] = MappingProxyType(
    {"q": 1.4, "k": 1.4, "v": 1.0, "o": 4.0, "gate": 1.0, "up": 1.0, "down": 2.0, "head": 3.0}
)


def write_model(folder: Path, size: str = "tiny", tokenizer: Literal["bytes", "bpe"] = "bytes", seed: int = 0) -> Path:
    """Write the folder; the same arguments give the same files. It takes under 1 s, with "bpe" about 5 s."""
    folder.mkdir(parents=True, exist_ok=True)
    made = bytes_only() if tokenizer == "bytes" else train(seeded_text(random.Random(seed)), VOCABULARY)
    config = llama_config(made, SIZES[size], tied=False)
    texts = {
        "tokenizer.json": made.to_str(pretty=False),
        "tokenizer_config.json": json.dumps(tokenizer_config(), indent=2),
        "config.json": json.dumps(config, indent=2),
        "chat_template.jinja": (resolve("builtin://tiny-chat") / "chat_template.jinja").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    _save_weights(folder / "model.safetensors", SIZES[size], int(config["vocab_size"]), seed)
    return folder


def llama_config(tokenizer: Tokenizer, size: Size, *, tied: bool) -> dict[str, Any]:
    """The content of config.json.

    tied: the output layer is the embedding.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": tokenizer.token_to_id("<|bos|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "max_position_embeddings": CONTEXT,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
    }


def _save_weights(path: Path, size: Size, vocabulary: int, seed: int) -> None:
    import torch
    from safetensors.torch import save

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, rows, columns, gain in _matrices(size, vocabulary):
        weights = torch.randn(rows, columns, generator=generator) * (gain / columns**0.5)
        tensors[name] = weights.to(torch.bfloat16)
    for name in _norms(size):
        tensors[name] = torch.ones(size.hidden, dtype=torch.bfloat16)
    path.write_bytes(save(tensors, metadata={"format": "pt"}))


def _matrices(size: Size, vocabulary: int) -> Iterator[tuple[str, int, int, float]]:
    """(name, outputs, inputs, gain) of every matrix."""
    hidden, middle, gain = size.hidden, size.intermediate, _GAINS
    yield "model.embed_tokens.weight", vocabulary, hidden, hidden**0.5
    for layer in range(size.layers):
        stem = f"model.layers.{layer}"
        for part in "qkvo":
            yield f"{stem}.self_attn.{part}_proj.weight", hidden, hidden, gain[part]
        for part in ("gate", "up"):
            yield f"{stem}.mlp.{part}_proj.weight", middle, hidden, gain[part]
        yield f"{stem}.mlp.down_proj.weight", hidden, middle, gain["down"]
    yield "lm_head.weight", vocabulary, hidden, gain["head"]


def _norms(size: Size) -> Iterator[str]:
    for layer in range(size.layers):
        yield f"model.layers.{layer}.input_layernorm.weight"
        yield f"model.layers.{layer}.post_attention_layernorm.weight"
    yield "model.norm.weight"


def main(argv: list[str] | None = None) -> None:
    """Run the command above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--tokenizer", choices=("bytes", "bpe"), default="bytes")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    write_model(given.folder, given.size, given.tokenizer, given.seed)


if __name__ == "__main__":
    main()
