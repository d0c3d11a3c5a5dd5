"""Small, real tokenizers: byte-level BPE, made here so that nothing must be downloaded.

They have the special tokens of a ChatML template. `scripts/make_tiny_model.py` trains the built-in model folder's
tokenizer with the same code.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

__all__ = ["CONTEXT", "bytes_only", "seeded_text", "tokenizer_config", "train"]

CONTEXT = 32768
_BOS, _START, _END = _SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>")
# Contractions, words with one leading mark, up to three digits, punctuation, line ends, blanks: the split of most
# byte-level models.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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


_ONSETS = ("b", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh", "t", "tr", "v", "w", "z", "é")


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
