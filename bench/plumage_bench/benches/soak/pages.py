"""The metrics pages of a pool's processes: what must be empty when nothing is in flight, and what may fill up."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

__all__ = ["IN_FLIGHT", "REQUESTS", "STORES", "TASKS", "gauges", "read_page", "sum_of"]

REQUESTS: Final = "plumage_router_requests_total"
TASKS: Final = ("plumage_router_tasks", "plumage_agent_tasks")
IN_FLIGHT: Final = (
    "plumage_router_in_flight", "plumage_router_connections", "plumage_router_waiting_requests",
    "plumage_router_queue_requests", "plumage_router_buffered_bytes", "plumage_router_replica_in_flight",
    *(f'plumage_router_entries{{store="{store}"}}' for store in ("pendingOwners", "bodies", "slicedWork", "upstream")),
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
)  # fmt: skip
"""Samples, or names of families of which all samples count."""
STORES: Final = (
    *(f'plumage_router_entries{{store="{store}"}}'
      for store in ("audit", "prefixBreaks", "hotPrefixes", "quarantine", "usage", "quotas")),
    "plumage_router_mirror_chunks", "plumage_agent_blocks", "plumage_agent_chunks",
)  # fmt: skip
_SECONDS: Final = 5.0


def read_page(url: str, headers: Mapping[str, str]) -> str:
    """`/metrics` of a process, over a connection of its own; "" while it does not answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics", headers={**headers, "connection": "close"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def gauges(page: str) -> dict[str, float]:
    """The samples that `sum_of` needs, by name with labels as on the page."""
    wanted = {name.partition("{")[0] for name in (REQUESTS, *TASKS, *IN_FLIGHT, *STORES)}
    found: dict[str, float] = {}
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#") and name.partition("{")[0] in wanted:
            found[name] = float(value)
    return found


def sum_of(found: Mapping[str, float], name: str) -> float | None:
    """A sample, or all samples of a family; None where there are none."""
    values = [value for sample, value in found.items() if sample == name or sample.startswith(f"{name}{{")]
    return sum(values) if values else None
