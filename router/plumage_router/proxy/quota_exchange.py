"""Exchanges the numbers of a pool's quotas with the other routers, through the directory.

A request that waits for the other routers' numbers (`quotas`) is decided after one exchange, at most `ANSWER` seconds
later. It is apart from `Quotas` because coroutines are not compiled (decision 0304).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from plumage.directory.client.connection import UNAVAILABLE, error_text
from plumage.directory.client.tasks import UnexpectedErrors
from plumage.directory.sharing.quota_share import QuotaShare, Report
from plumage_router.clock import monotonic, wall
from plumage_router.proxy.quotas import Quotas

__all__ = ["QuotaExchange"]

log = logging.getLogger(__name__)

ANSWER: Final = 0.25  # seconds until the directory counts as away
PRESENCE: Final = 5.0  # seconds between messages that this router is there
_SLICES: Final = 5  # of `ANSWER`: a time in which this process was busy counts as one of them
_PACE: Final = 0.01  # seconds between exchanges while requests wait for one …
_CALM_PACE: Final = 0.05  # … and otherwise
_TURN: Final = 1.0  # seconds between looks at what must be published again
_METERS_AT_ONCE: Final = 100  # in one exchange, which takes about 10 ms of CPU
_LOG_EVERY: Final = 60.0  # seconds


class QuotaExchange:
    """url: of the directory; None for a router that counts alone. name: of this router, unique in its pool."""

    def __init__(self, quotas: Quotas, *, url: str | None, pool: str, name: str) -> None:
        self._quotas = quotas
        self._share = QuotaShare(url, pool=pool, name=name) if url else None
        self._looked_at = self._present_at = self._logged_at = float("-inf")
        self._mistakes = UnexpectedErrors(f"quotas of pool {pool}")

    async def run(self) -> None:
        """Exchanges numbers with the other routers, forever. Without a directory it does nothing."""
        quotas = self._quotas
        quotas.wake.set()  # the other routers see at once that this one is there
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN):
                    await quotas.wake.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CALM_PACE - _PACE):
                    await quotas.urgent.wait()
            quotas.wake.clear()
            quotas.urgent.clear()
            began = monotonic()
            self._look()
            if self._share is not None and quotas.limited:
                await self._exchange(self._share)
            self._decide_waiting()
            await asyncio.sleep(max(_PACE, monotonic() - began) if quotas.answers else _TURN)

    async def close(self) -> None:
        """Decides what still waits, publishes the last numbers, and closes the connection."""
        quotas = self._quotas
        if self._share is None:
            return
        with contextlib.suppress(*UNAVAILABLE):
            async with asyncio.timeout(2 * ANSWER):
                if quotas.answers:
                    await self._share.exchange(self._reports(), wall())
                await self._share.leave()
        quotas.answers = False
        self._decide_waiting()
        await self._share.close()

    def _look(self) -> None:
        """Forgets, once a second, tenants whose windows are empty. Finds numbers that must be published again."""
        quotas = self._quotas
        sharing = quotas.sharing()
        if sharing.now - self._looked_at < _TURN:
            return
        self._looked_at = sharing.now
        for tenant, use in list(quotas.uses.items()):
            if use.due(sharing):
                quotas.changed_tenants.setdefault(tenant)
            elif use.idle:
                quotas.forget(tenant)

    def _reports(self) -> list[Report]:
        """Returns what to publish now, tenants with waiting requests first. The rest stays in `changed_tenants`."""
        quotas = self._quotas
        sharing = quotas.sharing()
        names = sorted(
            (name for name in quotas.changed_tenants if name in quotas.uses),
            key=lambda name: not quotas.uses[name].asks,
        )
        quotas.changed_tenants = dict.fromkeys(names)
        reports: list[Report] = []
        for name in names:
            if len(reports) >= _METERS_AT_ONCE:
                quotas.wake.set()
                break
            use = quotas.uses[name]
            reports += [Report(name, meter, meter.mine, meter.window) for meter in use.due(sharing)]
            for ask in use.asks:
                ask.published = True
            del quotas.changed_tenants[name]
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
        quotas = self._quotas
        now, at = monotonic(), wall()
        reports = self._reports()
        presence = now - self._present_at >= PRESENCE or not quotas.answers
        try:
            if presence:
                quotas.routers = await share.routers(at)
                self._present_at = now
            numbers = await share.exchange(reports, at) if reports else []
        except BaseException:
            quotas.changed_tenants |= dict.fromkeys(report.tenant for report in reports)
            raise
        sharing = quotas.sharing()
        for report, found in zip(reports, numbers, strict=True):
            report.meter.roll(sharing.wall)
            if report.meter.window == report.window:
                report.meter.read(found, report.mine, sharing)
        return presence or bool(reports)

    def _decide_waiting(self) -> None:
        """Decides the requests that wait for the other routers, as far as their numbers came or are overdue."""
        quotas = self._quotas
        sharing = quotas.sharing()
        for use in [use for use in quotas.uses.values() if use.asks]:
            for ask, refused in use.decide_asks(sharing, waiting_s=2 * ANSWER):
                try:
                    ask.decided(refused)
                except Exception as error:
                    self._mistakes.log_once(error)
            quotas.changed(use)
            if use.asks:
                quotas.urgent.set()

    def _away(self, reason: str) -> None:
        quotas = self._quotas
        quotas.failures += 1
        now = monotonic()
        if quotas.answers and now - self._logged_at > _LOG_EVERY:
            self._logged_at = now
            log.warning("quotas: the directory does not answer (%s); this router admits its own share", reason)
        quotas.answers = False

    def _back(self) -> None:
        quotas = self._quotas
        if not quotas.answers:
            log.info("quotas: the directory answers again")
            for use in quotas.uses.values():  # the server may have lost all numbers
                for meter in use.meters.values():
                    meter.published = -1
                quotas.changed(use)
        quotas.answers = True
