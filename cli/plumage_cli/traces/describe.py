"""Describes a trace: size, rate, lengths, and the best hit ratio that a cache can reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from plumage_cli.traces.record import BLOCK, Request

__all__ = ["Description", "describe"]


@dataclass(slots=True)
class Description:
    """Figures of a trace. repeated_blocks: accesses to a block of an earlier request, which hit in an unlimited cache.
    shared_tokens: prompt tokens in leading blocks of that kind."""

    requests: int = 0
    first: int = 0
    last: int = 0
    blocks: int = 0
    repeated_blocks: int = 0
    shared_tokens: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    distinct_blocks: int = 0

    @property
    def seconds(self) -> float:
        return (self.last - self.first) / 1000

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for a table."""
        tokens = sum(self.inputs)
        return [
            ("requests", f"{self.requests:,}"),
            ("duration", f"{self.seconds:,.0f} s"),
            ("requests a second", f"{self.requests / self.seconds:.2f}" if self.seconds else "–"),
            ("prompt tokens: total, mean, P50, P99", f"{tokens:,}, {_spread(self.inputs)}"),
            ("output tokens: total, mean, P50, P99", f"{sum(self.outputs):,}, {_spread(self.outputs)}"),
            (f"blocks of {BLOCK} tokens: accesses, distinct", f"{self.blocks:,}, {self.distinct_blocks:,}"),
            ("block hit ratio of an unlimited cache", _share(self.repeated_blocks, self.blocks)),
            ("prompt tokens in prefixes seen before", _share(self.shared_tokens, tokens)),
        ]


def describe(requests: Iterable[Request]) -> Description:
    """Describes a trace in one pass over its requests."""
    found, seen = Description(), set[int]()
    for request in requests:
        if not found.requests:
            found.first = request.timestamp
        found.requests += 1
        found.last = max(found.last, request.timestamp)
        found.inputs.append(request.input_length)
        found.outputs.append(request.output_length)
        _count_blocks(found, request, seen)
    found.distinct_blocks = len(seen)
    return found


def _count_blocks(found: Description, request: Request, seen: set[int]) -> None:
    leading = next((at for at, block in enumerate(request.hash_ids) if block not in seen), len(request.hash_ids))
    found.blocks += len(request.hash_ids)
    found.repeated_blocks += sum(block in seen for block in request.hash_ids)
    found.shared_tokens += min(leading * BLOCK, request.input_length)
    seen.update(request.hash_ids)


def _spread(values: list[int]) -> str:
    if not values:
        return "–, –, –"
    ordered = sorted(values)
    return f"{sum(values) / len(values):,.0f}, {ordered[len(ordered) // 2]:,}, {ordered[int(len(ordered) * 0.99)]:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"
