"""Serves `external.metrics.k8s.io/v1beta1` over TLS to the API server's aggregation layer.

The certificate is the chart's (or yours), mounted from a Secret; the operator itself may read none. Certificate and
authority are read again every `RENEWED` seconds, and the listener is made anew where one changed: connections that are
open live on, new ones get the new certificate. That it expires soon, or did, is said once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiohttp import web

from plumage.errors import ConfigurationError
from plumage_operator.external_metrics import api_documents as documents
from plumage_operator.external_metrics.api_documents import parse_selector
from plumage_operator.external_metrics.pool_metrics import METRICS, OnRequest, PoolSample, ignore_request
from plumage_operator.external_metrics.tls import (
    CertificateState,
    FrontProxy,
    describe_certificate,
    expiry,
    state_of,
    tls_context,
)
from plumage_operator.kube.errors import ApiError

__all__ = ["RELOAD_INTERVAL", "ExternalMetricsServer"]

log = logging.getLogger(__name__)

RELOAD_INTERVAL: Final = 60.0
_PREFIX: Final = f"/apis/{documents.GROUP}/{documents.VERSION}"

Samples: TypeAlias = Callable[[], Iterable[PoolSample]]
_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
_LEVELS: Final = {
    CertificateState.GOOD: logging.INFO,
    CertificateState.SOON: logging.WARNING,
    CertificateState.EXPIRED: logging.ERROR,
}


def _untold(_: float | None) -> None:
    """For those who want no metric of it."""


class ExternalMetricsServer:
    """samples: all pools as last looked at. front_proxy: who may ask, as it is now. folder: tls.crt and tls.key.
    clock: seconds since 1970. expires: is told when what is served expires, None where that can't be read."""

    def __init__(
        self,
        samples: Samples,
        front_proxy: Callable[[], Awaitable[FrontProxy]],
        folder: Path,
        *,
        host: str | None = None,
        port: int = 6443,
        requested: OnRequest = ignore_request,
        clock: Callable[[], float] = time.time,
        expires: Callable[[float | None], None] = _untold,
    ) -> None:
        self._samples = samples
        self._front_proxy = front_proxy
        self._folder = folder
        self._host, self._port = host, port
        self._asked = requested
        self._clock = clock
        self._tell_expiry = expires
        self._expires: float | None = None
        self._said: tuple[CertificateState, float] | None = None
        self._proxy = FrontProxy("")
        self._served: bytes | None = None
        self._site: web.TCPSite | None = None
        self._runner: web.AppRunner | None = None

    async def run(self, every: float = RELOAD_INTERVAL) -> None:
        """Until it is cancelled. What keeps it from serving is told in the log, and tried again."""
        trouble = ""
        try:
            while True:
                try:
                    await self.reload()
                    trouble = ""
                except (ConfigurationError, ApiError, OSError) as error:
                    if str(error) != trouble:
                        log.warning("external metrics: %s", error)
                    trouble = str(error)
                self._look()
                await asyncio.sleep(every)
        finally:
            await self.close()

    async def reload(self) -> None:
        """Serve with the certificate and the authority that there are now."""
        proxy = await self._front_proxy()
        state = await asyncio.to_thread(_digest, proxy, self._folder)
        if state == self._served:
            return
        context = await asyncio.to_thread(tls_context, proxy, self._folder)
        expires = expiry(await asyncio.to_thread((self._folder / "tls.crt").read_bytes))
        runner = self._runner or await self._started()
        if self._site is not None:
            await self._site.stop()
        self._proxy = proxy
        self._site = web.TCPSite(runner, self._host, self._port, ssl_context=context, reuse_address=True)
        await self._site.start()
        self._served = state
        self._expires = expires
        self._tell_expiry(expires)
        log.info("external metrics are served on port %d", self._port)

    def _look(self) -> None:
        """At how long what is served is good for; each state of each certificate is said once."""
        if self._expires is None:
            return
        state = state_of(self._expires, self._clock())
        if self._said != (state, self._expires):
            log.log(_LEVELS[state], "external metrics: %s", describe_certificate(state, self._expires))
            self._said = (state, self._expires)

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner, self._site, self._served = None, None, None

    async def _started(self) -> web.AppRunner:
        app = web.Application(client_max_size=1)
        routes: tuple[tuple[str, _Handler], ...] = (
            ("/apis", _document(documents.api_group_list)),
            (f"/apis/{documents.GROUP}", _document(documents.api_group)),
            (_PREFIX, _document(documents.resource_list)),
            (_PREFIX + "/namespaces/{namespace}/{metric}", self._values),
            ("/{path:.*}", _nothing),
        )
        for path, handler in routes:
            app.router.add_get(path, self._guarded(handler))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        return self._runner

    def _guarded(self, handler: _Handler) -> _Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            peer = request.get_extra_info("ssl_object")
            if not self._proxy.accepts(None if peer is None else peer.getpeercert()):
                told = "only the API server may ask here; ask it for external.metrics.k8s.io"
                return _refused(403, "Forbidden", told)
            return await handler(request)

        return guarded

    async def _values(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        if metric not in METRICS:
            return _refused(404, "NotFound", f"there is no metric {metric[:100]!r}; there are: {', '.join(METRICS)}")
        try:
            chosen = parse_selector(request.query.get("labelSelector", ""))
        except ConfigurationError as error:
            return _refused(400, "BadRequest", str(error))
        here = [sample for sample in self._samples() if sample.namespace == namespace]
        for sample in here:
            if chosen(documents.labels_of_pool(sample)):
                self._asked((sample.namespace, sample.pool))
        return web.json_response(documents.value_list(here, metric, chosen, self._clock()))


def _document(make: Callable[[], dict[str, Any]]) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(make())

    return answer


async def _nothing(request: web.Request) -> web.Response:
    return _refused(404, "NotFound", f"there is nothing at {request.path[:200]!r}")


def _refused(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(documents.status(code, reason, message), status=code)


def _digest(proxy: FrontProxy, folder: Path) -> bytes:
    """Of everything that TLS needs; FileNotFoundError where the Secret is not mounted."""
    told = hashlib.sha256(repr((proxy.authority, sorted(proxy.names))).encode())
    for name in ("tls.crt", "tls.key"):
        told.update((folder / name).read_bytes())
    return told.digest()
