"""Parses an engine's load from its /metrics page, and detects stalls and restarts.

`parse_load(text)` reads vLLM's metric names (vllm.md §6; the simulator uses the same) and ignores the others. Series of
several data-parallel ranks or models add up. `StallWatch` detects an engine that has running requests and makes no
step. `RestartWatch` detects a restart, after which the cache is empty. Pure: the clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineLoad", "RestartWatch", "StallWatch", "parse_load"]

_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:prefix_cache_queries_total": "query_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
    "process_start_time_seconds": "started",
}
_STEPS = frozenset(
    {
        "vllm:iteration_tokens_total_count",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
    }
)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """steps: a number that changes with every step that computed something; its size means nothing.
    started: when its process began, in seconds since 1970; 0 where the page has none (several API servers)."""

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    query_tokens: float = 0.0
    hit_tokens: float = 0.0
    steps: float = 0.0
    started: float = 0.0


def parse_load(text: str) -> EngineLoad:
    """Lines that are no samples, or not numbers, are skipped: what matters here is optional to an engine."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(("vllm:", "process_start_time_seconds")):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        key = _GAUGES.get(name) or ("steps" if name in _STEPS else None)
        if key is not None:
            found[key] = found.get(key, 0.0) + _value(line)
    return EngineLoad(**found)


def _value(line: str) -> float:
    """`name{label="…"} value [timestamp]`; a label's value may hold blanks, so look behind the last brace."""
    try:
        return float(line.rpartition("}")[2].split()[-1 if "}" not in line else 0])
    except (ValueError, IndexError):
        return 0.0


class StallWatch:
    """`seconds` without progress while requests run make an engine stalled."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: tuple[float, int] | None = None
        self._since = 0.0

    def look(self, load: EngineLoad, events: int, now: float) -> bool:
        """Whether the engine is stalled. `events`: batches of KV events so far, progress as well."""
        progress = (load.steps, events)
        if load.running <= 0 or progress != self._seen:
            self._seen = progress
            self._since = now
            return False
        return now - self._since >= self._seconds


class RestartWatch:
    """Detects the first page of an engine, and the first page after each restart."""

    def __init__(self) -> None:
        self._last: EngineLoad | None = None
        self.doubtful = False  # whether the last look was unlike the life of `_last`: the next one decides

    def look(self, load: EngineLoad) -> bool:
        """Whether the engine has started since the last call. Without a start time on the page, counters that fell
        in two calls in a row show a restart: one page may lack some of its lines."""
        last, doubted = self._last, self.doubtful
        self.doubtful = False
        if last is None:
            self._last = load
            return True
        if last.started and load.started:
            self._last = load
            return load.started != last.started
        fell = load.steps < last.steps
        self.doubtful = fell and not doubted
        if not self.doubtful:
            self._last = load
        return fell and doubted
