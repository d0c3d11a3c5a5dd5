"""Loads the snapshots of replicas into the mirror, a few at once."""

from __future__ import annotations

import asyncio
from collections import Counter

from plumage.directory.client.connection import Client
from plumage.directory.mirror.log_reader import OutOfStep
from plumage.directory.mirror.read_failures import ReadFailures
from plumage.directory.mirror.replica_view import ReplicaView
from plumage.directory.mirror.server_state import ServerState
from plumage.directory.mirror.snapshot_reader import read_snapshot
from plumage.directory.schema import NewerSchemaError, SchemaError

__all__ = ["SnapshotLoader"]

LOADS_AT_ONCE = 4


class SnapshotLoader:
    """counts: gets snapshots by reason (`snapshot_gap`, …)."""

    def __init__(self, client: Client, server: ServerState, failures: ReadFailures, counts: Counter[str]) -> None:
        self._client = client
        self._server = server
        self._failures = failures
        self._counts = counts
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)

    async def load(self, known: ReplicaView, epoch: str) -> None:
        """Load the snapshot of an epoch. After a failure it is wanted again."""
        failures = self._failures
        try:
            async with self._slots:
                self._counts[f"snapshot_{known.wanted}"] += 1
                await read_snapshot(self._client, known.keys, epoch, known.reader)
            known.loaded()
        except OutOfStep as error:
            failures.postpone(known, error.reason)
        except NewerSchemaError:
            failures.newer(known)
            known.unreadable = epoch
        except SchemaError as error:
            failures.malformed(known, error)
            failures.postpone(known, "malformed")
        except Exception as error:
            failures.log_once(error)
            self._server.failed(error)
            failures.postpone(known, "failed")
        finally:
            known.load = None
