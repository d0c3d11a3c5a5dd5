"""The demo's load, from a seed: conversations of several turns, and few-shot questions with shared instructions.

The sizes suit examples/local.yaml: all prefixes fit into the caches of four engines together, but not into one cache.
Routing then decides how much is computed twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["LoadShape", "Session", "make_load"]

_WORDS = """
    amber anchor answer apple arrow autumn basket beacon bridge candle canyon carbon castle cedar circle cloud
    copper corner cotton crystal dawn delta desert distance ember engine evening fabric falcon feather field flame
    forest galaxy garden glacier gravel harbor harvest hollow island ivory jasmine journey kernel ladder lantern
    lemon level lilac linen magnet maple marble meadow meteor mirror morning mountain nectar north ocean olive orbit
    orchard paper pebble pepper pine planet plaza prairie quartz quiet quill rain raven ribbon ripple river saddle
    salt sand shadow signal silver sketch spring stone storm stream summit sunset table tempo thread thunder timber
    topaz tower trail tunnel valley velvet violet walnut water willow window winter wonder yellow zephyr
""".split()  # noqa: SIM905 - a list of a hundred strings reads worse


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The size of the load. A word is about two tokens of the built-in tokenizer."""

    seconds: float = 24.0
    suites: int = 16
    questions: int = 16  # of each suite
    suite_words: int = 800
    question_words: int = 20
    conversations: int = 24
    turns: int = 5
    turn_words: int = 120
    pause_seconds: float = 1.5  # between a response and the next turn
    answer_tokens: int = 12


@dataclass(frozen=True, slots=True)
class Session:
    """One user. at: seconds after the start. system: the shared prompt. turns: the user's messages, each sent `pauses`
    seconds after the response before it."""

    at: float
    kind: str
    system: str
    turns: tuple[str, ...]
    pauses: tuple[float, ...]
    answer_tokens: int


def make_load(seed: int, shape: LoadShape) -> list[Session]:
    """The sessions, ordered by start. Equal seeds make equal loads."""
    rng = random.Random(seed)
    sessions = [*_few_shot(rng, shape), *_conversations(rng, shape)]
    return sorted(sessions, key=lambda session: session.at)


def _few_shot(rng: random.Random, shape: LoadShape) -> list[Session]:
    systems = [_text(rng, shape.suite_words) for _ in range(shape.suites)]
    systems_asked = [system for system in systems for _ in range(shape.questions)]
    rng.shuffle(systems_asked)
    return [
        Session(
            at=rng.uniform(0.0, shape.seconds),
            kind="few-shot",
            system=system,
            turns=(_text(rng, shape.question_words),),
            pauses=(0.0,),
            answer_tokens=shape.answer_tokens,
        )
        for system in systems_asked
    ]


def _conversations(rng: random.Random, shape: LoadShape) -> list[Session]:
    length = shape.turns * shape.pause_seconds  # so that most conversations end within `seconds`
    return [
        Session(
            at=rng.uniform(0.0, max(0.0, shape.seconds - length)),
            kind="multi-turn",
            system="You are a helpful assistant. " + _text(rng, 20),
            turns=tuple(_text(rng, shape.turn_words) for _ in range(shape.turns)),
            pauses=tuple(rng.uniform(0.5, 1.5) * shape.pause_seconds for _ in range(shape.turns)),
            answer_tokens=shape.answer_tokens,
        )
        for _ in range(shape.conversations)
    ]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words)).capitalize() + "."
