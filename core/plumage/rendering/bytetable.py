"""Token ids back to the bytes of the prompt they came from: how an agent reads an engine's KV events.

Contract: `decode(encode(text)) == text` for every text, with `text` as the tokenizer's own normalizer leaves it (the
router applies the same normalizer before it hashes). Built from `tokenizer.json` alone, so no tokenizer has to be
loaded; one list look-up a token, because this runs for every block an engine caches.

Two families are understood:
- byte-level BPE (GPT-2's alphabet: each of 256 bytes has a printable stand-in);
- SentencePiece (BPE or Unigram) with byte fallback: `▁` is a space, `<0xNN>` a byte. Some of them put a *dummy prefix*,
  a space that nobody wrote, before the text, or before each piece between special tokens. It is dropped again.

Not every tokenizer can be undone: some strip spaces around special tokens, some fold two texts into the same tokens.
`self_check` asks the real tokenizer about a set of awkward texts and names those that do not come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from plumage.errors import ConfigurationError

__all__ = ["ByteTable", "Finding", "self_check"]

_SPACE = "▁"
_MOST_IDS = 4_000_000
"""Largest vocabularies have about 260,000; this bounds what a damaged file can make us allocate."""


@dataclass(frozen=True, slots=True)
class ByteTable:
    """pieces: bytes by token id. starters: ids of added tokens; text after them starts afresh.

    prefix: whether a dummy prefix is dropped "never", at the "first" text of the prompt, or after "each" added token.
    """

    pieces: Sequence[bytes]
    starters: frozenset[int] = frozenset()
    prefix: str = "never"

    @classmethod
    def from_tokenizer_json(cls, data: bytes) -> ByteTable:
        """ConfigurationError when `data` is no tokenizer.json, or of a family whose text can't be rebuilt."""
        spec = _parsed(data)
        decode = _piece_decoder(spec)
        pieces = dict(_vocabulary(spec, decode))
        added = {int(token["id"]): str(token["content"]).encode() for token in spec.get("added_tokens") or ()}
        pieces.update(added)
        size = max(pieces, default=-1) + 1
        if size > _MOST_IDS:
            raise ConfigurationError(f"token id {size - 1} in tokenizer.json is past {_MOST_IDS}; the file is damaged")
        return cls([pieces.get(i, b"") for i in range(size)], frozenset(added), _dummy_prefix(spec))

    def decode(self, ids: Sequence[int], fresh: bool = True) -> bytes:
        """The text of `ids`, in UTF-8 when they end at a character. Ids that the tokenizer does not have are empty.

        `fresh`: these ids start the prompt, or follow a special token (`starts_fresh`); it only matters for tokenizers
        with a dummy prefix.
        """
        if self.prefix != "never":
            return b"".join(self.parts(ids, fresh))
        try:
            return b"".join(map(self.pieces.__getitem__, ids))
        except IndexError:
            return b"".join(self.parts(ids, fresh))

    def parts(self, ids: Sequence[int], fresh: bool = True) -> list[bytes]:
        """`decode`, token by token."""
        pieces, size = self.pieces, len(self.pieces)
        try:
            parts = [pieces[i] for i in ids]
        except IndexError:
            parts = [pieces[i] if 0 <= i < size else b"" for i in ids]
        if self.prefix == "never":
            return parts
        for position, token in enumerate(ids):
            if fresh and parts[position].startswith(b" "):
                parts[position] = parts[position][1:]
            fresh = token in self.starters and (self.prefix == "each" or position == 0)
        return parts

    def ends(self, ids: Sequence[int], fresh: bool = True) -> list[int]:
        """Where each token's bytes end, counted from the start of `ids`."""
        return list(accumulate(map(len, self.parts(ids, fresh))))

    def starts_fresh(self, last: int) -> bool:
        """Whether the text after the token `last` begins with a dummy prefix."""
        return self.prefix == "each" and last in self.starters


@dataclass(frozen=True, slots=True)
class Finding:
    """A text that does not come back from its tokens; `kind` says what is special about it."""

    kind: str
    text: str
    expected: bytes
    got: bytes

    def __str__(self) -> str:
        return f"{self.kind}: {self.text!r} comes back as {self.got!r}, expected {self.expected!r}"


_AWKWARD = (
    ("plain text", "The quick brown fox jumps over 13 lazy dogs."),
    ("leading space", " leading"),
    ("runs of spaces", "a  b   c    d"),
    ("indentation", "def f():\n    return 1\n\tx\r\n"),
    ("trailing space", "trailing "),
    ("upper case", "MiXeD CaSe"),
    ("accents, composed", "naïve café"),
    ("accents, decomposed", "cafe\u0301"),
    ("compatibility characters", "ﬁ ½ Ａ ™"),
    ("CJK", "日本語のテキスト。中文"),
    ("right to left", "مرحبا بالعالم"),
    ("emoji", "🙂👩‍👩‍👧‍👦🇺🇳"),
    ("invisible characters", "a\u00a0b\u200bc\ufeff"),
    ("control characters", "a\x00b\x07c\x1b[0m"),
    ("the SentencePiece space", "a▁b"),
    ("a byte token's name", "<0x41>"),
)


def self_check(
    table: ByteTable,
    encode: Callable[[str], Sequence[int]],
    normalize: Callable[[str], str] = lambda text: text,
    special_tokens: Iterable[str] = (),
) -> list[Finding]:
    """The awkward texts that do not survive `encode` and back; empty for a tokenizer without loss.

    `encode` must not add BOS or EOS (vLLM's `add_special_tokens=False`); `normalize` is what the router applies.
    `special_tokens` are tried in the middle of text, with and without spaces around them.
    """
    around = [
        (f"around {token}", text) for token in special_tokens for text in (f"a{token}b", f"a {token} b\n{token}\n c")
    ]
    findings = []
    for kind, text in (*_AWKWARD, *around):
        expected, got = normalize(text).encode(), table.decode(encode(text))
        if got != expected:
            findings.append(Finding(kind, text, expected, got))
    return findings


def _parsed(data: bytes) -> Mapping[str, Any]:
    try:
        spec = json.loads(data)
        if not isinstance(spec["model"]["vocab"], dict | list):
            raise TypeError("model.vocab must be a map or a list")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"this is no Hugging Face tokenizer.json ({error!r}); export one with a fast tokenizer's save_pretrained()"
        ) from error
    return dict(spec)


def _vocabulary(spec: Mapping[str, Any], decode: Callable[[str], bytes]) -> Iterable[tuple[int, bytes]]:
    """Unigram lists [piece, score] in the order of ids; BPE maps piece to id."""
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, list):
        return ((index, decode(entry[0])) for index, entry in enumerate(vocabulary))
    return ((int(index), decode(piece)) for piece, index in vocabulary.items())


def _piece_decoder(spec: Mapping[str, Any]) -> Callable[[str], bytes]:
    kinds = {str(step.get("type")) for part in ("pre_tokenizer", "decoder") for step in _steps(spec.get(part))}
    family = spec["model"].get("type") or ("Unigram" if isinstance(spec["model"]["vocab"], list) else "BPE")
    if family == "BPE" and "ByteLevel" in kinds:
        return _byte_level
    if family in ("BPE", "Unigram") and ("Metaspace" in kinds or spec["model"].get("byte_fallback")):
        return _sentencepiece
    raise ConfigurationError(
        f"a tokenizer of type {family} with {sorted(kinds)} can't be turned back into text; "
        "byte-level BPE and SentencePiece can. Without it the replica is routed to by load only"
    )


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes((int(piece[3:5], 16),))
        except ValueError:
            pass
    return piece.replace(_SPACE, " ").encode()


def _dummy_prefix(spec: Mapping[str, Any]) -> str:
    """Where the tokenizer adds a space: "never", "first" or "each".

    Llama 2 prepends it in the normalizer, to each text between special tokens. Metaspace has a scheme of its own; older
    files have only `add_prefix_space`, which meant "always".
    """
    if any(step.get("type") == "Prepend" and step.get("prepend") == _SPACE for step in _steps(spec.get("normalizer"))):
        return "each"
    for step in _steps(spec.get("pre_tokenizer")):
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
            return {"always": "each", "first": "first"}.get(scheme, "never")
        if step.get("type") == "ByteLevel" and step.get("add_prefix_space"):
            return "each"
    return "never"


def _steps(part: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, sequences unfolded."""
    if not part:
        return
    nested = next((part[key] for key in ("pretokenizers", "normalizers", "decoders") if key in part), None)
    if nested is None:
        yield part
        return
    for step in nested:
        yield from _steps(step)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable Latin-1 stands for itself, the other bytes for code points from 256 up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()
