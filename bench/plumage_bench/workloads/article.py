"""The survey article's workloads (§4.3): retrieval, code completion, agents, batch summaries, and a changing mix.

The article gives no sizes. All lengths here are Plumage's, in ranges that are usual for such services:

- `rag`: a system prompt, then four passages drawn by Zipf from a corpus, then the question. Two prompts share
  the passages that are equal and in the same order.
- `code`: an open file up to the cursor. It grows from call to call; one call in ten follows an edit further
  up, after which everything is new.
- `agents`: calls that depend on each other. Each contains the last call's answer and its tool's result. Agents of
  one kind share their instructions and tools. The next call follows the answer.
- `summaries`: long documents, each once, after one short instruction: there is little to share.
- `mix`: all of these and conversations in one stream. Its shares change from code and agents to retrieval and
  summaries. The article's mix takes two hours; here the number of requests sets the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from plumage_bench.workloads.multiturn import MultiturnShape, conversations
from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["ArticleKind", "ArticleShape", "agent_sessions", "article_prompts", "article_sessions"]

ArticleKind = Literal["rag", "code", "agents", "chat", "summaries", "mix"]

_PASSAGES, _PASSAGE, _RETRIEVED = 400, 512, 4  # passages, tokens of each, how many a prompt has
_FILES, _EDITS = 64, 0.1
_AGENT_KINDS, _CALLS = 4, (4, 10)
_SHARES = {  # shares of the mix, at its beginning and at its end
    "code": (0.4, 0.05),
    "agents": (0.3, 0.1),
    "chat": (0.2, 0.2),
    "rag": (0.1, 0.4),
    "summaries": (0.0, 0.25),
}


@dataclass(frozen=True, slots=True)
class ArticleShape:
    """requests: about this many in total; sessions are not cut."""

    kind: ArticleKind
    requests: int = 2048
    block_size: int = 16

    def __post_init__(self) -> None:
        assert self.kind in get_args(ArticleKind)


def article_prompts(shape: ArticleShape, seed: int) -> list[Prompt]:
    """The prompts of an open stream, in order. Not for agents, whose calls wait for answers."""
    rng = random.Random(f"article-{shape.kind}-{seed}")
    names = BlockNames(rng, shape.block_size)
    if shape.kind == "mix":
        return list(_mix(shape, names, rng, seed))
    make = _STREAMS[shape.kind](names, rng)
    return [next(make) for _ in range(shape.requests)]


def agent_sessions(shape: ArticleShape, seed: int) -> list[list[Prompt]]:
    """One list of calls for each agent."""
    rng = random.Random(f"article-agents-{seed}")
    sessions, left = _agents(BlockNames(rng, shape.block_size), rng), shape.requests
    made: list[list[Prompt]] = []
    while left > 0:
        made.append(next(sessions))
        left -= len(made[-1])
    return made


def article_sessions(shape: ArticleShape, seed: int) -> list[list[Prompt]]:
    """The same requests for clients that wait for their answers: agents and chats as whole sessions, others as sessions
    of one call. In the mix, the shares of the requests so far are those of the mix's stream."""
    rng = random.Random(f"article-{shape.kind}-sessions-{seed}")
    names = BlockNames(rng, shape.block_size)
    kinds: Sequence[str] = list(_SHARES) if shape.kind == "mix" else [shape.kind]
    sessions = {kind: _sessions(kind, shape, names, rng, seed) for kind in kinds}
    made: list[list[Prompt]] = []
    owed, sent = dict.fromkeys(kinds, 0.0), 0  # requests that a kind should have had, less those that it had
    while sent < shape.requests:
        kind = max(kinds, key=owed.__getitem__)
        made.append(next(sessions[kind]))
        calls = len(made[-1])
        for each in kinds:
            begin, end = _SHARES[each] if shape.kind == "mix" else (1.0, 1.0)
            owed[each] += calls * (begin + (end - begin) * sent / shape.requests)
        owed[kind] -= calls
        sent += calls
    return made


def _sessions(
    kind: str, shape: ArticleShape, names: BlockNames, rng: random.Random, seed: int
) -> Iterator[list[Prompt]]:
    if kind == "agents":
        return _agents(names, rng)
    if kind == "chat":
        return iter(conversations(_chat_shape(shape), seed))
    return ([prompt] for prompt in _STREAMS[kind](names, rng))


def _rag(names: BlockNames, rng: random.Random) -> Iterator[Prompt]:
    weights = [1.0 / (rank + 1) for rank in range(_PASSAGES)]
    known: dict[tuple[int, ...], Sequence[int]] = {(): names.stretch(256)}
    while True:
        drawn = tuple(dict.fromkeys(rng.choices(range(_PASSAGES), weights, k=_RETRIEVED)))
        for depth in range(1, len(drawn) + 1):
            if drawn[:depth] not in known:
                known[drawn[:depth]] = names.extend(known[drawn[: depth - 1]], 256 + depth * _PASSAGE)
        tokens = 256 + len(drawn) * _PASSAGE + rng.randint(16, 96)
        yield Prompt(tokens, names.extend(known[drawn], tokens), 150, drawn[0])


def _code(names: BlockNames, rng: random.Random) -> Iterator[Prompt]:
    cursors = [rng.randint(500, 6000) for _ in range(_FILES)]
    files = [names.stretch(cursor + 8192) for cursor in cursors]
    while True:
        number = rng.randrange(_FILES)
        cursors[number] += rng.randint(4, 60)
        cursor, file = cursors[number], files[number]
        if rng.random() < _EDITS or cursor // names.block_size > len(file):
            kept = file[: rng.randrange(cursor) // names.block_size]
            files[number] = file = names.extend(kept, cursor + 8192)
        yield Prompt(cursor, file[: cursor // names.block_size], 24, number)


def _summaries(names: BlockNames, rng: random.Random) -> Iterator[Prompt]:
    instruction, number = names.stretch(192), 0
    while True:
        tokens, number = 192 + rng.randint(1500, 7000), number + 1
        yield Prompt(tokens, names.extend(instruction, tokens), 200, number)


def _agents(names: BlockNames, rng: random.Random) -> Iterator[list[Prompt]]:
    tools = [(size, names.stretch(size)) for size in (rng.randint(1200, 3000) for _ in range(_AGENT_KINDS))]
    number = 0
    while True:
        tokens, known = tools[rng.randrange(_AGENT_KINDS)]
        calls, number = [], number + 1
        for _ in range(rng.randint(*_CALLS)):
            tokens += rng.randint(64, 900)  # the user's request, then the tool's results
            blocks, answered = names.extend(known, tokens), tokens + 64
            known = names.extend(blocks, answered)
            calls.append(Prompt(tokens, blocks, 64, number, known[len(blocks) :]))
            tokens = answered
        yield calls


def _chats(shape: ArticleShape, seed: int) -> Iterator[Prompt]:
    """Rounds of conversations, many of which run at the same time."""
    waiting = conversations(_chat_shape(shape), seed)
    return _interleaved(iter(waiting), random.Random(f"article-chats-{seed}"))


def _chat_shape(shape: ArticleShape) -> MultiturnShape:
    return MultiturnShape(clients=shape.requests, block_size=shape.block_size)


def _interleaved(sessions: Iterator[list[Prompt]], rng: random.Random, at_once: int = 32) -> Iterator[Prompt]:
    """Calls of several sessions in turn, each session in its own order: an open stream assumes that answers arrive in
    time."""
    under_way = [iter(next(sessions)) for _ in range(at_once)]
    while True:
        number = rng.randrange(at_once)
        prompt = next(under_way[number], None)
        if prompt is None:
            under_way[number] = iter(next(sessions))
        else:
            yield prompt


def _mix(shape: ArticleShape, names: BlockNames, rng: random.Random, seed: int) -> Iterator[Prompt]:
    streams = {kind: make(names, rng) for kind, make in _STREAMS.items()}
    streams |= {"agents": _interleaved(_agents(names, rng), rng), "chat": _chats(shape, seed)}
    for number in range(shape.requests):
        passed = number / shape.requests
        weights = [begin + (end - begin) * passed for begin, end in _SHARES.values()]
        [kind] = rng.choices(list(_SHARES), weights)
        yield next(streams[kind])


_STREAMS: dict[str, Callable[[BlockNames, random.Random], Iterator[Prompt]]] = {
    "rag": _rag,
    "code": _code,
    "summaries": _summaries,
}
