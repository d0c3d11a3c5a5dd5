"""The listener for several pools: finds the pool of each completion by the `model` in its body.

A model name leads to one pool, or to several by their weights (`split`). A request for an unknown name gets a 404
(`model_not_found`) with the known names. The body is parsed once, here. Everything else is the pool's: limits,
timeouts, replicas, metrics. A failure before a pool is found is counted here. A removed pool finishes its requests in
flight and gets no new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from plumage.membership import MemberState
from plumage.settings.router_config import MultiPoolConfig
from plumage_router.clock import monotonic
from plumage_router.http.asgi import Application, AsgiRequest
from plumage_router.http.auth import Auth, Tenant
from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.errors import RequestError, bad_field, internal, overloaded, response_not_found
from plumage_router.http.listener import Listener
from plumage_router.http.paths import response_call
from plumage_router.http.request import Handler, Request
from plumage_router.http.time_slicing import LARGE, SlicedWork, Steps, run_now
from plumage_router.multi_pool.request_copies import RequestCopies, most_copies
from plumage_router.multi_pool.split import Route, choose, conversation_key, copy_for, fallbacks, may_be_copied
from plumage_router.pool_router import PoolRouter
from plumage_router.proxy.live_tracing import LiveTracing
from plumage_router.request.audio import Form, read_form
from plumage_router.request.body import MAX_VALUES, check_media_type, parse_steps

__all__ = ["POOL_PATHS", "PoolDispatcher"]

log = logging.getLogger(__name__)

POOL_PATHS: Final = (b"/plumage/v1/", b"/v1/plumage/")
"""Routes of one pool, which is named by `?pool=NAME`."""
_MAX_NAMES: Final = 32  # in an error message


class PoolDispatcher(Listener):
    """`pools`: the routers that serve, by pool. `routes`: by the model names that clients use.
    `routed`: requests by model and pool, of models with several pools or a fallback.

    `copies`: of requests, for pools whose answers nobody gets.
    `broken`: why a pool of the configuration is not served. `ending`: removed pools that finish their requests.
    """

    def __init__(
        self,
        config: MultiPoolConfig,
        auth: Auth,
        *,
        name: str,
        application: Callable[[PoolDispatcher], Application],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            config.limits,
            config.timeouts,
            auth,
            access_log=config.access_log,
            loop=loop,
        )
        self.title = config.gateway
        self.name = name
        self.tracing = LiveTracing(name)
        self.pools: dict[str, PoolRouter] = {}
        self.routes: dict[str, Route] = {}
        self.routed: Counter[tuple[str, ...]] = Counter()
        self.broken: dict[str, str] = {}
        self.ending: set[PoolRouter] = set()
        self.copies = RequestCopies(self.body_memory, self.pools.get, loop)
        self.copies.most = most_copies(config.limits)
        self._informed = False
        self._application = application(self)
        self.completion_handler = self._find_handler

    @property
    def ready(self) -> bool:
        """Whether clients may send requests here: all pools' members were listed once, and their caches loaded.

        Later a new pool, or one without replicas, does not make the others unavailable.
        """
        if not self._informed:
            self._informed = all(pool.informed for pool in self.pools.values())
        return self.keeps_alive and self._informed

    def served(self, tenant: Tenant | None = None) -> list[str]:
        """Returns the model names that the tenant may use; without a tenant those that anyone may."""
        return sorted(name for name in self.routes if self._serves(name, tenant))

    def _serves(self, name: str, tenant: Tenant | None) -> bool:
        """Whether a pool of the model is there and lets the tenant use it."""
        pools = [self.pools[pool] for pool, _ in self.routes[name].shares if pool in self.pools]
        return any(tenant is None or pool.quotas.allows(tenant.name, name) for pool in pools)

    @property
    def most_values(self) -> int:
        """The values that a body may have, of the pool that allows most."""
        return max((pool.reader.most_values for pool in self.pools.values()), default=MAX_VALUES)

    def unknown(self, name: str, tenant: Tenant | None = None) -> RequestError:
        """Returns the error for a model name without a pool that serves it to the tenant."""
        shares = self.routes[name].shares if name in self.routes else ()
        if (pool := next((pool for pool, _ in shares if pool not in self.pools), None)) is not None:
            why = "the router's log has the reason" if pool in self.broken else "it is new"
            message = f"The pool {pool} of the model {name!r} is not available yet: {why}."
            return RequestError(503, message, code="pool_unavailable", retry_after=10)
        served = [repr(known) for known in self.served(tenant)]
        more = f" and {len(served) - _MAX_NAMES} more (GET /v1/models)" if len(served) > _MAX_NAMES else ""
        known = f"this gateway serves {', '.join(served[:_MAX_NAMES])}{more}"
        if not served:
            known = "this key may use no model" if self.served() else "this gateway serves no pool"
        message = f"The model {name[:128]!r} does not exist here; {known}."
        return RequestError(404, message, code="model_not_found", param="model")

    # -- start and end ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Still serves requests, but is not ready."""
        self.leaving = True
        for pool in self.pools.values():
            pool.leaving = True

    def close(self) -> None:
        """Takes no further request."""
        self.serving = False
        for pool in self.pools.values():
            pool.serving = False

    def turn_away(self) -> None:
        """Ends the requests that wait for a replica."""
        for pool in (*self.pools.values(), *self.ending):
            pool.turn_away_waiting()

    def sweep(self) -> None:
        super().sweep()
        for pool in (*self.pools.values(), *self.ending):
            pool.sweep()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _find_handler(self, request: Request, connection: DownstreamConnection) -> Handler:
        try:
            return self._dispatch(request, connection)
        except RequestError as error:
            return _Refused(self, request, connection, error)
        except Exception:
            log.exception("finding a request's pool failed")
            return _Refused(self, request, connection, internal())

    def control_handler(self, request: Request, connection: DownstreamConnection) -> Handler:
        path, _, query = request.target.partition(b"?")
        if query and path.startswith(POOL_PATHS):
            name = parse_qs(query.decode("latin-1")).get("pool", [""])[-1]
            if name in self.pools:
                return self.pools[name].control_handler(request, connection)
        return AsgiRequest(self._application, request, connection, self._loop, self.log_access)

    def _dispatch(self, request: Request, connection: DownstreamConnection) -> Handler:
        self.authenticate(request)
        if not self.serving:
            raise overloaded("The router is shutting down.")
        in_flight = sum(len(pool.in_flight) for pool in self.pools.values()) - len(self.copies)
        if in_flight >= self.limits.max_in_flight:
            raise overloaded("Too many requests are in flight.")
        call = None if request.reservation is not None else response_call(request.method, request.target)
        if call is not None:
            return self._home_of(call.name, request.tenant).handler(request, connection)
        boundary = check_media_type(request)
        steps: Steps[Any] = (
            read_form(request.body, boundary) if boundary else parse_steps(request.body, self.most_values)
        )
        if request.size > LARGE:
            return _FindPool(self, request, connection, steps)
        return self.pool_handler(request, connection, run_now(steps))

    def _home_of(self, response: str, tenant: Tenant | None) -> PoolRouter:
        """Returns the pool that stores the tenant's response. Raises RequestError without one."""
        home = next((pool for pool in self.pools.values() if pool.stores(response, tenant)), None)
        if home is None:
            raise response_not_found(response)
        return home

    def pool_handler(
        self, request: Request, connection: DownstreamConnection, parsed: Mapping[str, Any] | Form
    ) -> Handler:
        """Returns the handler of the pool that serves the request's model. Raises RequestError without such a pool."""
        body: Mapping[str, Any] = {"input": parsed.tail, **parsed.given} if isinstance(parsed, Form) else parsed
        name = body.get("model")
        if name is None:
            raise bad_field("model", "it is missing.", code="missing_field")
        if not isinstance(name, str):
            raise bad_field("model", "it must be a string.", code="invalid_type")
        pool = self._choose(name, request, body)
        if pool is None:
            raise self.unknown(name, request.tenant)
        request.parsed = parsed
        return pool.handler(request, connection)

    def _choose(self, name: str, request: Request, body: Mapping[str, Any]) -> PoolRouter | None:
        """Returns the pool that gets the request; None without one."""
        route = self.routes.get(name)
        if route is None or (route.is_direct and not route.mirror):
            return self.pools.get(route.shares[0][0]) if route is not None else None
        key = conversation_key(request.tenant.name if request.tenant is not None else "", body)
        chosen = self._storing(name, request, body)
        if chosen is None:
            chosen = choose(self.routes, name, key, self._available)
        if chosen in self.pools and not route.is_direct:
            self.routed[name, chosen] += 1
        mirror = copy_for(route, name, key, chosen)
        if mirror and may_be_copied(request.target.partition(b"?")[0], body):
            self.copies.plan(request, name, mirror)
        return self.pools.get(chosen)

    def _storing(self, name: str, request: Request, body: Mapping[str, Any]) -> str | None:
        """Returns the pool that stores the response which this request continues, also one of a fallback."""
        previous = body.get("previous_response_id")
        if not isinstance(previous, str):
            return None
        led = (pool for route in fallbacks(self.routes, name) for pool, _ in route.shares)
        there = [pool for pool in led if pool in self.pools]
        return next((pool for pool in there if self.pools[pool].stores(previous, request.tenant)), None)

    def _available(self, name: str) -> bool:
        """Whether the pool has a replica, or gets its first one while requests wait in its queue."""
        pool = self.pools.get(name)
        if pool is None:
            return False
        warming = all(replica.member.state is MemberState.WARMING for replica in pool.fleet)
        return (pool.wait_queue.enabled and warming) or bool(pool.fleet.candidates(monotonic()))


class _FindPool:
    """A `Handler` of a large completion: parses its body in slices, then hands it to its pool's handler. steps: parse
    the body."""

    def __init__(
        self, dispatcher: PoolDispatcher, request: Request, client: DownstreamConnection, steps: Steps[Any]
    ) -> None:
        self._steps = steps
        self._dispatcher = dispatcher
        self._request = request
        self._client = client
        self._work: SlicedWork | None = None
        self._handler: Handler | None = None
        self._paused = False

    @property
    def answering(self) -> bool:
        return self._handler is not None and self._handler.answering

    def start(self) -> None:
        slicer, sender = self._dispatcher.time_slicer, self._request.sender
        self._work = slicer.add(self._request.size, self._steps, self._parsed, tenant=sender)

    def pause(self) -> None:
        self._paused = True
        if self._handler is not None:
            self._handler.pause()

    def resume(self) -> None:
        self._paused = False
        if self._handler is not None:
            self._handler.resume()

    def abort(self) -> None:
        if self._work is not None:
            self._work.cancel()
        if self._handler is not None:
            self._handler.abort()

    def _parsed(self, body: Mapping[str, Any] | Form | None, error: Exception | None) -> None:
        self._work = None
        handler = self._handler = self._find(body, error)
        handler.start()
        if self._paused:
            handler.pause()

    def _find(self, body: Mapping[str, Any] | Form | None, error: Exception | None) -> Handler:
        dispatcher, request, client = self._dispatcher, self._request, self._client
        try:
            if error is not None:
                raise error
            return dispatcher.pool_handler(request, client, body or {})
        except RequestError as wrong:
            return _Refused(dispatcher, request, client, wrong)
        except Exception:
            log.exception("finding a request's pool failed")
            return _Refused(dispatcher, request, client, internal())


class _Refused:
    """A `Handler` that refuses a completion without a pool."""

    def __init__(
        self, dispatcher: PoolDispatcher, request: Request, client: DownstreamConnection, error: RequestError
    ) -> None:
        self._dispatcher = dispatcher
        self._request = request
        self._client = client
        self._error = error

    @property
    def answering(self) -> bool:
        return False  # the answer is written at once

    def start(self) -> None:
        port, request, error = self._dispatcher, self._request, self._error
        port.metrics.requests += 1
        port.count_error(error)
        request_id = request.id
        port.log_access(request, error.status, requestId=request_id, error=error.code or "other", outcome="Failed")
        self._client.respond(
            error.status,
            error.headers(request_id),
            error.body(request.target),
            keep_alive=request.keep_alive and port.keeps_alive,
        )

    def pause(self) -> None:
        return  # the answer is complete and small

    def resume(self) -> None:
        return

    def abort(self) -> None:
        return
