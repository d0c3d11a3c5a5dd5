"""A client for the directory's server, by URL.

| URL                                                    | server                                     |
|--------------------------------------------------------|--------------------------------------------|
| `unix:///run/directory.sock`                           | local mode: a Unix socket, no TCP port     |
| `redis://user:password@host:6379/0`                    | one server                                 |
| `rediss://host:6380?ssl_ca_certs=/etc/ca.pem`          | the same over TLS                          |
| `redis+cluster://host:6379,host2:6379`                 | a Cluster (`rediss+cluster://` with TLS)   |
| `redis+sentinel://host:26379,host2:26379/mymaster`     | the primary that Sentinels name (`rediss+sentinel://`) |

User and password are the server's ACL user; characters that URLs reserve are percent-encoded. Options after `?` are
redis-py's (`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`, `db`, …). Sentinels are asked with the same
TLS options and without the user, unless `sentinel_username` and `sentinel_password` are given.

A user of its own needs no more than `~plumage:* -@all +get +set +incrby +expire +pexpire +unlink +hset +hget +hmget
+hgetall +xadd +xtrim +xrange +xrevrange +xread +xinfo|stream +info +ping` (in a Cluster also `+cluster +command`).

The client does not retry by itself: whoever uses it backs off in its own way and knows what a repetition means. Waits
are bounded by `TIMEOUT`.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from plumage.errors import ConfigurationError

__all__ = ["AWAY", "TIMEOUT", "Client", "close", "connect", "redacted"]

Client: TypeAlias = "Redis | RedisCluster"

TIMEOUT = 5.0  # seconds for a connection, and for a reply
AWAY = (RedisError, OSError, TimeoutError)  # what a server that is slow, away or unwilling looks like
SCHEMES = ("unix", "redis", "rediss")
FORMS = "unix:///path, redis://host:port, rediss://…, redis+cluster://host:port,…, redis+sentinel://host:port,…/name"


def connect(url: str) -> Client:
    """A client that connects at its first command. ConfigurationError says what is wrong with the URL."""
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    if scheme not in SCHEMES or kind not in ("", "cluster", "sentinel") or (scheme == "unix" and kind):
        raise ConfigurationError(f"directory URL {redacted(url)!r} has no known form; use one of: {FORMS}")
    try:
        if kind == "cluster":
            return _cluster(url, scheme)
        if kind == "sentinel":
            return _sentinel(url, scheme)
        client: Redis = Redis.from_url(url, **_common(), retry=Retry(NoBackoff(), 0))
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # an unknown option shows here, not at the first command
        return client
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"directory URL {redacted(url)!r}: {error}") from error


async def close(client: Client) -> None:
    """Close a client, and those that ask its Sentinels; a server that is away is no reason to fail."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for one in (client, *(manager.sentinels if manager is not None else ())):
        with contextlib.suppress(*AWAY):
            await one.aclose()


def redacted(url: str) -> str:
    """The URL without its password and options: what may be shown and logged."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]
    return f"{parts.scheme}://{f'{user}:***@' if at else ''}{hosts}{parts.path}"


def _common() -> dict[str, Any]:
    """RESP2, because its replies have one shape in all versions of the client library."""
    return {"protocol": 2, "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}


def _cluster(url: str, scheme: str) -> Client:
    options, hosts = _split(url, scheme, 6379)
    nodes = [ClusterNode(host, port) for host, port in hosts]
    return RedisCluster(startup_nodes=nodes, **options, **_common())


def _sentinel(url: str, scheme: str) -> Client:
    options, hosts = _split(url, scheme, 26379)
    name = urlsplit(url).path.strip("/").partition("/")[0]
    if not name:
        raise ValueError("name the primary after the hosts, as in redis+sentinel://host:26379/mymaster")
    options.pop("db", None)
    asking = {key: value for key, value in options.items() if key.startswith("ssl")}
    for key in ("username", "password"):
        if f"sentinel_{key}" in options:
            asking[key] = options.pop(f"sentinel_{key}")
    retry = Retry(NoBackoff(), 0)
    common = {**_common(), "retry": retry}
    sentinels = Sentinel(hosts, sentinel_kwargs={**asking, **common}, **options, **common)  # type: ignore[no-untyped-call]
    master: Redis = sentinels.master_for(name)
    return master


def _split(url: str, scheme: str, default_port: int) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Options and hosts of a URL that names several hosts; `parse_url` knows one only."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    names = [_host(text, default_port) for text in hosts.split(",") if text]
    if not names:
        raise ValueError("it names no host")
    options: dict[str, Any] = dict(parse_url(urlunsplit((scheme, f"{credentials}{at}host", "", parts.query, ""))))
    options.pop("host", None)
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return options, names


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = urlsplit(f"//{text}")
    if not found.hostname:
        raise ValueError(f"{text!r} is no host:port")
    return found.hostname, found.port or default_port
