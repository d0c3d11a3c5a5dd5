"""`spec.quotas`: what each tenant of a pool may use."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from plumage.api.v1alpha1.field_types import WORDS
from plumage.api.v1alpha1.model import ServedName
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["QuotaSpec", "Tenant"]

TENANT = r"^[!-~]+$"
WORDS |= {TENANT: "a tenant of the keys file, in printable ASCII characters without spaces, or '*'"}

Tenant = Annotated[str, Field(min_length=1, max_length=253, pattern=TENANT)]
Requests = Annotated[int, Field(ge=1, le=1_000_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
_LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_requests", "models")


class QuotaSpec(Struct):
    """What one tenant may use: models, and limits over all the pool's routers. Requests over a limit get 429."""

    tenant: Tenant = Field(description="The tenant, as in the API keys; `*` for each tenant without an entry.")
    requests_per_minute: Requests | None = Field(
        None, description="Requests in each minute of the clock. None when absent."
    )
    tokens_per_minute: Tokens | None = Field(
        None, description="Tokens of prompts and answers in each minute of the clock. None when absent."
    )
    tokens_per_day: Tokens | None = Field(
        None, description="Tokens of prompts and answers in each day, in UTC. None when absent."
    )
    concurrent_requests: Requests | None = Field(None, description="Requests at one time. None when absent.")
    models: tuple[ServedName, ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        max_length=32,
        description="Models that the tenant may ask for: names of the pool's model, its aliases and adapters. All when "
        "absent. Requests for others get 403.",
    )
    rules: ClassVar = (
        Rule(
            at="tenant",
            must="must have at least one limit, or models, beside it",
            cel="has(self.requestsPerMinute) || has(self.tokensPerMinute) || has(self.tokensPerDay) || "
            "has(self.concurrentRequests) || has(self.models)",
            reads=_LIMITS,
            holds=lambda quota: any(getattr(quota, name) is not None for name in _LIMITS),
        ),
    )
