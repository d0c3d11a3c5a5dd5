"""Generated tokenizers: the same from the same seed, and any text comes back from its tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from plumage_engine.vllm.tiny_model import SIZES, VOCABULARY, bytes_only, llama_config, seeded_text, train

BYTES = bytes_only()
SPECIAL = [text for text in BYTES.get_vocab() if text.startswith("<|")]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train(seeded_text(random.Random(0)), VOCABULARY)


# Hypothesis also tries the strings of Plumage's modules, and a special token's text is one token.
@given(st.text().filter(lambda text: not any(special in text for special in SPECIAL)))
def test_byte_tokenizer_has_a_token_per_byte(text: str) -> None:
    ids = BYTES.encode(text, add_special_tokens=False).ids
    assert len(ids) == len(text.encode())
    assert BYTES.decode(ids) == text


def test_special_token_is_one_token() -> None:
    assert BYTES.encode("<|im_start|>a").ids == [BYTES.token_to_id(text) for text in ("<|bos|>", "<|im_start|>", "a")]
    assert BYTES.get_vocab_size() == 259


def test_trained_tokenizer_is_full_and_joins_words(trained: Tokenizer) -> None:
    assert trained.get_vocab_size() == VOCABULARY
    text = "".join(seeded_text(random.Random(5), lines=50)) + "naïve 鳥 🪶\r\n"
    ids = trained.encode(text, add_special_tokens=False).ids
    assert trained.decode(ids) == text
    assert len(ids) < len(text.encode()) / 2


def test_seed_repeats_the_tokenizer() -> None:
    few = [train(seeded_text(random.Random(seed), words=500, lines=200), 600).to_str() for seed in (1, 1, 2)]
    assert few[0] == few[1] != few[2]


def test_config_agrees_with_its_tokenizer() -> None:
    config = llama_config(BYTES, SIZES["m8"], tied=False)
    assert config["vocab_size"] == 259
    assert BYTES.id_to_token(config["eos_token_id"]) == "<|im_end|>"
    assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"] == 512
