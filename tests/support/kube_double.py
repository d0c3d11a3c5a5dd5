"""A fake API server whose answers a test sets, for what a real one does rarely or on no request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from plumage_operator.kube.client import KubeClient

__all__ = ["answered_by"]


@asynccontextmanager
async def answered_by(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[KubeClient]:
    """The operator's client of a server that answers every request this way."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as serving:
        configuration = Configuration()
        configuration.host = str(serving.make_url("")).rstrip("/")
        async with KubeClient(configuration) as api:
            yield api
