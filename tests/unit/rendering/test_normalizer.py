"""The router hashes what the agent rebuilds: normalized text is what comes back from its tokens."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from plumage.rendering import ByteTable, Normalizer

SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>x")
texts = st.lists(
    st.sampled_from([
        "a", "B", " ", "  ", "\n", "\t", "é", "e\u0301", "\u0338", "ﬁ", "Å", "Σ", "ς", "İ", "日本", "🙂", "▁", "\u00a0",
        "\u200b", "\x00", "\x85", "\x1c", "가", "\u1100\u1161", "<s>", "<|im_start|>", "<|im_end|>", "x",
        "<", "|", "½", "™",
    ]),
    max_size=14,
).map("".join)  # fmt: skip


def byte_level(normalizer: Any = None, prefix: bool = False, specials: tuple[AddedToken, ...] = ()) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return finished(tokenizer, normalizer, specials)


def sentencepiece(normalizer: Any = None, scheme: str | None = None) -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"aBx<|>", "é", "日"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return finished(tokenizer, normalizer, ())


def finished(tokenizer: Tokenizer, normalizer: Any, specials: tuple[AddedToken, ...]) -> Tokenizer:
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(list(specials) or [AddedToken(text, normalized=False) for text in SPECIALS])
    return tokenizer


LLAMA2 = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
STRIPPING = (
    AddedToken("<s>", normalized=False),
    AddedToken("<|im_start|>", normalized=False, rstrip=True),
    AddedToken("<|im_end|>", normalized=False, lstrip=True, rstrip=True),
)
TOKENIZERS = {
    "plain": byte_level(),
    "NFC": byte_level(normalizers.NFC()),
    "NFKC": byte_level(normalizers.NFKC()),
    "NFD": byte_level(normalizers.NFD()),
    "lower case": byte_level(normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
    "accents stripped": byte_level(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
    "trimmed": byte_level(normalizers.Strip()),
    "quotes replaced": byte_level(normalizers.Replace("é", "e")),
    "pattern replaced": byte_level(normalizers.Replace(Regex(" {2,}"), "_")),
    "something prepended": byte_level(normalizers.Prepend("!")),
    "NMT": byte_level(normalizers.Nmt()),
    "tokens that take blanks along": byte_level(specials=STRIPPING),
    "the same after NFC": byte_level(normalizers.NFC(), specials=STRIPPING),
    "blank put first": byte_level(prefix=True),
    "Llama 2": sentencepiece(LLAMA2),
    "spaces only": sentencepiece(normalizers.Replace(" ", "▁")),
    "Metaspace first": sentencepiece(scheme="first"),
    "Metaspace always": sentencepiece(scheme="always"),
    "Metaspace never": sentencepiece(scheme="never"),
}


@cache
def read(name: str) -> tuple[Normalizer, ByteTable]:
    data = TOKENIZERS[name].to_str().encode()
    return Normalizer.from_tokenizer_json(data), ByteTable.from_tokenizer_json(data)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@example(text="<|im_end|>\u0338 > \u0338")
@example(text=" a <s> b<s>c  <|im_start|> \n d")
@given(text=texts)
def test_normalized_bytes_are_those_of_the_tokens(name: str, text: str) -> None:
    normalizer, table = read(name)
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert normalizer(text).encode() == table.decode(ids)


@pytest.mark.parametrize("name", ["plain", "NFC", "NFKC", "spaces only"])
def test_ascii_is_unchanged(name: str) -> None:
    normalizer = Normalizer.from_tokenizer_json(TOKENIZERS[name].to_str().encode())
    text = "The quick brown fox. " * 10
    assert normalizer(text) is text


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=texts.map(lambda text: text.encode("ascii", "ignore").decode()))
def test_tokenizer_that_keeps_all_ascii_changes_none(name: str, text: str) -> None:
    """The chat renderer does not call it then."""
    normalize, _ = read(name)
    if normalize.keeps_all_ascii:
        assert normalize(text) == text
    elif name in ("plain", "NFC"):
        pytest.fail("a tokenizer without such steps keeps ASCII")


def test_normalized_text_is_not_split() -> None:
    normalizer = Normalizer.from_tokenizer_json(TOKENIZERS["NFC"].to_str().encode())
    text = "Bäume <|im_end|> 日本"
    assert normalizer(text) is text


def test_unsupported_step_is_named() -> None:
    spec = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}, "added_tokens": []}
    assert Normalizer.from_tokenizer_json(json.dumps(spec).encode()).unsupported == ("Precompiled",)


def test_unsupported_pattern_is_named() -> None:
    spec = {"normalizer": {"type": "Replace", "pattern": {"Regex": "(?<=a+)b"}, "content": ""}}
    assert Normalizer.from_tokenizer_json(spec).unsupported == ("Replace '(?<=a+)b'",)


LONG = 300_000  # repetitions; in quadratic time, each of these would take minutes


@pytest.mark.parametrize("name", ["tokens that take blanks along", "the same after NFC"])
@pytest.mark.parametrize("end", ["x", "<|im_end|>"])
def test_megabyte_of_blanks_takes_linear_time(name: str, end: str) -> None:
    normalizer = Normalizer.from_tokenizer_json(TOKENIZERS[name].to_str().encode())
    text = "é" + " \n" * (2 * LONG) + end
    assert normalizer(text) == (text if end == "x" else "é<|im_end|>")


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize(
    ("marks", "ordered"),
    [("\u0301\u0316", "\u0316\u0301"), ("\u0344\u0316", "\u0316\u0308\u0301"), ("\u0f73\u0f71", "\u0f71\u0f71\u0f72")],
)
def test_megabyte_of_marks_takes_linear_time(form: str, marks: str, ordered: str) -> None:
    normalizer = Normalizer.from_tokenizer_json({"normalizer": {"type": form}})
    kinds = sorted(set(ordered), key=ordered.index)
    long = normalizer("q" + marks * LONG)
    assert long.startswith("q" + kinds[0] * (LONG - 1))
    assert long.count(kinds[-1]) == LONG


marked = st.text([*"qaeカ", "\u0301", "\u0308", "\u0316", "\u0344", "\u0f73", "\uff9e", "é"], min_size=60)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@settings(max_examples=200, deadline=None)
@example("a" + "\u0301\u0316" * 40 + "\uff9e" + "\u0301\u0316" * 40)
@given(marked)
def test_long_runs_of_marks_are_normalized_like_any(form: Any, parts: str) -> None:
    text = parts + "q" + "".join(part for part in parts if unicodedata.combining(part))
    assert Normalizer.from_tokenizer_json({"normalizer": {"type": form}})(text) == unicodedata.normalize(form, text)
