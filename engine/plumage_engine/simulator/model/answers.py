"""Composes the answers of a simulated model: random words, the same ones for the same prompt and seed.

The words are real token ids, so they decode to text. As part of the next prompt they tokenize to themselves, as answers
of a real model mostly do. The length at which a model would stop by itself is drawn from an exponential distribution.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from plumage_engine.simulator.model.text import Text

__all__ = ["Answer", "Limits", "compose"]


@dataclass(frozen=True, slots=True)
class Limits:
    """A client's limits of an answer. max_tokens: already within the context."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """token_ids and, for each, the text to send with it: shorter where a stop string cuts in, and the last ones empty.
    finish_reason: "stop" or "length". stop_reason: the stop string that was met."""

    token_ids: list[int]
    texts: list[str]
    finish_reason: str
    stop_reason: str | None = None


def compose(text: Text, prompt_hash: int, mean_tokens: int, limits: Limits) -> Answer:
    """The answer to the prompt that `prompt_hash` stands for."""
    rng = random.Random(f"{prompt_hash}/{limits.seed}")
    natural = max(1, limits.min_tokens, round(-log(1.0 - rng.random()) * mean_tokens))
    tokens = limits.max_tokens if limits.ignore_eos else min(natural, limits.max_tokens)
    ids = rng.choices(text.words, k=tokens)
    reason = "stop" if tokens == natural and not limits.ignore_eos else "length"
    return _cut(Answer(ids, text.pieces(ids), reason), limits)


def _cut(answer: Answer, limits: Limits) -> Answer:
    """End the answer at the first stop string, which is not sent; within the first `min_tokens` none counts."""
    whole = "".join(answer.texts)
    protected = sum(map(len, answer.texts[: limits.min_tokens]))
    found = [(whole.find(stop, protected), stop) for stop in limits.stop]
    start, stop = min(((at, stop) for at, stop in found if at >= 0), default=(-1, ""))
    if start < 0:
        return answer
    texts, sent, length = [], 0, 0
    for piece in answer.texts:
        texts.append(piece[: max(0, start - sent)])
        sent += len(piece)
        length += 1
        if sent >= start + len(stop):
            break
    return Answer(answer.token_ids[:length], texts, "stop", stop)
