"""Bodies that cost a router the most, each within its size limit (16 MiB)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

__all__ = ["BODIES", "MODEL", "Hostile"]

MODEL: Final = "tiny"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_SIZE = 16_000_000
_HEAD = b'{"model":"tiny",'


@dataclass(frozen=True, slots=True)
class Hostile:
    """make: the body. clients: connections that send it; each sends it again after the answer."""

    path: str
    make: Callable[[], bytes]
    clients: int = 2


def _parts() -> bytes:
    parts = b",".join([b'{"type":"text","text":""}'] * 600_000)
    return _HEAD + b'"messages":[{"role":"user","content":[' + parts + b"]}]}"


def _objects() -> bytes:
    """Looks like a duplicate key: a quote that is written as \\u0022 hides one."""
    message = b'"messages":[{"role":"user","content":"x"}],"user":"\\u0022","metadata":{"a":['
    return _HEAD + message + b",".join([b"{}"] * 5_000_000) + b"]}}"


def _ids() -> bytes:
    return _HEAD + b'"prompt":[' + b",".join([b"1"] * 8_000_000) + b"]}"


def _numbers(count: int, digits: int) -> bytes:
    return _HEAD + b'"prompt":[' + b",".join([b"1" * digits] * count) + b"]}"


def _nested() -> bytes:
    inner = b"[" * 200 + b"]" * 200
    return _HEAD + b'"prompt":"x","logit_bias":{"a":[' + b",".join([inner] * 39_000) + b"]}}"


def _text(size: int, **more: object) -> bytes:
    words = "the quick brown fox jumps over the lazy dog " * (size // 44)
    return orjson.dumps({"model": MODEL, "prompt": words, **more})


def _escapes() -> bytes:
    return _HEAD + b'"prompt":"' + b"\\u00e9" * 2_097_000 + b'"}'


def _keys() -> bytes:
    keys = b",".join([b'"k%d":1' % number for number in range(500_000)])
    return _HEAD + b'"messages":[{"role":"user","content":"x",' + keys + b"}]}"


def _backslashes() -> bytes:
    return _HEAD + b'"prompt":"' + b"\\" * (_SIZE - 100) + b'"}'


def _escaped_quotes() -> bytes:
    return _HEAD + b'"prompt":"' + b'\\"' * (_SIZE // 2 - 100) + b'"}'


def _chat(size: int) -> bytes:
    content = "the quick brown fox jumps over the lazy dog " * (size // 44)
    return orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]})


BODIES: Final[Mapping[str, Hostile]] = {
    "600,000 content parts": Hostile(CHAT, _parts),
    "5 M objects, quote as \\u0022": Hostile(CHAT, _objects),
    "8 M token ids": Hostile(COMPLETION, _ids),
    "500,000 numbers of 30 digits": Hostile(COMPLETION, lambda: _numbers(500_000, 30)),
    "500,000 token ids": Hostile(COMPLETION, lambda: _numbers(500_000, 6)),
    "260,000 token ids": Hostile(COMPLETION, lambda: _numbers(260_000, 6)),
    "nested lists": Hostile(COMPLETION, _nested),
    "16 MB of text": Hostile(COMPLETION, lambda: _text(_SIZE)),
    "16 MB of text, to be cut": Hostile(COMPLETION, lambda: _text(_SIZE, truncate_prompt_tokens=100)),
    "12 MB of escapes": Hostile(COMPLETION, _escapes),
    "500,000 keys of a message": Hostile(CHAT, _keys),
    "16 MB of backslashes": Hostile(COMPLETION, _backslashes),
    "8 M escaped quotes": Hostile(COMPLETION, _escaped_quotes),
    "450 KB chats, 16 clients": Hostile(CHAT, lambda: _chat(450_000), clients=16),
}
