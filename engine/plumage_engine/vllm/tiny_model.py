"""Writes the folder of a small Llama that real vLLM serves on a CPU: tokenizer, ChatML template, random weights.

    python -m plumage_engine.vllm.tiny_model FOLDER [--size tiny|m8] [--tokenizer bytes|bpe] [--seed N]

Outputs of vLLM's `--load-format dummy` hardly depend on the prompt: 400 requests got 8 different answers. So a wrong
block of the KV cache would not show. These weights are scaled so that each answer depends on the whole context.
Changing one block of a prompt changes at least 95 of 100 greedy answers (checked in tests/vllm/parity).

The tokenizers are small and real: byte-level BPE with the special tokens of a ChatML template, made here so that
nothing must be downloaded. `scripts/make_tiny_model.py` trains the built-in model folder's tokenizer with this code.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from plumage.models import resolve

__all__ = [
    "SIZES",
    "Size",
    "bytes_only",
    "llama_config",
    "seeded_text",
    "tokenizer_config",
    "train",
    "write_model",
]

VOCABULARY = 32_000
CONTEXT = 32768
_BOS, _START, _END = _SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>")
# Contractions, words with one leading mark, up to three digits, punctuation, line ends, blanks: the split of most
# byte-level models.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ONSETS = ("b", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh", "t", "tr", "v", "w", "z", "é")


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


def train(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train byte-level BPE of at most `vocabulary` tokens.

    Every byte is a token, so no text is unknown and ids decode to the same bytes. The same texts and version of
    `tokenizers` give the same tokenizer.
    """
    tokenizer = _split_in_words(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(_SPECIALS),
        show_progress=False,
        initial_alphabet=_bytes(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_specials(tokenizer)


def bytes_only() -> Tokenizer:
    """A tokenizer with one token a byte, so the blocks of a prompt are easy to count."""
    alphabet = {letter: number for number, letter in enumerate(_bytes())}
    return _with_specials(_split_in_words(Tokenizer(models.BPE(vocab=alphabet, merges=[]))))


def seeded_text(rng: random.Random, words: int = 60_000, lines: int = 40_000) -> Iterator[str]:
    """Text to train on: made-up words with a Zipf distribution, numbers and punctuation."""
    syllables = [a + b + c for a in _ONSETS for b in "aeiou" for c in ("", "n", "r", "st")]
    known = ["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 3, 4)))) for _ in range(words)]
    weights = list(accumulate(1 / place for place in range(1, words + 1)))
    for _ in range(lines):
        line = [*rng.choices(known, cum_weights=weights, k=12), str(rng.randrange(2000))]
        yield " ".join(line).capitalize() + rng.choice((".\n", "?\n", ":\n\n", ", "))


def tokenizer_config() -> dict[str, Any]:
    """The content of tokenizer_config.json for any of these."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BOS,
        "eos_token": _END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [_START],
    }


def _bytes() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _split_in_words(tokenizer: Tokenizer) -> Tokenizer:
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_specials(tokenizer: Tokenizer) -> Tokenizer:
    """Add the special tokens last, and BOS before a raw prompt."""
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIALS])
    add_bos = processors.TemplateProcessing(single=f"{_BOS} $A", special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), add_bos])
    return tokenizer


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
