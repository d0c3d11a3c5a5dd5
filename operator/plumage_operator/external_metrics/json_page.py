"""A pool's metrics as a flat JSON document, for KEDA's scaler `metrics-api` and for people:
`GET /v1/plumage/pools/NAMESPACE/POOL`.

It contains only numbers, as the operator's metrics do: no prompt, and no name but the pool's. A missing or stale value
is absent. KEDA then keeps the present size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import web

from plumage_operator.external_metrics.pool_metrics import (
    METRICS,
    OnRequest,
    PoolSample,
    current_values,
    ignore_request,
)

__all__ = ["PATH", "add_pool_page"]

PATH: Final = "/v1/plumage/pools/{namespace}/{pool}"


def add_pool_page(
    app: web.Application,
    samples: Callable[[], Iterable[PoolSample]],
    *,
    requested: OnRequest = ignore_request,
    clock: Callable[[], float] = time.time,
) -> None:
    """Adds the route to the application with the operator's metrics."""

    async def answer(request: web.Request) -> web.Response:
        wanted = (request.match_info["namespace"], request.match_info["pool"])
        sample = next((one for one in samples() if (one.namespace, one.pool) == wanted), None)
        if sample is None:
            return web.json_response({"error": "there is no such pool, or it was not polled yet"}, status=404)
        requested(wanted)
        found = {METRICS[name].key: round(value, 4) for name, value in current_values(sample, clock()).items()}
        return web.json_response({"pool": sample.pool, "wantedReplicas": sample.load.wanted, **found})

    app.router.add_get(PATH, answer)
