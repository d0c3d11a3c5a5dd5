"""Totals since an engine started, as vLLM's counters have them."""

from __future__ import annotations

from dataclasses import dataclass

from plumage_engine.simulator.engine.request import StepReport

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """query_tokens and hit_tokens: prompt tokens looked up and found on the device, at each first admission;
    host_query_tokens and host_hit_tokens: the same for the host tier's look-ups. prefill_tokens includes the
    tokens that preempted requests compute again. busy_seconds: sum of the steps."""

    query_tokens: int = 0
    hit_tokens: int = 0
    host_query_tokens: int = 0
    host_hit_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    finished: int = 0
    aborted: int = 0
    preempted: int = 0

    def prompt(self, tokens: int, hits: int, host_hits: int = 0, *, host: bool = False) -> None:
        """A request was admitted for the first time. host: a host tier was asked for the missing tokens."""
        self.query_tokens += tokens
        self.hit_tokens += hits
        if host:
            self.host_query_tokens += tokens - hits
            self.host_hit_tokens += host_hits

    def count(self, report: StepReport, prefilled: int) -> None:
        """A step has passed; `prefilled` requests got a token at the end of their prompt."""
        self.steps += 1
        self.busy_seconds += report.seconds
        self.prefill_tokens += report.prefill_tokens
        self.generated_tokens += report.decode_tokens + prefilled
