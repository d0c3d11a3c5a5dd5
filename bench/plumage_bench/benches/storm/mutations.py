"""Requests that no client should send: valid ones with one to three changes, chosen by a seed. No I/O."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Mutated", "mutated"]

_CHAT: Final = "/v1/chat/completions"
_PATHS: Final = (_CHAT, "/v1/completions", "/v1/models", "/health", "/metrics", "/plumage/v1/status", "/v1/nothing")
_FIELDS: Final = (
    "model", "messages", "prompt", "stream", "max_tokens", "temperature", "cache_salt", "priority", "logprobs", "n",
    "tools", "stream_options", "truncate_prompt_tokens", "chat_template", "kv_transfer_params", "user", "stop",
)  # fmt: skip
_VALUES: Final[Sequence[Any]] = (
    None, True, -1, 0, 1 << 63, 1e308, "", "x" * 5000, "\x00", "\ud83d\ude00", [], {}, [[]], [None] * 500, {"a": {}},
    ["a", 1], {"role": "user"}, [{"role": "user", "content": None}], [{"role": "x", "content": "y"}], [7] * 2000,
)  # fmt: skip
_NAMES: Final = (
    "content-length", "transfer-encoding", "host", "connection", "expect", "authorization", "x-request-id",
)  # fmt: skip
_METHODS: Final = ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "CONNECT", "post", "X" * 40)
_OTHERS: Final = (
    "0", "-1", "99999999999999999999", "1e3", "chunked", "gzip, chunked", "identity", "close", "upgrade",
    "100-continue",     "Bearer ", "\x7f", "a" * 9000, "é", " ",
)  # fmt: skip


@dataclass(slots=True)
class _Draft:
    """A request, part by part."""

    method: str = "POST"
    path: str = _CHAT
    version: str = "HTTP/1.1"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)
    raw: bytes | None = None

    def encoded(self) -> bytes:
        body = json.dumps(self.body).encode() if self.raw is None else self.raw
        lines = [f"{self.method} {self.path} {self.version}", *(f"{name}: {value}" for name, value in self.headers)]
        if not any(name in ("content-length", "transfer-encoding") for name, _ in self.headers):
            lines.append(f"content-length: {len(body)}")
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


@dataclass(frozen=True, slots=True)
class Mutated:
    """data: all that is sent. names: what was changed."""

    data: bytes
    names: tuple[str, ...]


def _field(draft: _Draft, rng: random.Random) -> None:
    draft.body[rng.choice(_FIELDS)] = rng.choice(_VALUES)


def _unknown_field(draft: _Draft, rng: random.Random) -> None:
    draft.body[f"x{rng.randrange(1000)}"] = rng.choice(_VALUES)


def _missing_field(draft: _Draft, rng: random.Random) -> None:
    draft.body.pop(rng.choice(("model", "messages", "stream")), None)


def _deep(draft: _Draft, rng: random.Random) -> None:
    depth = rng.choice((10, 200, 5000))
    draft.raw = b'{"model": "tiny-chat", "messages": ' + b"[" * depth + b"]" * depth + b"}"


def _wide(draft: _Draft, rng: random.Random) -> None:
    part = {"type": "text", "text": "a"}
    draft.body["messages"] = [{"role": "user", "content": [part] * rng.choice((10, 1000, 20_000))}]


def _twice(draft: _Draft, rng: random.Random) -> None:
    draft.raw = json.dumps(draft.body).encode()[:-1] + b', "model": "other"}'


def _bytes(draft: _Draft, rng: random.Random) -> None:
    body = bytearray(json.dumps(draft.body).encode())
    for _ in range(rng.randrange(1, 8)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    draft.raw = bytes(body)


def _cut(draft: _Draft, rng: random.Random) -> None:
    body = json.dumps(draft.body).encode()
    draft.raw = body[: rng.randrange(len(body))]


def _header(draft: _Draft, rng: random.Random) -> None:
    draft.headers.append((rng.choice(_NAMES), rng.choice(_OTHERS)))


def _many_headers(draft: _Draft, rng: random.Random) -> None:
    draft.headers += [(f"x-{number}", "v") for number in range(rng.choice((50, 99, 101, 500)))]


def _media_type(draft: _Draft, rng: random.Random) -> None:
    draft.headers.append(("content-type", rng.choice(("text/plain", "application/json; charset=x", "", "*/*"))))


def _method(draft: _Draft, rng: random.Random) -> None:
    draft.method = rng.choice(_METHODS)


def _path(draft: _Draft, rng: random.Random) -> None:
    draft.path = rng.choice((*_PATHS, "/" + "a" * 5000, "*", "http://x/", "/v1/%00", "/../etc/passwd", f"{_CHAT}?a=b"))


def _version(draft: _Draft, rng: random.Random) -> None:
    draft.version = rng.choice(("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 ", "http/1.1", "FTP/1.1"))


def _chunks(draft: _Draft, rng: random.Random) -> None:
    """In chunked encoding, whose sizes may be wrong."""
    body = json.dumps(draft.body).encode()
    size = rng.choice(
        (f"{len(body):x}", f"{len(body) + 1:x}", "0", "-1", "ffffffffffffffff", "zz", f"{len(body):x};a=b")
    )
    draft.headers.append(("transfer-encoding", "chunked"))
    draft.raw = size.encode() + b"\r\n" + body + b"\r\n0\r\n\r\n"


def _length(draft: _Draft, rng: random.Random) -> None:
    body = json.dumps(draft.body).encode()
    draft.headers.append(("content-length", str(max(0, len(body) + rng.choice((-5, 1, 1000, 1 << 24, 1 << 40))))))


def _pipelined(draft: _Draft, rng: random.Random) -> None:
    draft.raw = json.dumps(draft.body).encode() + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * rng.randrange(1, 40)


_MUTATIONS: Final[Sequence[Callable[[_Draft, random.Random], None]]] = (
    _field, _field, _field, _unknown_field, _missing_field, _deep, _wide, _twice, _bytes, _bytes, _cut, _header,
    _header,     _many_headers, _media_type, _method, _path, _version, _chunks, _length, _pipelined,
)  # fmt: skip
_RARE: Final = (_deep, _wide)  # their size alone costs a router's time


def mutated(rng: random.Random) -> Mutated:
    """The next request. Parts without a mutation are as a client's: a short chat request."""
    draft = _Draft(
        headers=[("host", "router")],
        body={
            "model": "tiny-chat",
            "messages": [{"role": "user", "content": f"m{rng.randrange(50)}"}],
            "max_tokens": 1,
        },
    )
    chosen = [_chosen(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    for mutate in chosen:
        mutate(draft, rng)
    return Mutated(draft.encoded(), tuple(mutate.__name__.strip("_") for mutate in chosen))


def _chosen(rng: random.Random) -> Callable[[_Draft, random.Random], None]:
    mutate = rng.choice(_MUTATIONS)
    return mutate if mutate not in _RARE or rng.random() < 0.1 else _field
