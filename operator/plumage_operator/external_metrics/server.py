"""Serves `external.metrics.k8s.io/v1beta1` over TLS to the API server's aggregation layer.

The certificate is the chart's or the user's, mounted from a Secret; the operator itself may read no Secret. Certificate
and authority are read again every `RELOAD_INTERVAL` seconds. The listener is restarted when one changed: open
connections stay, and new ones get the new certificate. The log reports once that it expires soon, or has expired.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
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


def _ignore(_: float | None) -> None:
    """Ignores an expiry, for callers without a metric of it."""


class ExternalMetricsServer:
    """samples: all pools at their last poll.

    front_proxy: which clients may connect, read now.
    folder: tls.crt and tls.key.
    clock: seconds since 1970.
    expires: called with the time when the served certificate expires, None where that can't be read.
    """

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
        expires: Callable[[float | None], None] = _ignore,
    ) -> None:
        self._samples = samples
        self._front_proxy = front_proxy
        self._folder = folder
        self._host, self._port = host, port
        self._asked = requested
        self._clock = clock
        self._expires_callback = expires
        self._expires: float | None = None
        self._logged: tuple[CertificateState, float] | None = None
        self._proxy = FrontProxy("")
        self._served: bytes | None = None
        self._site: web.SockSite | None = None
        self._listener: socket.socket | None = None
        self._accepting: socket.socket | None = None  # the listener of `_site`
        self._runner: web.AppRunner | None = None

    async def run(self, every: float = RELOAD_INTERVAL) -> None:
        """Runs until it is cancelled. Errors are logged, and retried."""
        last_error = ""
        try:
            while True:
                try:
                    await self.reload()
                    last_error = ""
                except (ConfigurationError, ApiError, OSError) as error:
                    if str(error) != last_error:
                        log.warning("external metrics: %s", error)
                    last_error = str(error)
                self._log_expiry()
                await asyncio.sleep(every)
        finally:
            await self.close()

    async def reload(self) -> None:
        """Serves with the present certificate and authority."""
        proxy = await self._front_proxy()
        state = await asyncio.to_thread(_digest, proxy, self._folder)
        if state == self._served:
            return
        context = await asyncio.to_thread(tls_context, proxy, self._folder)
        expires = expiry(await asyncio.to_thread((self._folder / "tls.crt").read_bytes))
        runner = self._runner or await self._start_runner()
        await self._stop_accepting()
        self._proxy = proxy
        self._listener = self._listener or _listen(self._host, self._port)
        self._accepting = self._listener.dup()  # connections wait in the listener meanwhile
        self._site = web.SockSite(runner, self._accepting, ssl_context=context)
        await self._site.start()
        self._served = state
        self._expires = expires
        self._expires_callback(expires)
        log.info("external metrics are served on port %d", self._port)

    def _log_expiry(self) -> None:
        """Logs each state of each certificate once."""
        if self._expires is None:
            return
        state = state_of(self._expires, self._clock())
        if self._logged != (state, self._expires):
            log.log(_LEVELS[state], "external metrics: %s", describe_certificate(state, self._expires))
            self._logged = (state, self._expires)

    async def close(self) -> None:
        await self._stop_accepting()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._listener is not None:
            self._listener.close()
        self._runner, self._listener, self._served = None, None, None

    async def _stop_accepting(self) -> None:
        """Ends the site, and loses no connection: asyncio never closes one that it accepts while its server closes."""
        if self._site is None or self._accepting is None:
            return
        asyncio.get_running_loop().remove_reader(self._accepting)
        await asyncio.sleep(0)  # what is accepted becomes a connection of its own
        await self._site.stop()
        self._site, self._accepting = None, None

    async def _start_runner(self) -> web.AppRunner:
        app = web.Application(client_max_size=1)
        routes: tuple[tuple[str, _Handler], ...] = (
            ("/apis", _document(documents.api_group_list)),
            (f"/apis/{documents.GROUP}", _document(documents.api_group)),
            (_PREFIX, _document(documents.resource_list)),
            (_PREFIX + "/namespaces/{namespace}/{metric}", self._values),
            ("/{path:.*}", _not_found),
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
                message = "only the API server may connect; send requests for external.metrics.k8s.io to it"
                return _refused(403, "Forbidden", message)
            return await handler(request)

        return guarded

    async def _values(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        if metric not in METRICS:
            return _refused(
                404, "NotFound", f"there is no metric {metric[:100]!r}; available are: {', '.join(METRICS)}"
            )
        try:
            selects = parse_selector(request.query.get("labelSelector", ""))
        except ConfigurationError as error:
            return _refused(400, "BadRequest", str(error))
        here = [sample for sample in self._samples() if sample.namespace == namespace]
        for sample in here:
            if selects(documents.labels_of_pool(sample)):
                self._asked((sample.namespace, sample.pool))
        return web.json_response(documents.value_list(here, metric, selects, self._clock()))


def _listen(host: str | None, port: int) -> socket.socket:
    """A listener of IPv6 and IPv4, where there is no host."""
    both = host is None and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or (host is not None and ":" in host) else socket.AF_INET
    return socket.create_server((host or "", port), family=family, dualstack_ipv6=both)


def _document(make: Callable[[], dict[str, Any]]) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(make())

    return answer


async def _not_found(request: web.Request) -> web.Response:
    return _refused(404, "NotFound", f"there is nothing at {request.path[:200]!r}")


def _refused(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(documents.status(code, reason, message), status=code)


def _digest(proxy: FrontProxy, folder: Path) -> bytes:
    """Returns a digest of the files that TLS needs. Raises FileNotFoundError where the Secret is not mounted."""
    content = hashlib.sha256(repr((proxy.authority, sorted(proxy.names))).encode())
    for name in ("tls.crt", "tls.key"):
        content.update((folder / name).read_bytes())
    return content.digest()
