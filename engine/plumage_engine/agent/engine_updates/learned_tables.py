"""Shares what stop policies have learned between engines, through the directory: tables, or a fit of the step time.

The agent reads the table of its engine's stop policy and stores it beside those of engines with the same fingerprint.
It offers the merged table to an engine that it sees for the first time, unless that engine has learned enough.
Corrupt tables are refused and counted. An engine without the route, or without a learning policy, shares nothing.
No request waits for this.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from plumage.backoff import Backoff
from plumage.batching.stop.shared import LearnedTable, checked, experience, merged, pack, unpack
from plumage.batching.stop.table import Row
from plumage.directory.client.connection import close, connect
from plumage.directory.client.tasks import run_forever
from plumage.directory.schema import TABLES_TTL, PoolKeys
from plumage.directory.sharing.shared_hash import SharedHash
from plumage.errors import ConfigurationError
from plumage_engine.agent.engine.client import EngineClient, EngineDownError

__all__ = ["LearnedTablesSync"]

PERIOD = 5.0
ENOUGH = 200.0  # choices, or steps; an engine that has made so many needs no shared table


class LearnedTablesSync:
    """`counts`: outcomes of reading, `applied` and `refused` tables."""

    def __init__(
        self,
        url: str,
        pool: str,
        replica: str,
        engine: EngineClient,
        period: float = PERIOD,
        rng: random.Random | None = None,
    ) -> None:
        self._client = connect(url)
        self._keys = PoolKeys(pool)
        self._replica = replica
        self._engine = engine
        self._period = period
        self._rng = rng or random.Random()
        self._offers: SharedHash | None = None
        self._life: tuple[str, str] | None = None  # fingerprint and start of the known engine
        self._met = False
        self._own: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        return self._own + self._offers.counts if self._offers is not None else Counter(self._own)

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._rng, longest=self._period)
        await run_forever(self._turn, f"learned tables of {self._replica}", backoff=backoff, failed=self._failed)

    async def _turn(self) -> None:
        try:
            await self.exchange()
        except EngineDownError:
            pass  # the load watch reports it
        except ConfigurationError:  # the engine's own table is corrupt
            self._own["malformed"] += 1
        await asyncio.sleep(self._period)

    def _failed(self, error: Exception) -> None:
        self._own["failures"] += 1

    async def close(self) -> None:
        await close(self._client)

    async def exchange(self) -> None:
        """Exchanges the tables once."""
        table = await self._engine.tables()
        if table is None:
            return
        rows = checked(table.rows)
        offers = self._meet(table)
        offers.mine = pack(rows) if rows else None
        await offers.exchange()
        if not self._met:
            self._met = True  # later, tables of others contain what this engine itself has learned
            await self._offer_merged(table, offers)

    def _meet(self, table: LearnedTable) -> SharedHash:
        """The entry of this start of the engine. Each start has its own, so the table from before a restart counts as
        another engine's."""
        life = (table.fingerprint, table.life)
        if self._offers is None or life != self._life:
            self._life, self._met = life, False
            self._own.update(self._offers.counts if self._offers is not None else ())
            name = f"{self._replica}.{table.life[:32]}"
            self._offers = SharedHash(self._client, self._keys.tables(table.fingerprint), name, lifetime=TABLES_TTL)
        return self._offers

    async def _offer_merged(self, table: LearnedTable, offers: SharedHash) -> None:
        start = merged(self._readable(offers))
        if start and experience(table.rows) < ENOUGH:
            accepted = await self._engine.offer_table(LearnedTable(table.fingerprint, table.policy, start, table.life))
            self._own["applied" if accepted else "refused"] += 1

    def _readable(self, offers: SharedHash) -> list[list[Row]]:
        found = []
        for _, value in offers.others.values():
            try:
                found.append(unpack(value))
            except ConfigurationError:
                self._own["malformed"] += 1
        return found
