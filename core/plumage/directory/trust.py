"""The authority of a directory's certificate from a file that is rotated: read at each connection.

redis-py makes a connection's TLS settings once, and its pools open the same connection again and again: an authority
that changed would be refused for as long as the process lives.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.connection import SSLConnection

__all__ = ["trust_anew"]


def trust_anew(client: Any) -> None:
    """Make a client that was not used yet read its TLS files at each connection; one without TLS is left as it is."""
    if isinstance(client, RedisCluster):
        _trust_anew_in_cluster(client)
        return
    pool = client.connection_pool
    if issubclass(pool.connection_class, SSLConnection):
        pool.connection_class = _reading(pool.connection_class)
    for asked in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        trust_anew(asked)


def _trust_anew_in_cluster(client: Any) -> None:
    """The nodes that are named, and by the client's settings those that it will find."""
    kind = client.connection_kwargs.get("connection_class")
    if kind is None or not issubclass(kind, SSLConnection):
        return
    client.connection_kwargs["connection_class"] = _reading(kind)
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = _reading(kind)


@cache
def _reading(kind: Any) -> Any:
    class Reading(kind):  # type: ignore[misc]  # untyped upstream
        def _connection_arguments(self) -> Any:
            self.ssl_context.context = None
            return super()._connection_arguments()

    return Reading
