"""The quotas of a pool's tenants in one router: admits each request, or lets it wait for the other routers' numbers.

A request within the router's share is admitted at once. `plumage.quotas` decides. `quota_exchange` brings the numbers
of the other routers, and decides about the requests that wait for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from plumage.prometheus import exposition
from plumage.quotas import Ask, Limit, QuotaRefusal, Sharing, Taken, TenantUse
from plumage.settings.router_config import QuotaConfig
from plumage_router.clock import monotonic, wall
from plumage_router.http.errors import RequestError, model_refused, over_quota
from plumage_router.request.prompt import Prompt

__all__ = ["Quotas", "Spending"]

_OTHERS: Final = "*"


class Spending:
    """What one request takes from its tenant's quotas. `end` it once, when the request has ended.

    `waits`: the other routers are asked.
    """

    __slots__ = ("_ask", "_quotas", "_taken", "_use")

    def __init__(self, quotas: Quotas, use: TenantUse, taken: Taken, ask: Ask | None) -> None:
        self._quotas = quotas
        self._use: TenantUse | None = use
        self._taken = taken
        self._ask = ask

    @property
    def waits(self) -> bool:
        return self._ask is not None

    def decided(self, taken: Taken, *, refused: bool) -> None:
        """Notes the other routers' answer. A refused request has taken nothing."""
        self._ask, self._taken = None, taken
        if refused:
            self._use = None

    def end(self, tokens: int | None) -> None:
        """Counts what the request used. tokens: None if that is unknown, so all that was taken counts."""
        use, self._use = self._use, None
        if use is None:
            return
        if self._ask is not None:
            use.withdraw(self._ask)
        else:
            use.end(self._taken, self._taken.tokens if tokens is None else tokens, wall())
        self._quotas.changed(use)


class Quotas:
    """limits: each tenant's, with `*` for every other one. shared: the routers of the pool count together.

    `refused`: requests by the limit that refused them. `asked`: requests that waited for the other routers.
    For `QuotaExchange`: `uses` by tenant; `changed_tenants`, whose numbers must be published, in order; `answers`:
    the directory answers; `routers`: those that count, this one included; `failures` of exchanges; `wake` and `urgent`
    are set when there is something to publish, and when a request waits.
    """

    def __init__(self, limits: Sequence[QuotaConfig], *, shared: bool) -> None:
        self.refused: Counter[Limit] = Counter()
        self.asked = 0
        self.failures = 0
        self.uses: dict[str, TenantUse] = {}
        self.changed_tenants: dict[str, None] = {}
        self.wake, self.urgent = asyncio.Event(), asyncio.Event()
        self.answers = self._shared = shared
        self.routers = 1
        self._limits = {quota.tenant: quota.limits() for quota in limits}
        self._models = {quota.tenant: quota.models for quota in limits}
        self._names: dict[TenantUse, str] = {}

    def __len__(self) -> int:
        """Tenants whose use is counted."""
        return len(self.uses)

    def configure(self, limits: Sequence[QuotaConfig]) -> None:
        """Sets other limits. What was used stays."""
        self._limits = {quota.tenant: quota.limits() for quota in limits}
        self._models = {quota.tenant: quota.models for quota in limits}
        for tenant, use in self.uses.items():
            use.limits = self._limits_of(tenant)
            self.changed(use)

    def models(self, tenant: str) -> tuple[str, ...] | None:
        """Returns the models that the tenant may ask for; None for all."""
        return self._models[tenant] if tenant in self._models else self._models.get(_OTHERS)

    def allows(self, tenant: str, model: str) -> bool:
        """Whether the tenant may ask for the model."""
        models = self.models(tenant)
        return models is None or model in models

    def spend(
        self, prompt: Prompt, tenant: str, tokens: int, decided: Callable[[RequestError | None], None]
    ) -> Spending | None:
        """Takes a request from its tenant's quotas; None without a quota. Raises RequestError over a limit, or for a
        model that the tenant may not use.

        tokens: that the prompt is expected to have. decided: called later if the result `waits` for the other routers.
        """
        if prompt.of_response:
            return None
        answer = prompt.expected_answer if prompt.generates or prompt.audio_tokens else 0
        self.check_model(tenant, prompt.model)
        return self.take(tenant, tokens + answer, decided)

    def check_model(self, tenant: str, model: str) -> None:
        """Raises RequestError if the tenant may not ask for the model."""
        models = self.models(tenant)
        if models is not None and model not in models:
            raise model_refused(model, models)

    def check(self, tenant: str) -> None:
        """Raises RequestError if the tenant's next request is refused, whatever its size. Counts nothing."""
        use = self.uses.get(tenant)
        if use is not None and (refused := use.refusal(1, self.sharing())) is not None:
            self.wake.set()
            raise self._over(refused, 1)

    def take(self, tenant: str, tokens: int, decided: Callable[[RequestError | None], None]) -> Spending | None:
        """Takes a request from its tenant's quotas; None without a quota. Raises RequestError over a limit.

        tokens: of its prompt and its longest answer. decided: called later if the result `waits`.
        """
        limits = self._limits_of(tenant)
        if not limits:
            return None
        use = self.uses.get(tenant)
        if use is None:
            use = self.uses[tenant] = TenantUse(limits)
            self._names[use] = tenant
        sharing = self.sharing()
        found = use.take(tokens, sharing)
        if isinstance(found, QuotaRefusal):
            raise self._over(found, tokens)
        taken, asks = found
        self.changed(use)
        if not asks:
            return Spending(self, use, taken, None)
        self.asked += 1
        self.urgent.set()

        def answered(refused: QuotaRefusal | None) -> None:
            spending.decided(ask.taken, refused=refused is not None)
            decided(None if refused is None else self._over(refused, tokens))

        ask = Ask(taken, sharing.now, answered)
        use.asks.append(ask)
        spending = Spending(self, use, taken, ask)  # `answered` is called later
        return spending

    def changed(self, use: TenantUse) -> None:
        """Notes that the numbers must be published."""
        if self._shared and (name := self._names.get(use)) is not None:
            self.changed_tenants[name] = None
            self.wake.set()

    def forget(self, tenant: str) -> None:
        """Forgets what a tenant used."""
        del self._names[self.uses.pop(tenant)]

    @property
    def limited(self) -> bool:
        """Whether there are quotas, or were lately."""
        return bool(self._limits or self.uses)

    def lines(self) -> Iterator[str]:
        """Returns the metrics in Prometheus' text format."""
        name = "plumage_router_quota_"
        refused = {limit.value: self.refused[limit] for limit in Limit}
        yield from exposition.counters(name + "refused", "Requests over a tenant's quota.", "limit", refused)
        yield from exposition.counter(
            name + "asked", "Requests that waited for the other routers' numbers of their quota.", self.asked
        )
        yield from exposition.counter(
            name + "exchange_failures", "Exchanges of quota numbers that the directory did not answer.", self.failures
        )

    def document(self) -> list[dict[str, Any]]:
        """Returns what each tenant used of its limits, as this router knows it, for the status."""
        now = wall()
        return [
            {"tenant": tenant, "limit": kind.value, "used": use.meters[kind].used(now), "most": most}
            for tenant, use in sorted(self.uses.items())
            for kind, most in use.limits.items()
        ]

    def sharing(self) -> Sharing:
        """What is known of the other routers now."""
        return Sharing(self.answers, self.routers, wall(), monotonic())

    def _limits_of(self, tenant: str) -> dict[Limit, int]:
        found = self._limits.get(tenant)
        return found if found is not None else self._limits.get(_OTHERS, {})

    def _over(self, refusal: QuotaRefusal, tokens: int) -> RequestError:
        self.refused[refusal.limit] += 1
        if refusal.seconds is None:
            reason = f"The request needs up to {tokens} tokens"
        elif refusal.by_share:
            reason = "The directory is away, and this router's share of the quota is used up"
        else:
            reason = "The quota of this key is used up"
        return over_quota(reason, refusal.limit, refusal.most, refusal.seconds)
