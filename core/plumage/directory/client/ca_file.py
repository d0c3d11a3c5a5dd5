"""The certificate authority of the directory, read from its file at each connection, so that it can be rotated.

redis-py makes the TLS settings of a connection once, and its pools open the same connection again. Without this module
a client would refuse a new authority until its process restarts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.connection import SSLConnection

__all__ = ["reload_ca_file"]


def reload_ca_file(client: Any) -> None:
    """Make an unused client read its TLS files at each connection. A client without TLS does not change."""
    if isinstance(client, RedisCluster):
        _reload_in_cluster(client)
        return
    pool = client.connection_pool
    if issubclass(pool.connection_class, SSLConnection):
        pool.connection_class = _reading(pool.connection_class)
    for asked in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        reload_ca_file(asked)


def _reload_in_cluster(client: Any) -> None:
    """The same for a Cluster: for the named nodes, and through the settings for nodes that it discovers."""
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
