"""A new replica computes the pool's hottest prefixes before it is ready.

`warm` asks several peers for token ids and sends the hottest to its own engine, as completions of one token. It asks
several because prefix routing gives each peer a part of the prefixes. Tokens, peers and time are bounded. `warm`
returns after any failure: a replica with a cold cache is slow, but a replica that never starts is worse.
Token ids are prompt text. They travel only over the authenticated port of agents, and are not stored. Peers keep no
ids of salted prompts, so these never arrive.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import httpx
import msgspec
from pydantic import SecretStr

from plumage.errors import ConfigurationError
from plumage.settings.agent_config import AgentConfig, WarmupConfig
from plumage_engine.agent.engine.client import EngineClient, EngineDownError, bearer, read_bounded
from plumage_engine.agent.index.block import Block
from plumage_engine.agent.index.local_hotness import LocalHotness
from plumage_engine.agent.pool_members import agents_in, agents_of
from plumage_engine.configuration import read_secret
from plumage_engine.kv_events import TokenId

__all__ = ["Hottest", "Prefix", "WarmupResult", "WarmupTask", "find_peers", "hottest_of", "hottest_prefixes", "warm"]

log = logging.getLogger(__name__)

PEER_TIMEOUT = httpx.Timeout(5.0, connect=1.0)
COLD = "no peer had anything"
BYTES_PER_ID = 11  # ten digits and a comma
ASKED = 16  # peers at most: of a larger fleet a random sample
AT_ONCE = 4  # each may answer with as many ids as are wanted in all
CHUNK = 16  # token ids; the unit in which shared parts are counted


class Prefix(msgspec.Struct, frozen=True):
    """A prefix that is used again. adapter: the LoRA it belongs to, empty for the base model."""

    tokens: list[TokenId]
    adapter: str = ""
    uses: int = 0


class Hottest(msgspec.Struct, frozen=True):
    """A peer's answer, hottest first."""

    prefixes: list[Prefix]


@dataclass(frozen=True, slots=True)
class WarmupResult:
    """Result of a warm-up. reason: why it ended, for people."""

    prefixes: int = 0
    tokens: int = 0
    failed: int = 0
    reason: str = COLD


def find_peers(config: WarmupConfig, replica: str) -> list[str]:
    """URLs of the other agents, from the configuration, the membership file and the Service. Blocks while a name is
    resolved."""
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
) -> WarmupResult:
    """Have the engine compute the peers' hottest prefixes."""
    if not config.enabled or not peers or not config.max_tokens:
        return WarmupResult(reason="nothing to warm from")
    tally: list[tuple[int, bool]] = []
    try:
        async with asyncio.timeout(config.timeout_seconds):
            asked = rng.sample(peers, min(ASKED, len(peers)))
            prefixes = await _ask(asked, config.max_tokens, token, config.timeout_seconds / 2)
            await _compute(engine, model, prefixes, config, tally)
    except TimeoutError:
        return _summed(tally, f"stopped after {config.timeout_seconds:g} s")
    return _summed(tally, "done" if tally else COLD)


def hottest_prefixes(kept: LocalHotness, uses: Mapping[Block, int], tokens: int) -> Hottest:
    """This agent's answer to a peer: the prefixes in `uses` whose token ids are kept, `tokens` of them at most."""
    found = kept.prefixes(sorted(uses, key=uses.__getitem__, reverse=True), tokens)
    return Hottest([Prefix(ids, block.origin.adapter, uses[block]) for block, ids in found])


def _summed(tally: Iterable[tuple[int, bool]], reason: str) -> WarmupResult:
    done = [(tokens, ok) for tokens, ok in tally]
    good = [tokens for tokens, ok in done if ok]
    return WarmupResult(len(good), sum(good), len(done) - len(good), reason)


async def _ask(peers: Sequence[str], tokens: int, token: SecretStr | None, seconds: float) -> list[Prefix]:
    """The hottest prefixes of the peers that answer within `seconds`, of `tokens` tokens at most."""
    found: list[Prefix] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(http: httpx.AsyncClient, peer: str) -> None:
        async with gate:
            prefixes = await _ask_peer(http, f"{peer.rstrip('/')}/v1/plumage/hottest?tokens={tokens}", tokens, token)
            found[:] = hottest_of([*found, *prefixes], tokens)

    with suppress(TimeoutError):
        # Peers are never behind the environment's proxy.
        async with asyncio.timeout(seconds), httpx.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as group:
            for peer in peers:
                group.create_task(ask(http, peer))
    return found


async def _ask_peer(http: httpx.AsyncClient, url: str, tokens: int, token: SecretStr | None) -> list[Prefix]:
    """Asks one peer for its prefixes; none where it does not answer."""
    try:
        data = await read_bounded(http, url, bearer(token), tokens * BYTES_PER_ID + (1 << 20), PEER_TIMEOUT)
        return msgspec.json.decode(data, type=Hottest).prefixes
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, msgspec.DecodeError) as error:
        log.info("%s gave no prefixes: %s", url, type(error).__name__)
        return []


def hottest_of(prefixes: Iterable[Prefix], budget: int) -> list[Prefix]:
    """Hottest first, of `budget` tokens at most. A shared part counts once, because the engine computes it once. A
    prefix that others contain is left out."""
    chosen: list[Prefix] = []
    covered: set[int] = set()
    for prefix in sorted(prefixes, key=lambda one: one.uses, reverse=True):
        new = [chunk for chunk in _chunks(prefix) if chunk not in covered]
        if new and len(new) * CHUNK <= budget:
            budget -= len(new) * CHUNK
            covered.update(new)
            chosen.append(prefix)
    return chosen


def _chunks(prefix: Prefix) -> Iterator[int]:
    """A hash for each chunk with all chunks before it. Tokens after the last whole chunk fill no block."""
    at = hash(prefix.adapter)
    for start in range(0, len(prefix.tokens) - CHUNK + 1, CHUNK):
        at = hash((at, *prefix.tokens[start : start + CHUNK]))
        yield at


async def _compute(
    engine: EngineClient, model: str, prefixes: Sequence[Prefix], config: WarmupConfig, tally: list[tuple[int, bool]]
) -> None:
    """Hottest first, a few at a time. Each result is appended to `tally`."""
    gate = asyncio.Semaphore(config.concurrency)

    async def compute(prefix: Prefix) -> None:
        async with gate:
            try:
                ok = await engine.complete(prefix.adapter or model, prefix.tokens, config.timeout_seconds)
            except EngineDownError:
                ok = False
            tally.append((len(prefix.tokens), ok))

    async with asyncio.TaskGroup() as group:
        for prefix in prefixes:
            group.create_task(compute(prefix))


class EngineState(Protocol):
    """The part of the state watch that is needed here. cold: set when the engine has started and needs a warm-up."""

    cold: asyncio.Event

    def finish_warmup(self, result: WarmupResult) -> None: ...


class WarmupTask:
    """Warms up the engine after each of its starts. token: the agent's own, which opens the routes of its peers outside
    of a cluster."""

    def __init__(
        self, config: AgentConfig, engine: EngineClient, watch: EngineState, token: SecretStr | None, rng: random.Random
    ) -> None:
        self._config = config
        self._engine = engine
        self._watch = watch
        self._token = token
        self._rng = rng

    async def run(self) -> None:
        """Until cancelled."""
        cold = self._watch.cold
        while True:
            await cold.wait()
            cold.clear()
            result = await self._warm()
            if not cold.is_set():  # else the engine has restarted meanwhile
                log.info("%s warmed: %s", self._config.replica, result)
                self._watch.finish_warmup(result)

    async def _warm(self) -> WarmupResult:
        config = self._config.warmup
        peers = await asyncio.to_thread(find_peers, config, self._config.replica) if config.enabled else []
        model = self._config.served_model or self._config.model
        return await warm(self._engine, model, peers, config, self._peer_token(), self._rng)

    def _peer_token(self) -> SecretStr | None:
        """The token for peers' routes. In a cluster it is the pod's own identity, a file that the kubelet renews, so
        it is read for each warm-up."""
        path = self._config.peer_token_file
        try:
            return self._token if path is None else read_secret(path)
        except ConfigurationError as error:
            log.warning("no peer will answer: %s", error)
            return None
