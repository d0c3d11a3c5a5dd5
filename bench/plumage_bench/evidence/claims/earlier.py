"""Benchmarks of this code beside those of commit 20b4733d (2026-11-24), in pairs: later commits must cost nothing.

A ratio above 1 says that this code is better.
"""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim, at_least
from plumage_bench.evidence.figures import Key

__all__ = ["CLAIMS"]

_COMMIT = "769df7ea^"
_LEAST = at_least(0.97)


def _claim(text: str, bench: str, key: str, command: str) -> Claim:
    return Claim(
        text, f"compare-{bench}", Key(key), _LEAST, "", f"python -m plumage_bench.compare '{_COMMIT}' {command}"
    )


_DECISION = "decision --quick --lower mean_us_4 --lower p99_us_4 --lower p99_us_1000"
_CHT = "cht --quick --lower total_s --lower ops_s"
_MRC = "mrc --quick --lower ns_per_access --lower bytes"
_DIRECTORY = (
    "directory --quick --lower lag_p99_ms --lower redis_bytes --lower router_bytes --lower cold_s --lower agent_us "
    "--lower agent_process_us"
)
_SCALE = "scale --quick --lower cpu_s"
_ROUTER = "router --quick --pairs 3 --higher rps_8k --lower cpu_us"
_EVICTION = "eviction --quick --higher hotness_over_lru --higher multiturn_hotness --higher rlt_at_200k"
_VICTIM = "victim --quick --pairs 3 --higher grown_coldest --higher steady_coldest"

CLAIMS = (
    _claim("Routing decision, 4 replicas: mean", "decision", "mean_us_4", _DECISION),
    _claim("… 99th percentile", "decision", "p99_us_4", _DECISION),
    _claim("… 1,000 replicas: 99th percentile", "decision", "p99_us_1000", _DECISION),
    _claim("Chunked Hash Tree, 5,000 requests × 5,000 tokens: time in all", "cht", "total_s", _CHT),
    _claim("… without hashing and INSERT", "cht", "ops_s", _CHT),
    _claim("Miss-ratio curve: time of an access", "mrc", "ns_per_access", _MRC),
    _claim("… memory", "mrc", "bytes", _MRC),
    _claim("Directory: event to router, 99th percentile", "directory", "lag_p99_ms", _DIRECTORY),
    _claim("… bytes an entry in the server", "directory", "redis_bytes", _DIRECTORY),
    _claim("… bytes an entry in the router", "directory", "router_bytes", _DIRECTORY),
    _claim("… cold start", "directory", "cold_s", _DIRECTORY),
    _claim("… CPU of an agent without sockets, a block event", "directory", "agent_us", _DIRECTORY),
    _claim("… CPU of an agent's process, a block event", "directory", "agent_process_us", _DIRECTORY),
    _claim("Simulated fleet of 30 replicas: CPU", "scale", "cpu_s", _SCALE),
    _claim("Router, one core, 8k prompts: requests a second", "router", "rps_8k", _ROUTER),
    _claim("… CPU of its process a request", "router", "cpu_us", _ROUTER),
    _claim("Eviction: hits by hotness ÷ by LRU", "eviction", "hotness_over_lru", _EVICTION),
    _claim("… the same, conversations", "eviction", "multiturn_hotness", _EVICTION),
    _claim("… hit ratio of RLT, worst order", "eviction", "rlt_at_200k", _EVICTION),
    _claim(
        "Deletion of the coldest replica: hit ratio after it, with a grown pool", "victim", "grown_coldest", _VICTIM
    ),
    _claim("… with a steady pool", "victim", "steady_coldest", _VICTIM),
)
