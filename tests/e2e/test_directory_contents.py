"""A whole pool under load, an engine lost on the way: all that its directory is ever sent is hashes, counts and tables,
by commands that Redis 6.2 has."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import struct
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from support.pool import Pool, ready_pool, whole
from support.redis62 import Recorder, refused
from support.requests import sending
from tokenizers import Tokenizer

from plumage.hashing.chunks import chain, seed
from plumage.models import resolve
from plumage.rendering import ChatRenderer, ModelFolder
from plumage_cli.demo.load import Session

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]

WORDS = ["zanzibar", "quokka", "walrus", "embargo", "pylon", "Grünkohl", "日本語", "mortgage", "ligature", "oboe"]
TOKENIZER = Tokenizer.from_file(str(resolve("builtin://tiny-chat") / "tokenizer.json"))
RUN = 8  # token ids in a row: fewer would be found in anything
KINDS = ("beat", "epoch", "snap", "log", "work", "estimators", "hotness", "tables")


def secret_text(number: int) -> str:
    """A system prompt: every third one the same."""
    rng = random.Random(number % 3 or number)
    return " ".join(rng.choice(WORDS) for _ in range(300))


@pytest.fixture
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 2, spec__engine__feather__policy="Bandit") as pool:  # a learner, for its tables
        yield pool
        assert pool.stop() == 0, pool.output


async def test_directory_receives_no_prompt_and_no_token_id(pool: Pool) -> None:
    texts = [secret_text(number) for number in range(200)]
    with Recorder(pool.folder / "dir" / "directory.sock") as recorder:
        await send(pool, texts)
        await until_all_kinds(recorder)
    stored = await asyncio.to_thread(dump, pool)  # by commands of ours
    assert {wrong for command in recorder.sent if (wrong := refused(command))} == set()
    seen = b"\n".join([*(argument for command in recorder.sent for argument in command), *stored])
    assert any(hash.to_bytes(8, "little") in seen for hash in chunks_of(texts[3])), "the load is in what was recorded"
    assert found(texts, seen) == []


async def send(pool: Pool, texts: list[str]) -> None:
    async with sending(pool) as sender:
        for number, text in enumerate(texts):
            sender.send(Session(0.0, "secret", text, ("What then?",), (0.0,), 16))
            if number == len(texts) // 2:
                os.kill(pool.pids()["engine chat-1"], signal.SIGKILL)
            await asyncio.sleep(0.02)
    assert sender.lost == []
    await pool.until(whole(2))


async def until_all_kinds(recorder: Recorder) -> None:
    """Waits until every part of the product has written to the directory."""
    deadline = time.monotonic() + 60.0
    while missing := [kind for kind in KINDS if not any(kind.encode() in part(command) for command in recorder.sent)]:
        assert time.monotonic() < deadline, f"nobody wrote {missing}"
        await asyncio.sleep(0.1)


def part(command: list[bytes]) -> list[bytes]:
    """The words of a written key: pool, replica and epoch among them."""
    write = command[0].upper() in (b"HSET", b"XADD", b"INCRBY", b"SET")
    return command[1].replace(b"}", b":").split(b":") if write else []


def dump(pool: Pool) -> list[bytes]:
    """Every key with all that it holds."""
    with redis.Redis(unix_socket_path=str(pool.folder / "dir" / "directory.sock"), protocol=2) as client:
        reads: dict[bytes, Any] = {b"string": client.get, b"hash": client.hgetall, b"stream": client.xrange}
        return [key + repr_bytes(reads[client.type(key)](key)) for key in client.scan_iter()]


def repr_bytes(value: Any) -> bytes:
    """Everything in it, one after the other."""
    if isinstance(value, dict):
        return b"\n".join(repr_bytes(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return b"\n".join(map(repr_bytes, value))
    return bytes(value or b"")


def chunks_of(text: str) -> list[int]:
    """What a router looks up for it."""
    renderer = ChatRenderer.from_folder(ModelFolder.load(resolve("builtin://tiny-chat")), clock=datetime.now)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "What then?"}]
    return chain(renderer.render_chat({"model": "tiny-chat", "messages": messages}), seed("tiny-chat"))


def found(texts: list[str], seen: bytes) -> list[bytes]:
    """Words, and token ids in a row however they may be written, that are in what was seen."""
    words = {form for word in WORDS for form in (word.encode(), json.dumps(word).encode().strip(b'"'))}
    hits = [word for word in words if word in seen]
    for text in set(texts):
        ids = TOKENIZER.encode(text, add_special_tokens=False).ids
        for start in range(0, len(ids) - RUN, 4 * RUN):
            hits += [form for form in written(ids[start : start + RUN]) if form in seen]
    return hits


def written(ids: list[int]) -> Iterator[bytes]:
    """Token ids as packed integers of every size, as msgpack, as text."""
    for order in "<>":
        for size in "HIQ":
            yield struct.pack(f"{order}{RUN}{size}", *ids)
    yield b"".join(map(msgspec.msgpack.encode, ids))
    for separator in (b",", b", ", b" ", b"\n"):
        yield separator.join(str(token).encode() for token in ids)


def test_search_finds_planted_prompt() -> None:
    text = secret_text(1)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert found([text], b"nothing of the kind" * 100) == []
    for leak in (text.encode(), json.dumps(text).encode(), msgspec.msgpack.encode(ids), json.dumps(ids).encode()):
        assert found([text], b"before" + leak + b"after")
    for form in written(ids[:RUN]):
        assert found([text], b"before" + form + b"after") == [form]
