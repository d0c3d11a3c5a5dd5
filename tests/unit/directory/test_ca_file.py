"""Every kind of client reads the authority's file at each connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.certificates import Authority
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection

from plumage.directory.client.connection import connect


def connections(client: Any) -> Iterator[Any]:
    """One of each kind that the client would open."""
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        found_later = ClusterNode("j", 3, **client.connection_kwargs)
        for node in (*manager.startup_nodes.values(), found_later):
            yield node.connection_class(**node.connection_kwargs)
        return
    pool = client.connection_pool
    yield pool.connection_class(**pool.connection_kwargs)
    for asked in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        yield from connections(asked)


@pytest.mark.parametrize(
    ("url", "kinds"),
    [("rediss://h:1", 1), ("rediss+cluster://h:1,i:2", 3), ("rediss+sentinel://h:1,i:2/name", 3)],
)
def test_current_file_is_trusted(url: str, kinds: int, tmp_path: Path) -> None:
    authorities = [Authority.create("old"), Authority.create("new")]
    authorities[0].write(tmp_path, "ca")
    found = list(connections(connect(f"{url}?ssl_ca_certs={tmp_path / 'ca.crt'}")))
    assert len(found) == kinds
    for name, authority in zip(("old", "new"), authorities, strict=True):
        authority.write(tmp_path, "ca")
        for connection in found:
            assert isinstance(connection, SSLConnection)
            (own,) = [one for one in trusted(connection) if one in ("old", "new")]
            assert own == name


def trusted(connection: Any) -> list[str]:
    listed = connection._connection_arguments()["ssl"].get_ca_certs()
    return [value for one in listed for part in one["subject"] for key, value in part if key == "commonName"]
