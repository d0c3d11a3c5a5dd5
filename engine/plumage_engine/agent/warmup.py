"""A new replica computes the pool's hottest prefixes before it is Ready.

Contract: `warm` asks one peer agent after another for token ids until one has some, and sends them to the own engine as
completions of one token. Bounded in tokens and time; whatever goes wrong, it returns, and the replica becomes Ready
with what it has: a cold cache is slow, a replica that never comes is worse. Token ids are prompts: they travel over the
authenticated port of agents only, and are kept nowhere. Salted prefixes never come: peers do not keep them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx
import msgspec
from pydantic import SecretStr

from plumage_engine.agent.config import WarmupConfig
from plumage_engine.agent.engine import EngineClient, EngineDownError, bearer, read_bounded
from plumage_engine.agent.members import agents_in, agents_of
from plumage_engine.agent.wire import TokenId

__all__ = ["Hottest", "Prefix", "Warmth", "find_peers", "warm"]

log = logging.getLogger(__name__)

PATIENCE = httpx.Timeout(5.0, connect=1.0)
COLD = "no peer had anything"
BYTES_PER_ID = 11  # ten digits and a comma


class Prefix(msgspec.Struct, frozen=True):
    """A prefix that is used again. adapter: the LoRA it belongs to, empty for the base model."""

    tokens: list[TokenId]
    adapter: str = ""
    uses: int = 0


class Hottest(msgspec.Struct, frozen=True):
    """A peer's answer, hottest first."""

    prefixes: list[Prefix]


@dataclass(frozen=True, slots=True)
class Warmth:
    """What warming did. reason: why it ended, for people."""

    prefixes: int = 0
    tokens: int = 0
    failed: int = 0
    reason: str = COLD


def find_peers(config: WarmupConfig, replica: str) -> list[str]:
    """URLs of the other agents: those configured, those in the membership file that are not this replica, those behind
    the Service. Blocks while a name is resolved."""
    peers = list(config.peers)
    if config.peers_file is not None:
        peers += agents_in(config.peers_file, replica)
    if config.peers_service is not None:
        peers += agents_of(config.peers_service, config.peers_port)
    return peers


async def warm(
    engine: EngineClient,
    model: str,
    peers: Sequence[str],
    config: WarmupConfig,
    token: SecretStr | None,
    rng: random.Random,
) -> Warmth:
    """Fill the engine's cache from the first peer that has something."""
    if not config.enabled or not peers or not config.max_tokens:
        return Warmth(reason="nothing to warm from")
    tally: list[tuple[int, bool]] = []
    try:
        async with asyncio.timeout(config.timeout_seconds):
            prefixes = await _ask(rng.sample(peers, len(peers)), config.max_tokens, token)
            await _compute(engine, model, prefixes, config, tally)
    except TimeoutError:
        return _summed(tally, f"stopped after {config.timeout_seconds:g} s")
    return _summed(tally, "done" if tally else COLD)


def _summed(tally: Iterable[tuple[int, bool]], reason: str) -> Warmth:
    done = [(tokens, ok) for tokens, ok in tally]
    good = [tokens for tokens, ok in done if ok]
    return Warmth(len(good), sum(good), len(done) - len(good), reason)


async def _ask(peers: Sequence[str], tokens: int, token: SecretStr | None) -> list[Prefix]:
    async with httpx.AsyncClient(trust_env=False) as http:  # peers are never behind the environment's proxy
        for peer in peers:
            url = f"{peer.rstrip('/')}/v1/plumage/hottest?tokens={tokens}"
            try:
                data = await read_bounded(http, url, bearer(token), tokens * BYTES_PER_ID + (1 << 20), PATIENCE)
                found = msgspec.json.decode(data, type=Hottest).prefixes
            except (httpx.HTTPError, httpx.InvalidURL, ValueError, msgspec.DecodeError) as error:
                log.info("peer %s did not tell its hottest prefixes: %s", peer, type(error).__name__)
                continue
            if found:
                return found
    return []


async def _compute(
    engine: EngineClient, model: str, prefixes: Sequence[Prefix], config: WarmupConfig, tally: list[tuple[int, bool]]
) -> None:
    """Hottest first, a few at a time; `tally` grows as they are done."""
    gate = asyncio.Semaphore(config.concurrency)

    async def compute(prefix: Prefix) -> None:
        async with gate:
            try:
                ok = await engine.complete(prefix.adapter or model, prefix.tokens, config.timeout_seconds)
            except EngineDownError:
                ok = False
            tally.append((len(prefix.tokens), ok))

    async with asyncio.TaskGroup() as group:
        for prefix in _within(prefixes, config.max_tokens):
            group.create_task(compute(prefix))


def _within(prefixes: Iterable[Prefix], budget: int) -> Iterable[Prefix]:
    """Until the budget is used up; a peer may answer with more than it was asked for."""
    for prefix in prefixes:
        budget -= len(prefix.tokens)
        if budget < 0:
            return
        if prefix.tokens:
            yield prefix
