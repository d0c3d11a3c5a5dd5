"""Text to token ids and back, with the model's own tokenizer.

Prompts repeat: each turn of a conversation sends the earlier ones again, and tokenizing 8 KB costs over a millisecond.
Special tokens cut a text into pieces that a tokenizer treats on their own. So pieces are tokenized once and cached, in
a bounded LRU. Where a tokenizer reads across such a cut (it normalizes, or its special tokens include spaces), nothing
is cut and nothing cached. Several threads may encode at once: the tokenizer releases the GIL, and no lock is held while
it works.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from plumage.errors import ConfigurationError
from plumage.rendering import ByteTable, Normalizer

__all__ = ["Text"]

_REMEMBERED_IDS = 500_000
_UNKNOWN_TEXT = "\U0010fffd" * 8  # of private use: in no vocabulary
_WORD = re.compile(rb" [A-Za-z]{2,}")
_LETTER = re.compile(rb"[A-Za-z]")


class Text:
    """One tokenizer.

    words: ids of words with a space before them. Each tokenizes to itself, so an answer made of them is found in the
        cache when the next prompt contains it.
    normalize: the text that ids stand for.
    longest: bytes of it that one id stands for at most; None where that is unknown.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        self._tokenizer: Any = _load(tokenizer_json)
        self._table = ByteTable.from_tokenizer_json(tokenizer_json)
        self._special = _separators(json.loads(tokenizer_json))
        self._before, self._after = self._surroundings()
        self._pieces: OrderedDict[str, Sequence[int]] = OrderedDict()
        self._remembered = 0
        self._lock = threading.Lock()
        self.normalize = Normalizer.from_tokenizer_json(tokenizer_json)
        self.longest = self._find_longest()
        self.words = self._find_words()

    @property
    def vocabulary(self) -> int:
        """Ids are below this."""
        return len(self._table.pieces)

    @property
    def added_before(self) -> int:
        """Ids that `add_special_tokens` puts before a text."""
        return len(self._before)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a prompt; `add_special_tokens` for raw completions, whose BOS no template has written."""
        if self._special is None:
            return self._ids(text, add_special_tokens)
        ids: list[int] = list(self._before) if add_special_tokens else []
        for piece in self._special.split(text):
            if piece:
                ids.extend(self._remember(piece))
        return [*ids, *self._after] if add_special_tokens else ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._table.decode(token_ids).decode(errors="replace")

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """The tokenizer's own name of each id, such as "Ġthe"."""
        return [self._tokenizer.id_to_token(token) for token in token_ids]

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each id; for `words` their concatenation is the text of all."""
        pieces = self._table.pieces
        return [pieces[token].decode(errors="replace") for token in token_ids]

    def _remember(self, piece: str) -> Sequence[int]:
        with self._lock:
            known = self._pieces.get(piece)
            if known is not None:
                self._pieces.move_to_end(piece)
                return known
        ids = self._ids(piece, False)
        with self._lock:
            self._remembered += len(ids) - len(self._pieces.get(piece, ()))
            self._pieces[piece] = ids
            while self._remembered > _REMEMBERED_IDS:
                self._remembered -= len(self._pieces.popitem(last=False)[1])
        return ids

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """The ids put before and after a raw prompt."""
        bare, full = self._ids("a", False), self._ids("a", True)
        before = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
        return full[:before], full[before + len(bare) :]

    def _find_longest(self) -> int | None:
        """The longest of the vocabulary, if the tokenizer spells unknown text byte by byte. Else one id ("unknown")
        may stand for any text. It is unknown too for a normalizer with unsupported steps."""
        spelt = self.decode(self._ids(_UNKNOWN_TEXT, False)) == _UNKNOWN_TEXT
        return max(map(len, self._table.pieces)) if spelt and not self.normalize.unsupported else None

    def _find_words(self) -> list[int]:
        candidates = [token for token, piece in enumerate(self._table.pieces) if _WORD.fullmatch(piece)]
        encodings = self._tokenizer.encode_batch_fast(self.pieces(candidates), add_special_tokens=False)
        words = [token for token, encoding in zip(candidates, encodings, strict=True) if encoding.ids == [token]]
        return words or candidates or self._letters() or list(range(min(256, self.vocabulary)))

    def _letters(self) -> list[int]:
        """The letters, for a tokenizer of bytes, which has no words."""
        return [token for token, piece in enumerate(self._table.pieces) if _LETTER.fullmatch(piece)]


def _load(tokenizer_json: bytes) -> Any:
    try:
        return Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:  # the library raises nothing narrower
        raise ConfigurationError(f"tokenizer.json can't be loaded: {error}; fetch the file again") from error


def _separators(spec: dict[str, Any]) -> re.Pattern[str] | None:
    """A pattern that splits a text at its special tokens; None if what lies between them depends on them."""
    tokens = spec.get("added_tokens") or []
    if not tokens or spec.get("normalizer") is not None or "Metaspace" in json.dumps(spec.get("pre_tokenizer")):
        return None
    if any(token.get(flag) for token in tokens for flag in ("lstrip", "rstrip", "single_word", "normalized")):
        return None
    longest_first = sorted((token["content"] for token in tokens), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
