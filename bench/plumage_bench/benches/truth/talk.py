"""The requests of clients of `truth`, by kind: conversations, tools, texts, token ids, odd Unicode, salts, adapters,
bursts.

Each kind is a coroutine that sends a fixed number of requests, some of which depend on earlier answers. Texts consist
of words on which the model's tokenizer was trained, about four bytes a token; `unicode` has down to one byte a token.
Prefixes are shared within a kind and between kinds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from plumage_bench.benches.truth.fleet import Answer
from plumage_engine.vllm.tiny_model import seeded_text

__all__ = ["ADAPTERS", "KINDS", "Ask", "Texts"]

ADAPTERS = ("law", "code")
BURST = 8
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
_LINES = 6_000

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Answer]]
Kind = Callable[[Ask, "Texts", random.Random], Awaitable[None]]
_ODD = (
    "e\u0301 ", "é ", "👩\u200d👩\u200d👧 ", "日本語 ", "שלום ", "\u00a0", "\u202e", "\ufeff", "ﬀ ", "Ⅷ ", "ß", "İ",
    "<|im_end|>", "\u0000x", "\r\n", "\t", "𝔘 ", "ก็ ", "�", "\u2028", "ᄀ\u1161\u11a8 ", "½ ",
)  # fmt: skip


class Texts:
    """seed: of the model's tokenizer, for the same words."""

    def __init__(self, seed: int, count_tokens: Callable[[str], Sequence[int]]) -> None:
        self._lines = list(islice(seeded_text(random.Random(seed)), _LINES))
        self.encode = count_tokens

    def part(self, name: object, lines: int) -> str:
        """Text by name: equal names give equal texts, and a longer text begins with the shorter one."""
        rng = random.Random(f"text {name}")
        return "".join(rng.choice(self._lines) for _ in range(lines))


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _system(texts: Texts, number: int) -> dict[str, Any]:
    return {"role": "system", "content": texts.part(f"system {number}", 30)}


async def chat(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five questions under one of eight system prompts."""
    system = _system(texts, rng.randrange(8))
    for _ in range(5):
        question = _user(texts.part(rng.random(), 4))
        await ask(CHAT, {"messages": [system, question], "max_tokens": 8})


async def turns(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Six turns, each of which contains the engine's own answer."""
    messages = [_system(texts, rng.randrange(8))]
    for _ in range(6):
        messages = [*messages, _user(texts.part(rng.random(), rng.randrange(1, 6)))]
        answer = await ask(CHAT, {"messages": messages, "max_tokens": rng.choice((16, 32, 64))})
        messages = [*messages, {"role": "assistant", "content": answer.text}]


async def tools(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Four turns of an agent with tools. The conversation contains calls and their results."""
    offered = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": texts.part(f"tool {name}", 6),
                "parameters": {"type": "object", "properties": {"query": {"type": "string", "description": "wörd"}}},
            },
        }
        for name in rng.choice((("search", "open", "run"), ("search", "open"), ("weather",)))
    ]
    messages = [_system(texts, rng.randrange(8)), _user(texts.part(rng.random(), 3))]
    for turn in range(4):
        answer = await ask(CHAT, {"messages": messages, "tools": offered, "max_tokens": 16})
        call = {"name": "search", "arguments": f'{{"query": "{rng.randrange(10**6)}"}}'}
        messages = [
            *messages,
            {
                "role": "assistant",
                "content": answer.text,
                "tool_calls": [{"id": f"call{turn}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call{turn}", "content": texts.part(rng.random(), 5)},
        ]


async def completions(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five raw texts that begin with one of ten documents, cut at any place."""
    document = texts.part(f"document {rng.randrange(10)}", 50)
    for _ in range(5):
        prompt = document[: rng.randrange(400, len(document))] + texts.part(rng.random(), 3)
        await ask(RAW, {"prompt": prompt, "max_tokens": 8})


async def ids(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five prompts of token ids: of documents, and of documents with random ids after them."""
    document = texts.encode(texts.part(f"document {rng.randrange(10)}", 50))
    for turn in range(5):
        tail = [rng.randrange(3, 30_000) for _ in range(rng.randrange(1, 200))]
        prompt = [*document[: rng.randrange(100, len(document))], *(tail if turn % 2 else [])]
        await ask(RAW, {"prompt": prompt, "max_tokens": 8})


async def unicode(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five turns of text that is hard for tokenizers and templates: other scripts, joined emoji, composed and
    decomposed letters, direction marks, line ends, the template's own words."""
    odd = random.Random(f"odd {rng.randrange(8)}")
    messages = [{"role": "system", "content": "".join(odd.choice(_ODD) for _ in range(150))}]
    for _ in range(5):
        own = "".join(rng.choice(_ODD) for _ in range(rng.randrange(5, 60)))
        messages = [*messages, _user(own + texts.part(rng.random(), 1))]
        answer = await ask(CHAT, {"messages": messages, "max_tokens": 12})
        messages = [*messages, {"role": "assistant", "content": answer.text}]


async def salted(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five prompts of one document for three tenants, which share nothing."""
    document = texts.part(f"document {rng.randrange(3)}", 30)
    for _ in range(5):
        salt = f"tenant {rng.randrange(3)}"
        await ask(RAW, {"prompt": document + texts.part(rng.random(), 2), "max_tokens": 4, "cache_salt": salt})


async def adapters(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five prompts of one document for the model with one of two adapters."""
    document = texts.part(f"document {rng.randrange(3)}", 30)
    for _ in range(5):
        prompt = document + texts.part(rng.random(), 2)
        await ask(RAW, {"prompt": prompt, "max_tokens": 4, "model": rng.choice(ADAPTERS)})


async def burst(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Eight concurrent prompts with a common prefix that is not cached yet."""
    new = texts.part(rng.random(), 40)
    bodies = [{"prompt": new + texts.part(rng.random(), 2), "max_tokens": 4} for _ in range(BURST)]
    await asyncio.gather(*(ask(RAW, body) for body in bodies))


async def documents(ask: Ask, texts: Texts, rng: random.Random) -> None:
    """Five questions about five of twelve documents, which exceed the cache four times. Some are requested more
    often."""
    for _ in range(5):
        one = min(11, int(rng.expovariate(0.25)))
        prompt = texts.part(f"long {one}", 70) + texts.part(rng.random(), 2)
        await ask(RAW, {"prompt": prompt, "max_tokens": 8})


KINDS: Mapping[str, tuple[Kind, int]] = {
    "chat": (chat, 5),
    "multi-turn": (turns, 6),
    "tools": (tools, 4),
    "completions": (completions, 5),
    "token ids": (ids, 5),
    "unicode": (unicode, 5),
    "salts": (salted, 5),
    "adapters": (adapters, 5),
    "burst": (burst, BURST),
    "documents": (documents, 5),
}
"""By name: the coroutine, and its number of requests."""
