"""The quotas of a pool's tenants in one router: admits each request, and exchanges numbers with the other routers.

A request within the router's share is admitted at once. Another one waits for one exchange with the directory, at most
`ANSWER` seconds. `plumage.quotas` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from plumage.directory.client.connection import UNAVAILABLE, error_text
from plumage.directory.client.tasks import UnexpectedErrors
from plumage.directory.sharing.quota_share import QuotaShare, Report
from plumage.prometheus import exposition
from plumage.quotas import Ask, Limit, TenantUse, Verdict
from plumage.settings.router_config import QuotaConfig
from plumage_router.clock import monotonic, wall
from plumage_router.http.errors import RequestError, over_quota

__all__ = ["Quotas", "Spending"]

log = logging.getLogger(__name__)

ANSWER: Final = 0.25  # seconds until the directory counts as away
RETRY: Final = 1.0  # seconds between tries while it is away
_PACE: Final = 0.01  # seconds between exchanges
_TURN: Final = 1.0  # seconds between looks at what must be published again
_TENANTS_AT_ONCE: Final = 500  # in one exchange
_OTHERS: Final = "*"


class Spending:
    """What one request takes from its tenant's quotas. `end` it once, when the request has ended.

    `waits`: the other routers are asked.
    """

    __slots__ = ("_ask", "_quotas", "_tokens", "_use")

    def __init__(self, quotas: Quotas, use: TenantUse, tokens: int, ask: Ask | None) -> None:
        self._quotas = quotas
        self._use: TenantUse | None = use
        self._tokens = tokens
        self._ask = ask

    @property
    def waits(self) -> bool:
        return self._ask is not None

    def decided(self, refused: Limit | None) -> None:
        """The other routers answered. A refused request has taken nothing."""
        self._ask = None
        if refused is not None:
            self._use = None

    def end(self, tokens: int | None) -> None:
        """tokens: what the request used; None if that is unknown, so what was taken stays."""
        use, self._use = self._use, None
        if use is None:
            return
        if self._ask is not None:
            use.withdraw(self._ask)
        else:
            use.end(self._tokens, self._tokens if tokens is None else tokens, wall())
        self._quotas.changed(use)


class Quotas:
    """limits: each tenant's, with `*` for every other one. url: of the directory; None for a router that counts alone.

    `refused`: requests by the limit that refused them. `asked`: requests that waited for the other routers.
    """

    def __init__(self, limits: Sequence[QuotaConfig], *, url: str | None, pool: str, name: str) -> None:
        self.refused: Counter[Limit] = Counter()
        self.asked = 0
        self.failures = 0
        self._limits = {quota.tenant: quota.limits() for quota in limits}
        self._uses: dict[str, TenantUse] = {}
        self._changed: set[str] = set()
        self._names: dict[TenantUse, str] = {}
        self._wake = asyncio.Event()
        self._renewed_at = 0.0
        self._share = QuotaShare(url, pool=pool, name=name) if url else None
        self._shared = self._share is not None
        self._mistakes = UnexpectedErrors(f"quotas of pool {pool}")

    def configure(self, limits: Sequence[QuotaConfig]) -> None:
        """Other limits from now on. What was used stays."""
        self._limits = {quota.tenant: quota.limits() for quota in limits}
        for tenant, use in self._uses.items():
            use.change(self._limits_of(tenant))

    def take(self, tenant: str, tokens: int, decided: Callable[[RequestError | None], None]) -> Spending | None:
        """Takes a request from its tenant's quotas; None without a quota. Raises RequestError over a limit.

        tokens: of the prompt and the longest answer. decided: called later if the result `waits`.
        """
        limits = self._limits_of(tenant)
        if not limits:
            return None
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = TenantUse.of(limits)
            self._names[use] = tenant
        verdict, limit = use.take(tokens, wall(), monotonic(), shared=self._shared)
        if limit is not None:
            raise self._over(use, limit, tokens)
        self.changed(use)
        if verdict is Verdict.ADMIT:
            return Spending(self, use, tokens, None)
        return self._ask(use, tokens, decided)

    def changed(self, use: TenantUse) -> None:
        """Its numbers must be published."""
        if self._share is not None and (name := self._names.get(use)) is not None:
            self._changed.add(name)
            self._wake.set()

    async def run(self) -> None:
        """Exchanges numbers with the other routers, forever. Without a directory it does nothing."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN):
                    await self._wake.wait()
            self._wake.clear()
            self._renew()
            changed, self._changed = self._changed, set()
            if self._share is not None:
                await self._exchange(self._share, changed)
            await asyncio.sleep(_PACE if self._shared else RETRY)

    async def close(self) -> None:
        """Decides what still waits, and closes the connection."""
        self._shared = False
        self._settle()
        if self._share is not None:
            await self._share.close()

    def lines(self) -> Iterator[str]:
        """The metrics in Prometheus' text format."""
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
        """For the status: what each tenant used of its limits, as this router knows it."""
        return [
            {"tenant": tenant, "limit": meter.kind.value, "used": meter.used, "most": meter.limit}
            for tenant, use in sorted(self._uses.items())
            for meter in use.meters.values()
        ]

    def _limits_of(self, tenant: str) -> dict[Limit, int]:
        found = self._limits.get(tenant)
        return found if found is not None else self._limits.get(_OTHERS, {})

    def _ask(self, use: TenantUse, tokens: int, decided: Callable[[RequestError | None], None]) -> Spending:
        self.asked += 1

        def answered(refused: Limit | None) -> None:
            spending.decided(refused)
            decided(None if refused is None else self._over(use, refused, tokens))

        ask = Ask(tokens, answered)
        use.asks.append(ask)
        spending = Spending(self, use, tokens, ask)  # `answered` is called later
        return spending

    def _over(self, use: TenantUse, limit: Limit, tokens: int) -> RequestError:
        self.refused[limit] += 1
        meter = use.meters[limit]
        if limit.counts_tokens and tokens > meter.limit:
            return over_quota(f"The request needs up to {tokens} tokens", limit, meter.limit, None)
        return over_quota("The quota of this key is used up", limit, meter.limit, meter.seconds_left(wall()))

    async def _exchange(self, share: QuotaShare, changed: set[str]) -> None:
        """Publishes numbers, and decides the requests that waited for their numbers.

        The call is not cancelled when it takes longer than a request may wait: its connection would be lost.
        """
        now, at = monotonic(), wall()
        names = [name for name in changed if name in self._uses]
        for name in names[_TENANTS_AT_ONCE:]:
            self._changed.add(name)
            self._wake.set()
        reports = []
        for name in names[:_TENANTS_AT_ONCE]:
            use = self._uses[name]
            meters = use.due(at, now)
            reports += [Report(name, meter, meter.mine) for meter in (use.meters.values() if use.asks else meters)]
            for ask in use.asks:
                ask.published = True
        if not reports:
            return
        call = asyncio.ensure_future(share.exchange(reports, at))
        try:
            await asyncio.wait((call,), timeout=ANSWER)
            if not call.done():
                self._away("no answer")
                self._settle()
            numbers = await call
        except Exception as error:
            if not isinstance(error, UNAVAILABLE):
                self._mistakes.log_once(error)
            self._away(error_text(error))
        else:
            self._back()
            now, at = monotonic(), wall()
            for (_, meter, mine), found in zip(reports, numbers, strict=True):
                meter.read(found, mine, now, at)
        finally:
            call.cancel()
        self._settle()

    def _settle(self) -> None:
        for use in list(self._uses.values()):
            if use.asks:
                use.settle(wall=wall(), now=monotonic(), shared=self._shared)
                self.changed(use)

    def _away(self, reason: str) -> None:
        self.failures += 1
        if self._shared:
            log.warning("quotas: the directory does not answer (%s); this router admits its own share", reason)
        self._shared = False

    def _back(self) -> None:
        if not self._shared:
            log.info("quotas: the directory answers again")
        self._shared = True

    def _renew(self) -> None:
        """Once a second: forgets tenants whose windows are empty, and finds numbers that must be published again."""
        now, at = monotonic(), wall()
        if now - self._renewed_at < _TURN:
            return
        self._renewed_at = now
        for tenant, use in list(self._uses.items()):
            if use.due(at, now):
                self._changed.add(tenant)
            elif use.idle:
                del self._uses[tenant], self._names[use]
