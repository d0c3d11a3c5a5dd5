"""A load from inside the cluster, and the results of its requests: rows of load_client.py, by time."""

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
    """One finished request. Times are seconds since 1970 by the client's clock. `outcome`: ended | cut | lost. `group`:
    of the requests that share a prefix."""

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
    """The load client's report so far. `open`: the send times of unfinished requests."""

    rows: Sequence[Row]
    open: Sequence[float]

    def between(self, start: float, end: float) -> list[Row]:
        """The requests that finished in this time."""
        return [row for row in self.rows if start <= row.over < end]

    def sent(self, start: float, end: float) -> list[Row]:
        """The finished requests that were sent in this time."""
        return [row for row in self.rows if start <= row.sent < end]

    def known_until(self, now: float) -> float:
        """The result of every request that was sent before this time is known."""
        return min([now, *self.open])


@dataclass(frozen=True)
class Load:
    """A pod that sends requests to a pool's Service for as long as it exists."""

    access: Access
    namespace: str

    @classmethod
    def start(cls, access: Access, pool: Pool, **settings: Any) -> Load:
        config = {"host": pool.host, "seconds": _LONGEST_S, "seed": 0, **settings}
        pod = client_pod(_POD, access.image, _CLIENT.read_text(), (json.dumps(config),))
        until(lambda: not access.api.get("pods", _POD, pool.namespace), "the load before is gone")
        access.api.create("pods", pool.namespace, pod)
        load = cls(access, pool.namespace)
        until(lambda: len(load.run().rows) > 0, "the load's first request is over")
        return load

    def hit_ratio(self) -> float | None:
        """The ratio of the window that ends now."""
        now = time.time()
        return hit_ratio(self.run(2 * WINDOW_S).between(now - WINDOW_S, now))

    def run(self, last_s: float | None = None) -> Run:
        """The report until now. `last_s`: only the lines of this many seconds."""
        logs = self.access.api.log(_POD, self.namespace, last_s)
        sent: dict[str, float] = {}
        rows = []
        for line in logs.splitlines():
            with suppress(json.JSONDecodeError):  # the last line may be incomplete
                row = json.loads(line)
                sent[row["id"]] = row["sent"]
                if "over" in row:
                    rows.append(Row(**row))
        over = {row.id for row in rows}
        return Run(sorted(rows, key=lambda row: row.over), [at for id, at in sent.items() if id not in over])

    def settled(self, until_time: float) -> Run:
        """Waits until every request that was sent by then is finished."""
        until(lambda: not any(at < until_time for at in self.run().open), "all requests are over", within_s=180)
        return self.run()

    def stop(self) -> None:
        self.access.api.delete("pods", _POD, self.namespace)


def hit_ratio(rows: Iterable[Row]) -> float | None:
    """Cached ÷ prompt tokens of complete answers; None where there are none."""
    ended = [row for row in rows if row.outcome == "ended" and row.prompt]
    return sum(row.cached for row in ended) / sum(row.prompt for row in ended) if ended else None
