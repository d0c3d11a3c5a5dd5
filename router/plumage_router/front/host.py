"""The entrance of several pools: finds the pool that a completion is for, by the `model` of its body.

Contract: a name leads to one pool or to none, and a request for none is told which there are (404, `model_not_found`).
The body is parsed once, here; all else that a request needs is its pool's: limits, time, replicas, metrics. What fails
before a pool is found is counted here. A pool that has gone ends what is under way there and gets nothing new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from plumage_router.auth import Auth
from plumage_router.body import parse_body, parse_steps
from plumage_router.bridge import Application, BridgedRequest
from plumage_router.client import ClientConnection
from plumage_router.entrance import Entrance, is_completion
from plumage_router.errors import RequestError, bad_field, internal, overloaded
from plumage_router.front.config import FrontConfig
from plumage_router.gateway import Gateway
from plumage_router.pieces import LARGE, Work
from plumage_router.request import Handler, Request

__all__ = ["POOL_PATHS", "Front"]

log = logging.getLogger(__name__)

POOL_PATHS: Final = (b"/plumage/v1/", b"/v1/plumage/")
"""What is asked of one pool, by `?pool=NAME`."""
TOLD: Final = 32  # names in an error


class Front(Entrance):
    """`gateways`: those that serve, by pool. `names`: pools by the names that clients use. `broken`: why a pool of the
    configuration is not served. `ending`: gateways that got what is under way and no more."""

    def __init__(
        self,
        config: FrontConfig,
        auth: Auth,
        *,
        name: str,
        application: Callable[[Front], Application],
        pause_accepting: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            config.limits,
            config.timeouts,
            auth,
            access_log=config.access_log,
            pause_accepting=pause_accepting,
            loop=loop,
        )
        self.title = config.gateway
        self.name = name
        self.gateways: dict[str, Gateway] = {}
        self.names: dict[str, str] = {}
        self.broken: dict[str, str] = {}
        self.ending: set[Gateway] = set()
        self._listed = False
        self._application = application(self)

    @property
    def ready(self) -> bool:
        """May clients be sent here? Once all pools' members were listed; later a pool that is new, or has no replica,
        takes nothing from the others."""
        if not self._listed:
            self._listed = all(gateway.membership.listed for gateway in self.gateways.values())
        return self.keeps_alive and self._listed

    def handler(self, request: Request, connection: ClientConnection) -> Handler:
        if not is_completion(request):
            return self._control(request, connection)
        try:
            return self._dispatch(request, connection)
        except RequestError as error:
            return _Refused(self, request, connection, error)
        except Exception:
            log.exception("finding a request's pool failed")
            return _Refused(self, request, connection, internal())

    @property
    def served(self) -> list[str]:
        """Names that clients may ask for."""
        return sorted(name for name, pool in self.names.items() if pool in self.gateways)

    def unknown(self, name: str) -> RequestError:
        """Nobody serves a model of that name."""
        if (pool := self.names.get(name)) is not None:
            why = "the router's log says why" if pool in self.broken else "it is new"
            message = f"The pool {pool} of the model {name!r} can't be served yet: {why}."
            return RequestError(503, message, code="pool_unavailable", retry_after=10)
        served = [repr(known) for known in self.served]
        more = f" and {len(served) - TOLD} more (GET /v1/models)" if len(served) > TOLD else ""
        told = f"this gateway serves {', '.join(served[:TOLD])}{more}" if served else "this gateway serves no pool"
        message = f"The model {name[:128]!r} does not exist here; {told}."
        return RequestError(404, message, code="model_not_found", param="model")

    def leave(self) -> None:
        """Serves on, and wants nobody new."""
        self.leaving = True
        for gateway in self.gateways.values():
            gateway.leaving = True

    def close(self) -> None:
        """Takes no request any more."""
        self.serving = False
        for gateway in self.gateways.values():
            gateway.serving = False

    def turn_away(self) -> None:
        """Those that wait for a replica are told to come back."""
        for gateway in (*self.gateways.values(), *self.ending):
            gateway.hold.close()

    def sweep(self) -> None:
        """One tick, of all pools."""
        super().sweep()
        for gateway in (*self.gateways.values(), *self.ending):
            gateway.sweep()

    def _control(self, request: Request, connection: ClientConnection) -> Handler:
        path, _, query = request.target.partition(b"?")
        if query and path.startswith(POOL_PATHS):
            asked = parse_qs(query.decode("latin-1")).get("pool", [""])[-1]
            if asked in self.gateways:
                return self.gateways[asked].answer(request, connection)
        return BridgedRequest(self._application, request, connection, self._loop, self.log_access)

    def _dispatch(self, request: Request, connection: ClientConnection) -> Handler:
        self.authenticate(request)
        if not self.serving:
            raise overloaded("The router is shutting down.")
        if sum(len(gateway.flights) for gateway in self.gateways.values()) >= self.limits.max_in_flight:
            raise overloaded("Too many requests are under way.")
        self.check_media_type(request)
        if len(request.body) > LARGE:
            return _Finding(self, request, connection)
        return self.to_pool(request, connection, parse_body(request.body))

    def to_pool(self, request: Request, connection: ClientConnection, body: Mapping[str, Any]) -> Handler:
        """The handler of the pool that the request is for, or RequestError."""
        return self._of(body).take(request, connection, body)

    def _of(self, body: Mapping[str, Any]) -> Gateway:
        name = body.get("model")
        if name is None:
            raise bad_field("model", "it is missing.", code="missing_field")
        if not isinstance(name, str):
            raise bad_field("model", "it must be a string.", code="invalid_type")
        gateway = self.gateways.get(self.names.get(name, ""))
        if gateway is None:
            raise self.unknown(name)
        return gateway


class _Finding:
    """A `Handler` of a large completion: its body is parsed in pieces, then it is its pool's."""

    def __init__(self, front: Front, request: Request, client: ClientConnection) -> None:
        self._front = front
        self._request = request
        self._client = client
        self._work: Work | None = None
        self._handler: Handler | None = None
        self._paused = False

    @property
    def answering(self) -> bool:
        return self._handler is not None and self._handler.answering

    def start(self) -> None:
        body = self._request.body
        self._work = self._front.pieces.add(len(body), parse_steps(body), self._parsed)

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

    def _parsed(self, body: dict[str, Any] | None, error: Exception | None) -> None:
        self._work = None
        handler = self._handler = self._found(body, error)
        handler.start()
        if self._paused:
            handler.pause()

    def _found(self, body: dict[str, Any] | None, error: Exception | None) -> Handler:
        front, request, client = self._front, self._request, self._client
        try:
            if error is not None:
                raise error
            return front.to_pool(request, client, body or {})
        except RequestError as wrong:
            return _Refused(front, request, client, wrong)
        except Exception:
            log.exception("finding a request's pool failed")
            return _Refused(front, request, client, internal())


class _Refused:
    """A `Handler` of a completion that no pool gets."""

    def __init__(self, front: Front, request: Request, client: ClientConnection, error: RequestError) -> None:
        self._front = front
        self._request = request
        self._client = client
        self._error = error

    @property
    def answering(self) -> bool:
        return False  # the answer is written at once

    def start(self) -> None:
        front, request, error = self._front, self._request, self._error
        front.metrics.requests += 1
        front.count_error(error)
        request_id = front.request_id(request)
        front.log_access(request, error.status, requestId=request_id, error=error.code or "other", outcome="Failed")
        headers = front.error_headers(error, request_id)
        self._client.respond(error.status, headers, error.body(), keep_alive=request.keep_alive and front.keeps_alive)

    def pause(self) -> None:
        return  # the answer is whole and small

    def resume(self) -> None:
        return

    def abort(self) -> None:
        return
