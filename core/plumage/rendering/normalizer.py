"""Text as the tokenizer leaves it: the text to which its token ids decode.

The directory hashes bytes that an agent rebuilds from token ids (`bytetable`). So the router must hash the text as the
tokenizer has changed it. Some tokenizers compose accents (NFC in Qwen's), fold compatibility characters (NFKC), lower
case, take SentencePiece's `▁` for a space, or swallow blanks beside a special token. Read from tokenizer.json. For most
models plain ASCII passes unchanged, which one flag check finds out.

Added tokens are cut out first and never normalized, as in `tokenizers`; only the text between them changes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias

__all__ = ["Normalizer"]

_Form: TypeAlias = Literal["NFC", "NFD", "NFKC", "NFKD"]
_SPACE = "▁"
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space, which `tokenizers` goes by; Python's idea of it has four more."""
_UNICODE_FORMS: dict[str, _Form] = {
    "NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Normalizer:
    """steps: what happens to each text between added tokens. keeps_ascii: none of it touches ASCII.

    unsupported: names of steps that can't be done here. Text that they would change keeps a wrong chain: a lost hint,
        never a wrong answer. The agent's self-check at start finds it.
    """

    steps: tuple[Callable[[str], str], ...] = ()
    keeps_ascii: bool = True
    added: re.Pattern[str] | None = None
    swallows_left: re.Pattern[str] | None = None
    swallows_right: re.Pattern[str] | None = None
    form: _Form | None = None
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
            swallows_left=_alternatives(token["content"] for token in tokens if token.get("lstrip")),
            swallows_right=_alternatives(
                (token["content"] for token in tokens if token.get("rstrip")), f"[{_BLANKS}]+"
            ),
            form=only_form,
            first_blank=_first_blank(spec),
            unsupported=tuple(builder.unsupported),
        )

    @property
    def keeps_all_ascii(self) -> bool:
        """Whether any ASCII text is left as it is, with its added tokens."""
        swallows = self.swallows_left is not None or self.swallows_right is not None
        return self.keeps_ascii and not swallows and self.first_blank == "kept"

    def keeps(self, text: str) -> bool:
        """Is the text left as it is between its added tokens? Quick to find out, unlike what would become of it."""
        return (self.keeps_ascii and text.isascii()) or self._is_normal(text)

    def __call__(self, text: str) -> str:
        if not self.keeps(text):
            text = self._between_tokens(text)
        if self.swallows_right is not None:
            text = self.swallows_right.sub(r"\1", text)
        if self.swallows_left is not None:
            text = _without_blanks_before(self.swallows_left, text)
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
        self.forms: list[_Form] = []
        self.unsupported: list[str] = []
        self.keeps_ascii = True

    def add(self, step: Mapping[str, Any]) -> None:
        kind = str(step.get("type"))
        if kind in _UNICODE_FORMS:
            self.forms.append(_UNICODE_FORMS[kind])
            self._step(_normalizing(_UNICODE_FORMS[kind]))
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
        """Reads the prepended `▁`: it is the dummy prefix, which the byte table drops again."""
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


def _alternatives(texts: Iterable[str], followed_by: str = "") -> re.Pattern[str] | None:
    """Longest first, so that the leftmost longest token matches; the group makes `split` keep the tokens."""
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" + followed_by) if longest_first else None


def _without_blanks_before(tokens: re.Pattern[str], text: str) -> str:
    """Without a pattern of blanks and a token, which would try again from each blank of a long run."""
    parts = tokens.split(text)  # text, token, text, token, …, text
    if len(parts) == 1:
        return text
    parts[:-1:2] = [part.rstrip(_BLANKS) for part in parts[:-1:2]]
    return "".join(parts)


_LONG = 32  # Unicode's Stream-Safe Text Format (UAX #15) has at most 30 marks in a row: more are no language


def _normalizing(form: _Form) -> Callable[[str], str]:
    """`unicodedata.normalize` sorts each run of combining marks by insertion, in the square of its length. So long ones
    are put in canonical order before (Unicode §3.11, D109)."""
    runs, decomposed = _long_runs("NFD" if form in ("NFC", "NFD") else "NFKD")

    def in_order(run: re.Match[str]) -> str:
        return "".join(sorted(run[0].translate(decomposed), key=unicodedata.combining))

    return lambda text: unicodedata.normalize(form, runs.sub(in_order, text))


@cache
def _long_runs(form: _Form) -> tuple[re.Pattern[str], dict[int, str]]:
    """A pattern of long runs of marks, and what the marks among them that are composed consist of."""
    parts = {code: unicodedata.normalize(form, chr(code)) for code in range(0x300, 0x20000)}
    marks = {code: text for code, text in parts.items() if unicodedata.combining(text[0])}
    members = "".join(map(chr, marks))
    pattern = re.compile(f"(?<![{members}])[{members}]{{{_LONG},}}")
    return pattern, {code: text for code, text in marks.items() if text != chr(code)}


def _lower(text: str) -> str:
    """Character by character: `str.lower` of the whole text would change a final sigma."""
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
