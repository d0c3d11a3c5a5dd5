"""What each tenant used of each model: sums, and counters for scrapes. `usage_log` makes records for bills of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from plumage.prometheus import exposition

__all__ = ["Sums", "TenantUsage", "TokensUsed"]

MAX_PAIRS: Final = 10_000  # of a tenant and a model; the requests of further ones are counted together
MAX_SHOWN: Final = 1_000  # pairs with metrics of their own: a scrape of 10,000 would hold the requests for 0.1 s
_REST: Final = ("*", "*")
_PREFIX: Final = "plumage_router_tenant_"


@dataclass(slots=True, init=False)
class TokensUsed:
    """Tokens of one request. estimated: the engine did not count them."""

    prompt: int
    cached: int
    output: int
    estimated: bool

    def __init__(self, prompt: int, cached: int, output: int, estimated: bool) -> None:
        self.prompt, self.cached, self.output, self.estimated = prompt, cached, output, estimated

    @property
    def total(self) -> int:
        return self.prompt + self.output


class Sums:
    """`estimated`: of the requests."""

    __slots__ = ("cached", "estimated", "output", "prompt", "requests")

    def __init__(
        self, requests: int = 0, estimated: int = 0, prompt: int = 0, cached: int = 0, output: int = 0
    ) -> None:
        self.requests, self.estimated = requests, estimated
        self.prompt, self.cached, self.output = prompt, cached, output

    def add(self, more: Sums) -> None:
        self.requests += more.requests
        self.estimated += more.estimated
        self.prompt += more.prompt
        self.cached += more.cached
        self.output += more.output

    def minus(self, other: Sums) -> Sums:
        return Sums(
            self.requests - other.requests,
            self.estimated - other.estimated,
            self.prompt - other.prompt,
            self.cached - other.cached,
            self.output - other.output,
        )


class TenantUsage:
    """The sums since the router's start, by tenant and model. The tenant is "" where clients need no keys.

    `changed`: the pairs with requests since a reader took them out.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], Sums] = {}
        self.changed: dict[tuple[str, str], None] = {}

    def add(self, tenant: str, model: str, used: TokensUsed) -> None:
        """Counts a request that an engine answered, at least in part."""
        pair = (tenant, model)
        sums = self.sums.get(pair)
        if sums is None:
            pair = pair if len(self.sums) < MAX_PAIRS else _REST
            sums = self.sums.setdefault(pair, Sums())
        self.changed[pair] = None
        sums.requests += 1
        sums.estimated += used.estimated
        sums.prompt += used.prompt
        sums.cached += used.cached
        sums.output += used.output

    def lines(self) -> Iterator[str]:
        """The metrics in Prometheus' text format. Beyond `MAX_SHOWN` pairs those that came last count together."""
        shown = dict(islice(self.sums.items(), MAX_SHOWN))
        rest = [sums for pair, sums in islice(self.sums.items(), MAX_SHOWN, None)]
        if rest:
            shown[_REST] = _total([shown.pop(_REST, Sums()), *rest])
        for name, text, field in (
            ("requests", "Requests that an engine answered, by tenant and model.", "requests"),
            ("estimated_requests", "Of these, requests whose tokens the engine did not report.", "estimated"),
            ("prompt_tokens", "Prompt tokens of these requests.", "prompt"),
            ("cached_tokens", "Of these, tokens found in the cache.", "cached"),
            ("output_tokens", "Answer tokens of these requests.", "output"),
        ):
            values: dict[tuple[str, ...], float] = {pair: getattr(shown[pair], field) for pair in sorted(shown)}
            yield from exposition.counters_by(_PREFIX + name, text, ("tenant", "model"), values)


def _total(several: Sequence[Sums]) -> Sums:
    total = Sums()
    for one in several:
        total.add(one)
    return total
