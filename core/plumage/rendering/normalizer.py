"""Text as the tokenizer leaves it: what its token ids turn back into.

The directory hashes bytes that an agent rebuilds from token ids (`bytetable`), so the router has to hash the text after
the tokenizer has changed it, not before. Some tokenizers compose accents (NFC in Qwen's), fold compatibility characters
(NFKC), lower case, take SentencePiece's `▁` for a space, or swallow blanks beside a special token. Read from
tokenizer.json. For most models plain ASCII passes unchanged, which one flag check finds out.

Added tokens are cut out first and never normalized, as in `tokenizers`; only the text between them changes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

__all__ = ["Normalizer"]

_SPACE = "▁"
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space, which `tokenizers` goes by; Python's idea of it has four more."""
_UNICODE_FORMS: dict[str, Literal["NFC", "NFD", "NFKC", "NFKD"]] = {
    "NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Normalizer:
    """steps: what happens to each text between added tokens. keeps_ascii: none of it touches ASCII.

    unsupported: names of steps that can't be done here; text they would change keeps a wrong chain (a lost hint, never
    a wrong answer), and the agent's self-check at start finds it.
    """

    steps: tuple[Callable[[str], str], ...] = ()
    keeps_ascii: bool = True
    added: re.Pattern[str] | None = None
    swallows: tuple[tuple[re.Pattern[str], str], ...] = ()
    form: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None
    first_blank: Literal["kept", "first", "each"] = "kept"
    unsupported: tuple[str, ...] = ()

    @classmethod
    def from_tokenizer_json(cls, data: bytes | Mapping[str, Any]) -> Normalizer:
        """`data` is a tokenizer.json, as bytes or parsed."""
        spec: Mapping[str, Any] = data if isinstance(data, Mapping) else json.loads(data)
        builder = _Builder()
        for step in _unfolded(spec.get("normalizer")):
            builder.add(step)
        if _is_sentencepiece(spec):
            builder.take_marks_for_blanks()
        tokens = list(spec.get("added_tokens") or ())
        only_form = builder.forms[0] if len(builder.forms) == len(builder.steps) == 1 else None
        return cls(
            steps=tuple(builder.steps),
            keeps_ascii=builder.keeps_ascii,
            added=_alternatives(token["content"] for token in tokens if not token.get("normalized")),
            swallows=tuple(_swallowing(tokens)),
            form=only_form,
            first_blank=_first_blank(spec),
            unsupported=tuple(builder.unsupported),
        )

    def __call__(self, text: str) -> str:
        if not ((self.keeps_ascii and text.isascii()) or self._is_normal(text)):
            text = self._between_tokens(text)
        for pattern, replacement in self.swallows:
            text = pattern.sub(replacement, text)
        return text if self.first_blank == "kept" else self._drop_first_blank(text)

    def _is_normal(self, text: str) -> bool:
        """Parts of a text in a normal form are in it too, so one quick check spares the cutting."""
        return not self.steps or (self.form is not None and unicodedata.is_normalized(self.form, text))

    def _between_tokens(self, text: str) -> str:
        if self.added is None:
            return self._changed(text)
        parts = self.added.split(text)  # text, token, text, token, …, text
        parts[::2] = [self._changed(part) for part in parts[::2]]
        return "".join(parts)

    def _changed(self, text: str) -> str:
        for step in self.steps:
            text = step(text)
        return text

    def _drop_first_blank(self, text: str) -> str:
        """A tokenizer that adds a blank only where none is makes " a" and "a" the same tokens."""
        parts = self.added.split(text) if self.added else [text]
        starts = range(0, len(parts), 2) if self.first_blank == "each" else (0, 2) if parts[0] == "" else (0,)
        for index in starts:
            if index < len(parts) and parts[index].startswith(" "):
                parts[index] = parts[index][1:]
        return "".join(parts)


class _Builder:
    """Collects the steps of a normalizer in order."""

    def __init__(self) -> None:
        self.steps: list[Callable[[str], str]] = []
        self.forms: list[Literal["NFC", "NFD", "NFKC", "NFKD"]] = []
        self.unsupported: list[str] = []
        self.keeps_ascii = True

    def add(self, step: Mapping[str, Any]) -> None:
        kind = str(step.get("type"))
        if kind in _UNICODE_FORMS:
            self.forms.append(_UNICODE_FORMS[kind])
            self._step(partial(unicodedata.normalize, _UNICODE_FORMS[kind]))
        elif kind == "StripAccents":
            self._step(_strip_accents)
        elif kind == "Lowercase":
            self._step(_lower, ascii_too=True)
        elif kind == "Strip":
            self._step(partial(_strip, left=bool(step.get("strip_left")), right=bool(step.get("strip_right"))), True)
        elif kind == "Nmt":
            self._step(_nmt, ascii_too=True)
        elif kind == "Prepend":
            self._prepend(str(step.get("prepend", "")))
        elif kind == "Replace":
            self._replace(step.get("pattern") or {}, str(step.get("content", "")))
        elif kind != "ByteLevel":  # bytes written as characters; the byte table reads them back
            self.unsupported.append(kind)

    def take_marks_for_blanks(self) -> None:
        self._step(lambda text: text.replace(_SPACE, " "))

    def _step(self, step: Callable[[str], str], ascii_too: bool = False) -> None:
        self.steps.append(step)
        self.keeps_ascii = self.keeps_ascii and not ascii_too

    def _prepend(self, prefix: str) -> None:
        """A prepended `▁` is the dummy prefix, which the byte table drops again."""
        if prefix != _SPACE:
            self._step(lambda text: prefix + text if text else text, ascii_too=True)

    def _replace(self, pattern: Mapping[str, Any], content: str) -> None:
        if pattern.get("String") == " " and content == _SPACE:
            return  # undone by the byte table
        if "String" in pattern:
            self._step(lambda text: text.replace(pattern["String"], content), ascii_too=True)
            return
        try:
            compiled = re.compile(str(pattern.get("Regex")))
        except re.error:
            self.unsupported.append(f"Replace {pattern.get('Regex')!r}")
            return
        self._step(lambda text: compiled.sub(lambda _: content, text), ascii_too=True)


def _unfolded(step: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences unfolded."""
    if not step:
        return
    nested = step.get("normalizers", step.get("pretokenizers"))
    if nested is None:
        yield step
        return
    for part in nested:
        yield from _unfolded(part)


def _is_sentencepiece(spec: Mapping[str, Any]) -> bool:
    replaces = any(step.get("content") == _SPACE for step in _unfolded(spec.get("normalizer")))
    return replaces or any(step.get("type") == "Metaspace" for step in _unfolded(spec.get("pre_tokenizer")))


def _first_blank(spec: Mapping[str, Any]) -> Literal["kept", "first", "each"]:
    """Pre-tokenizers that add a blank *if there is none* lose one that was there; `Prepend` adds it always."""
    if any(step.get("prepend") == _SPACE for step in _unfolded(spec.get("normalizer"))):
        return "kept"
    for step in _unfolded(spec.get("pre_tokenizer")):
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
            return "each" if scheme == "always" else "first" if scheme == "first" else "kept"
        if step.get("type") == "ByteLevel" and step.get("add_prefix_space"):
            return "each"
    return "kept"


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Longest first, so that the leftmost longest token matches; the group makes `split` keep the tokens."""
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None


def _swallowing(tokens: Iterable[Mapping[str, Any]]) -> Iterable[tuple[re.Pattern[str], str]]:
    """Added tokens with lstrip or rstrip take the blanks beside them along; the ids know nothing of those blanks."""
    both = list(tokens)
    right = _alternatives(token["content"] for token in both if token.get("rstrip"))
    left = _alternatives(token["content"] for token in both if token.get("lstrip"))
    if right:
        yield re.compile(f"{right.pattern}[{_BLANKS}]+"), r"\1"
    if left:
        yield re.compile(f"[{_BLANKS}]+{left.pattern}"), r"\1"


def _lower(text: str) -> str:
    """Character by character: `str.lower` alone would look at a sigma's neighbours."""
    return text.lower() if text.isascii() else "".join(map(str.lower, text))


def _strip(text: str, left: bool, right: bool) -> str:
    text = text.lstrip(_BLANKS) if left else text
    return text.rstrip(_BLANKS) if right else text


def _strip_accents(text: str) -> str:
    return "".join(char for char in text if unicodedata.category(char) != "Mn")


_NMT_DROPPED = dict.fromkeys([*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F])
_NMT_BLANKS = dict.fromkeys(
    [0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD], " "
)
_NMT: dict[int, str | None] = {**_NMT_DROPPED, **_NMT_BLANKS}


def _nmt(text: str) -> str:
    """The clean-up of neural machine translation: control characters out, odd blanks to plain ones."""
    return text.translate(_NMT)
