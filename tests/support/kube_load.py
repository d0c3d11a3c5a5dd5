"""A load from inside the cluster, and what its requests came to: rows of load_client.py, by time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kube_access import Access, client_pod, until
from support.kube_install import Pool

__all__ = ["Load", "Row", "Run", "hit_ratio"]

WINDOW_S = 10.0
_CLIENT = Path(__file__).with_name("load_client.py")
_POD = "load"
_LONGEST_S = 3600


@dataclass(frozen=True)
class Row:
    """One request that is over; times are seconds since 1970 by the client's clock. `outcome`: ended | cut | lost.
    `group`: of those that share a prefix."""

    id: str
    sent: float
    over: float
    outcome: str
    replica: str = ""
    policy: str = ""
    prompt: int = 0
    cached: int = 0
    why: str = ""
    first: float | None = None
    group: int | None = None


@dataclass(frozen=True)
class Run:
    """What a load's client has told so far. `open`: when requests were sent that are not over."""

    rows: Sequence[Row]
    open: Sequence[float]

    def between(self, start: float, end: float) -> list[Row]:
        """Those that were over then."""
        return [row for row in self.rows if start <= row.over < end]

    def sent(self, start: float, end: float) -> list[Row]:
        """Those that were sent then, and are over."""
        return [row for row in self.rows if start <= row.sent < end]

    def known_until(self, now: float) -> float:
        """Of all that was sent before, it is known what came of it."""
        return min([now, *self.open])


@dataclass(frozen=True)
class Load:
    """A pod that asks a pool's router by its Service's name for as long as it is there."""

    access: Access
    namespace: str

    @classmethod
    def start(cls, access: Access, pool: Pool, **settings: Any) -> Load:
        told = {"host": pool.host, "seconds": _LONGEST_S, "seed": 0, **settings}
        pod = client_pod(_POD, access.image, _CLIENT.read_text(), (json.dumps(told),))
        until(lambda: not access.get("pod", _POD, pool.namespace), "the load before is gone")
        access.kubectl("-n", pool.namespace, "apply", "-f", "-", stdin=json.dumps(pod))
        load = cls(access, pool.namespace)
        until(lambda: len(load.run().rows) > 0, "the load's first request is over")
        return load

    def hit_ratio(self) -> float | None:
        """Of the window that ends now."""
        now = time.time()
        return hit_ratio(self.run(f"--since={2 * WINDOW_S:.0f}s").between(now - WINDOW_S, now))

    def run(self, *since: str) -> Run:
        """As of now; `since`: words of `kubectl logs` that leave older lines out."""
        told = self.access.kubectl("-n", self.namespace, "logs", _POD, *since, check=False)
        sent: dict[str, float] = {}
        rows = []
        for line in told.splitlines():
            with suppress(json.JSONDecodeError):  # the last one may be half there
                row = json.loads(line)
                sent[row["id"]] = row["sent"]
                if "over" in row:
                    rows.append(Row(**row))
        over = {row.id for row in rows}
        return Run(sorted(rows, key=lambda row: row.over), [at for id, at in sent.items() if id not in over])

    def settled(self, until_time: float) -> Run:
        """Once all that was sent by then is over."""
        until(lambda: not any(at < until_time for at in self.run().open), "all requests are over", within_s=180)
        return self.run()

    def stop(self) -> None:
        self.access.kubectl("-n", self.namespace, "delete", "pod", _POD, "--wait=false", "--ignore-not-found")


def hit_ratio(rows: Iterable[Row]) -> float | None:
    """Cached ÷ prompt tokens of answers that were whole; None where there are none."""
    ended = [row for row in rows if row.outcome == "ended" and row.prompt]
    return sum(row.cached for row in ended) / sum(row.prompt for row in ended) if ended else None
