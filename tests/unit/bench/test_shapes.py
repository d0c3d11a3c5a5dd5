"""Shapes of models that users serve: bytes that a decode step reads."""

from __future__ import annotations

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.vllm.shapes import SHAPES, shape


def test_bytes_are_those_of_the_published_models() -> None:
    """Llama 3 8B has 8.03 billion parameters and 128 KiB of keys and values a token; Qwen2.5-0.5B 0.49 and 12 KiB."""
    llama = shape("llama-3-8b")
    embedding = 2 * llama.vocabulary * llama.hidden
    assert llama.weight_bytes + embedding == pytest.approx(2 * 8.03e9, rel=0.001)
    assert llama.kv_bytes == 128 << 10
    large = shape("llama-3-70b")
    assert large.weight_bytes + 2 * large.vocabulary * large.hidden == pytest.approx(2 * 70.6e9, rel=0.001)
    assert large.kv_bytes == 320 << 10
    assert shape("qwen2.5-0.5b").weight_bytes == pytest.approx(2 * 0.494e9, rel=0.001)
    assert shape("qwen2.5-0.5b").kv_bytes == 12 << 10


def test_toy_model_reads_far_more_keys_and_values_than_weights() -> None:
    assert shape("m8").kv_over_weights(16, 4096) == pytest.approx(25.4, abs=0.1)
    assert shape("llama-3-8b").kv_over_weights(16, 4096) == pytest.approx(0.57, abs=0.01)


def test_unknown_shape_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="there are: m8, qwen"):
        shape("gpt-9")
    assert list(SHAPES) == ["m8", "qwen2.5-0.5b", "llama-3-8b", "llama-3-70b"]
