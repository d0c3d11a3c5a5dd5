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
from plumage.quotas import Ask, Limit, QuotaRefusal, Sharing, Taken, TenantUse
from plumage.settings.router_config import QuotaConfig
from plumage_router.clock import monotonic, wall
from plumage_router.http.errors import RequestError, model_refused, over_quota
from plumage_router.request.prompt import Prompt

__all__ = ["Quotas", "Spending"]

log = logging.getLogger(__name__)

ANSWER: Final = 0.25  # seconds until the directory counts as away
PRESENCE: Final = 5.0  # seconds between messages that this router is there
_SLICES: Final = 5  # of `ANSWER`: a time in which this process was busy counts as one of them
_PACE: Final = 0.01  # seconds between exchanges while requests wait for one …
_CALM_PACE: Final = 0.05  # … and otherwise
_TURN: Final = 1.0  # seconds between looks at what must be published again
_METERS_AT_ONCE: Final = 100  # in one exchange, which takes about 10 ms of CPU
_OTHERS: Final = "*"
_LOG_EVERY: Final = 60.0  # seconds


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
    """limits: each tenant's, with `*` for every other one. url: of the directory; None for a router that counts alone.

    `refused`: requests by the limit that refused them. `asked`: requests that waited for the other routers.
    """

    def __init__(self, limits: Sequence[QuotaConfig], *, url: str | None, pool: str, name: str) -> None:
        self.refused: Counter[Limit] = Counter()
        self.asked = 0
        self.failures = 0
        self._limits = {quota.tenant: quota.limits() for quota in limits}
        self._models = {quota.tenant: quota.models for quota in limits}
        self._uses: dict[str, TenantUse] = {}
        self._names: dict[TenantUse, str] = {}
        self._changed: dict[str, None] = {}  # tenants whose numbers must be published, in order
        self._wake, self._urgent = asyncio.Event(), asyncio.Event()
        self._share = QuotaShare(url, pool=pool, name=name) if url else None
        self._answers = self._share is not None
        self._routers = 1
        self._looked_at = self._present_at = self._logged_at = float("-inf")
        self._mistakes = UnexpectedErrors(f"quotas of pool {pool}")

    def __len__(self) -> int:
        """Tenants whose use is counted."""
        return len(self._uses)

    def configure(self, limits: Sequence[QuotaConfig]) -> None:
        """Sets other limits. What was used stays."""
        self._limits = {quota.tenant: quota.limits() for quota in limits}
        self._models = {quota.tenant: quota.models for quota in limits}
        for tenant, use in self._uses.items():
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
        use = self._uses.get(tenant)
        if use is not None and (refused := use.refusal(1, self._sharing())) is not None:
            self._wake.set()
            raise self._over(refused, 1)

    def take(self, tenant: str, tokens: int, decided: Callable[[RequestError | None], None]) -> Spending | None:
        """Takes a request from its tenant's quotas; None without a quota. Raises RequestError over a limit.

        tokens: of its prompt and its longest answer. decided: called later if the result `waits`.
        """
        limits = self._limits_of(tenant)
        if not limits:
            return None
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = TenantUse(limits)
            self._names[use] = tenant
        sharing = self._sharing()
        found = use.take(tokens, sharing)
        if isinstance(found, QuotaRefusal):
            raise self._over(found, tokens)
        taken, asks = found
        self.changed(use)
        if not asks:
            return Spending(self, use, taken, None)
        self.asked += 1
        self._urgent.set()

        def answered(refused: QuotaRefusal | None) -> None:
            spending.decided(ask.taken, refused=refused is not None)
            decided(None if refused is None else self._over(refused, tokens))

        ask = Ask(taken, sharing.now, answered)
        use.asks.append(ask)
        spending = Spending(self, use, taken, ask)  # `answered` is called later
        return spending

    def changed(self, use: TenantUse) -> None:
        """Notes that the numbers must be published."""
        if self._share is not None and (name := self._names.get(use)) is not None:
            self._changed[name] = None
            self._wake.set()

    async def run(self) -> None:
        """Exchanges numbers with the other routers, forever. Without a directory it does nothing."""
        self._wake.set()  # the other routers see at once that this one is there
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN):
                    await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CALM_PACE - _PACE):
                    await self._urgent.wait()
            self._wake.clear()
            self._urgent.clear()
            began = monotonic()
            self._look()
            if self._share is not None and (self._limits or self._uses):
                await self._exchange(self._share)
            self._decide_waiting()
            await asyncio.sleep(max(_PACE, monotonic() - began) if self._answers else _TURN)

    async def close(self) -> None:
        """Decides what still waits, publishes the last numbers, and closes the connection."""
        if self._share is None:
            return
        with contextlib.suppress(*UNAVAILABLE):
            async with asyncio.timeout(2 * ANSWER):
                if self._answers:
                    await self._share.exchange(self._reports(), wall())
                await self._share.leave()
        self._answers = False
        self._decide_waiting()
        await self._share.close()

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
            for tenant, use in sorted(self._uses.items())
            for kind, most in use.limits.items()
        ]

    def _sharing(self) -> Sharing:
        return Sharing(self._answers, self._routers, wall(), monotonic())

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

    def _look(self) -> None:
        """Forgets, once a second, tenants whose windows are empty. Finds numbers that must be published again."""
        sharing = self._sharing()
        if sharing.now - self._looked_at < _TURN:
            return
        self._looked_at = sharing.now
        for tenant, use in list(self._uses.items()):
            if use.due(sharing):
                self._changed.setdefault(tenant)
            elif use.idle:
                del self._uses[tenant], self._names[use]

    def _reports(self) -> list[Report]:
        """Returns what to publish now; tenants with waiting requests come first. The rest stays in `_changed`."""
        sharing = self._sharing()
        names = sorted(
            (name for name in self._changed if name in self._uses), key=lambda name: not self._uses[name].asks
        )
        self._changed = dict.fromkeys(names)
        reports: list[Report] = []
        for name in names:
            if len(reports) >= _METERS_AT_ONCE:
                self._wake.set()
                break
            use = self._uses[name]
            reports += [Report(name, meter, meter.mine, meter.window) for meter in use.due(sharing)]
            for ask in use.asks:
                ask.published = True
            del self._changed[name]
        return reports

    async def _exchange(self, share: QuotaShare) -> None:
        """Publishes numbers, and reads those of the others.

        The call is not cancelled when it takes longer than a request may wait: its connection would be lost.
        """
        call = asyncio.ensure_future(self._call(share))
        try:
            for _ in range(_SLICES):
                await asyncio.wait((call,), timeout=ANSWER / _SLICES)
                if call.done():
                    break
            else:
                self._away("no answer")
                self._decide_waiting()
            if await call:
                self._back()
        except Exception as error:
            if not isinstance(error, UNAVAILABLE):
                self._mistakes.log_once(error)
            self._away(error_text(error))
        finally:
            call.cancel()

    async def _call(self, share: QuotaShare) -> bool:
        """Returns whether the server was asked."""
        now, at = monotonic(), wall()
        reports = self._reports()
        presence = now - self._present_at >= PRESENCE or not self._answers
        try:
            if presence:
                self._routers = await share.routers(at)
                self._present_at = now
            numbers = await share.exchange(reports, at) if reports else []
        except BaseException:
            self._changed |= dict.fromkeys(report.tenant for report in reports)
            raise
        sharing = self._sharing()
        for report, found in zip(reports, numbers, strict=True):
            report.meter.roll(sharing.wall)
            if report.meter.window == report.window:
                report.meter.read(found, report.mine, sharing)
        return presence or bool(reports)

    def _decide_waiting(self) -> None:
        """Decides the requests that wait for the other routers, as far as their numbers came or are overdue."""
        sharing = self._sharing()
        for use in [use for use in self._uses.values() if use.asks]:
            for ask, refused in use.decide_asks(sharing, waiting_s=2 * ANSWER):
                try:
                    ask.decided(refused)
                except Exception as error:
                    self._mistakes.log_once(error)
            self.changed(use)
            if use.asks:
                self._urgent.set()

    def _away(self, reason: str) -> None:
        self.failures += 1
        now = monotonic()
        if self._answers and now - self._logged_at > _LOG_EVERY:
            self._logged_at = now
            log.warning("quotas: the directory does not answer (%s); this router admits its own share", reason)
        self._answers = False

    def _back(self) -> None:
        if not self._answers:
            log.info("quotas: the directory answers again")
            for use in self._uses.values():  # the server may have lost all numbers
                for meter in use.meters.values():
                    meter.published = -1
                self.changed(use)
        self._answers = True
