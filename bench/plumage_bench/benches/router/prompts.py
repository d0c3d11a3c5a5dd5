"""The router benchmark's requests: prompts that begin with one of a few shared prefixes and end with new text."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MARK", "MODEL", "PREFIXES", "SHARED", "Body", "make_bodies", "write_bodies"]

MODEL = "tiny"
PREFIXES = 32
SIZE = 8192  # bytes of a request's text, by default
SHARED = 0.75
MARK = "0" * 16  # a mark, replaced by each request's number
_ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Body:
    """A request's JSON and the position of its mark."""

    data: bytes

    @property
    def place(self) -> int:
        return self.data.index(MARK.encode())


def make_bodies(messages: int, seed: int, *, stream: bool = False, size: int = SIZE) -> list[Body]:
    """One body for each prefix, equal for equal seeds. size: bytes of its text."""
    rng = random.Random(f"router {seed} {messages}")
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    return [_body(messages, rng, words, stream, size) for _ in range(PREFIXES)]


def _body(messages: int, rng: random.Random, words: list[str], stream: bool, size: int) -> Body:
    """The text is cut into messages of equal length. The mark is where the shared part ends."""
    length = size // messages
    cut = int(size * SHARED)
    cut += -(cut % length) if length - cut % length < len(MARK) else 0  # a mark stays in one message
    text = _text(rng, words, cut) + MARK + _text(rng, words, size - cut - len(MARK))
    pieces = [text[at : at + length] for at in range(0, length * messages, length)]
    roles = ["system"] * (messages > 1) + [_ROLES[n % 2] for n in range(messages)]
    listed = [{"role": role, "content": piece} for role, piece in zip(roles, pieces, strict=False)]
    body = {"model": MODEL, "messages": listed, "max_tokens": 16, "temperature": 0.7}
    if stream:
        body["stream"] = True
    return Body(json.dumps(body, separators=(",", ":")).encode())


def _text(rng: random.Random, words: list[str], size: int) -> str:
    parts, length = [""], 0
    while length < size:
        parts.append(" ".join(rng.choices(words, k=64)) + " ")
        length += len(parts[-1])
    return "".join(parts)[:size]


def write_bodies(path: Path, bodies: list[Body], base: int) -> None:
    """The load generator's file (native/load.c)."""
    parts = [struct.pack("<II", len(bodies), base)]
    for body in bodies:
        parts += (struct.pack("<II", len(body.data), body.place), body.data)
    path.write_bytes(b"".join(parts))
