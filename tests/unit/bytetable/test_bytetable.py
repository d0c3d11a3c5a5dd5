"""Byte tables against real tokenizers: they return the bytes of the encoded text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from plumage.errors import ConfigurationError
from plumage.rendering.bytetable import ByteTable, self_check

TEXT = [
    "the theme of the thing is a theory that they think through",
    "naïve café 日本語 🙂",
    "  def f():\n\treturn 1\n",
]
SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]


def byte_level(add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=320, show_progress=False, initial_alphabet=alphabet)
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def sentencepiece(dress: Callable[[Tokenizer], None], rstrip: bool = False) -> Tokenizer:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + list("▁abcdefghijklmnopqrstuvwxyz") + ["▁a", "▁▁", "▁th"]
    vocab |= {piece: index for index, piece in enumerate([*pieces, "th"], start=3)}
    merges = [("t", "h"), ("▁", "a"), ("▁", "▁"), ("▁", "th")]
    model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    dress(tokenizer)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, rstrip=rstrip), "</s>"])
    return tokenizer


def replaced(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace(" ", "▁")


def prepended(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def metaspace(scheme: str) -> Callable[[Tokenizer], None]:
    def dress(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)

    return dress


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁th", -3.0), *((chr(c), -4.0) for c in range(97, 123))]
    pieces += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    return tokenizer


def table_of(tokenizer: Tokenizer) -> ByteTable:
    return ByteTable.from_tokenizer_json(tokenizer.to_str().encode())


def encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


LOSSLESS = {"byte-level": byte_level(), "sentencepiece": sentencepiece(replaced), "llama 2": sentencepiece(prepended)}
LOSSLESS["unigram"] = unigram()
TABLES = {name: table_of(tokenizer) for name, tokenizer in LOSSLESS.items()}
# Text without the replacement character itself, which SentencePiece cannot distinguish from a space.
texts = st.text(st.characters(exclude_characters="▁", exclude_categories=("Cs",)), max_size=60)


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=texts)
def test_text_comes_back_from_its_tokens(name: str, text: str) -> None:
    assert TABLES[name].decode(encoder(LOSSLESS[name])(text)) == text.encode()


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece", "llama 2"])
@given(pieces=st.lists(st.one_of(texts, st.just("<s>"), st.just("<|im_end|>")), max_size=6), cut=st.integers(1, 7))
def test_text_comes_back_block_by_block(name: str, pieces: list[str], cut: int) -> None:
    """As an agent reads it: `fresh` is carried from each block to the next."""
    text = "".join(pieces)
    table, ids = TABLES[name], encoder(LOSSLESS[name])(text)
    got, fresh = b"", True
    for start in range(0, len(ids), cut):
        block = ids[start : start + cut]
        got += table.decode(block, fresh)
        assert table.ends(block, fresh)[-1] == len(table.decode(block, fresh))
        fresh = table.starts_fresh(block[-1])
    assert got == text.encode()


@pytest.mark.parametrize("name", ["byte-level", "llama 2"])
def test_self_check_is_silent_for_a_tokenizer_without_loss(name: str) -> None:
    def normalize(text: str) -> str:
        return text.replace("▁", " ") if name == "llama 2" else text

    special = SPECIAL if name == "byte-level" else ["<s>"]
    assert self_check(TABLES[name], encoder(LOSSLESS[name]), normalize, special) == []


@pytest.mark.parametrize(
    ("tokenizer", "kind"),
    [
        (sentencepiece(replaced), "the SentencePiece space"),
        (sentencepiece(replaced, rstrip=True), "around <s>"),
        (sentencepiece(metaspace("always")), "leading space"),
        (sentencepiece(metaspace("first")), "leading space"),
        (byte_level(add_prefix_space=True), "leading space"),
    ],
)
def test_self_check_names_lost_text(tokenizer: Tokenizer, kind: str) -> None:
    findings = self_check(table_of(tokenizer), encoder(tokenizer), special_tokens=["<s>"])
    assert kind in {finding.kind for finding in findings}
    assert all(repr(finding.text) in str(finding) for finding in findings)


@pytest.mark.parametrize(
    ("normalizer", "kind"),
    [
        (normalizers.NFC(), "accents, decomposed"),
        (normalizers.NFKC(), "compatibility characters"),
        (normalizers.Lowercase(), "upper case"),
    ],
)
def test_self_check_finds_normalizers_unless_the_router_applies_them(
    normalizer: normalizers.Normalizer, kind: str
) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    table = table_of(tokenizer)
    assert kind in {finding.kind for finding in self_check(table, encoder(tokenizer))}
    assert self_check(table, encoder(tokenizer), normalizer.normalize_str) == []


@pytest.mark.parametrize(("scheme", "expected"), [("always", "each"), ("first", "first"), ("never", "never")])
def test_metaspace_prefix_is_dropped_where_it_was_added(scheme: str, expected: str) -> None:
    tokenizer = sentencepiece(metaspace(scheme))
    table = table_of(tokenizer)
    assert table.prefix == expected
    for text in ("abc d", "<s>abc</s>d e"):
        assert table.decode(encoder(tokenizer)(text)) == text.encode()


def test_old_metaspace_files_say_add_prefix_space() -> None:
    spec = json.loads(sentencepiece(metaspace("always")).to_str())
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    assert ByteTable.from_tokenizer_json(json.dumps(spec).encode()).prefix == "each"


def test_ids_unknown_to_the_tokenizer_are_empty() -> None:
    table = TABLES["byte-level"]
    ids = encoder(LOSSLESS["byte-level"])("the")
    assert table.decode([*ids, 10**9]) == b"the"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not json", "save_pretrained"),
        (b"{}", "save_pretrained"),
        (b"[]", "save_pretrained"),
        (b'{"model": {"vocab": 3}}', "save_pretrained"),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', "WordPiece"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}}}', "byte-level BPE and SentencePiece"),
        (b'{"model": {"vocab": {"a": 999999999}}, "decoder": {"type": "ByteLevel"}}', "damaged"),
    ],
)
def test_unusable_file_is_refused_with_its_reason(data: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ByteTable.from_tokenizer_json(data)
