"""A client for the directory's server, by URL.

| URL                                                    | server                                     |
|--------------------------------------------------------|--------------------------------------------|
| `unix:///run/directory.sock`                           | local mode: a Unix socket, no TCP port     |
| `redis://user:password@host:6379/0`                    | one server                                 |
| `rediss://host:6380?ssl_ca_certs=/etc/ca.pem`          | the same over TLS                          |
| `redis+cluster://host:6379,host2:6379`                 | a Cluster (`rediss+cluster://` with TLS)   |
| `redis+sentinel://host:26379,host2:26379/mymaster`     | the primary that Sentinels name (`rediss+sentinel://`) |

User and password are the server's ACL user; characters that URLs reserve are percent-encoded. Options after `?` are
redis-py's (`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`, `db`, …) and two of our own, `password_file`
and `password_user` (see `client.credential_files`). Sentinels get the same TLS options. They get no user, unless
`sentinel_username` and `sentinel_password` are given.

An ACL user for Plumage needs only `~plumage:* -@all +get +set +incrby +expire +pexpire +unlink +hset +hdel +hget
+hmget +hgetall +xadd +xtrim +xrange +xrevrange +xread +xinfo|stream +info +ping` (in a Cluster also `+cluster
+command`).

The client does not retry: its user knows which commands may be repeated, and backs off. `TIMEOUT` bounds each wait.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from plumage.directory.client.credential_files import reload_ca_file, split_file_options
from plumage.errors import ConfigurationError

__all__ = ["TIMEOUT", "UNAVAILABLE", "Client", "close", "connect", "error_text", "redacted"]

Client: TypeAlias = "Redis | RedisCluster"

TIMEOUT = 5.0  # seconds for a connection, and for a reply
UNAVAILABLE = (RedisError, OSError, TimeoutError)  # errors of a server that is slow, absent or refuses a command
SCHEMES = ("unix", "redis", "rediss")
SHOWN = 300  # characters of an error
FORMS = "unix:///path, redis://host:port, rediss://…, redis+cluster://host:port,…, redis+sentinel://host:port,…/name"

_ENCODE = "percent-encode : / ? # [ ] @ in user and password"
_SCHEME = re.compile(r"[A-Za-z+]*")
_PLAIN = re.compile(r"[\w.-]*")
_COMMAND = re.compile(r"Command # \d+ .* of pipeline caused error: ", re.DOTALL)
_OPTIONS = re.compile(r"[?#].*", re.DOTALL)


def connect(url: str) -> Client:
    """A client that connects at its first command.

    ConfigurationError: the URL is invalid. Its message is our own, because the libraries quote the URL with the
    password."""
    scheme, _, kind = url.partition("://")[0].lower().partition("+")
    if scheme not in SCHEMES or kind not in ("", "cluster", "sentinel") or (scheme == "unix" and kind):
        raise ConfigurationError(f"directory URL {redacted(url)!r} has no known form; use one of: {FORMS}")
    try:
        _refuse_reserved(url, scheme)
        plain, more = split_file_options(url)
        client = {"cluster": _cluster, "sentinel": _sentinel}.get(kind, _single)(plain, scheme, more)
        reload_ca_file(client)
        return client
    except _UnusableUrlError as error:
        reason = str(error)
    except (TypeError, ValueError, RedisError):
        reason = _likely_mistake(url)
    raise ConfigurationError(f"directory URL {redacted(url)!r}: {reason}")


async def close(client: Client) -> None:
    """Close a client and the clients of its Sentinels. An unavailable server is no error."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for one in (client, *(manager.sentinels if manager is not None else ())):
        with contextlib.suppress(*UNAVAILABLE):
            await one.aclose()


def redacted(url: str) -> str:
    """The URL without its password and options, for logs and errors. It works on the text alone: a parser would
    misread a password that is not percent-encoded."""
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        scheme, separator, rest = "", "", url
    credentials, at, shown = rest.rpartition("@")
    if "?" in credentials:  # the @ may be in an option's value, and a secret may follow it
        return f"{scheme}{separator}***"
    user, colon, _ = credentials.partition(":")
    known = user if colon and _PLAIN.fullmatch(user) else ""
    return f"{scheme}{separator}{f'{known}:***@' if at else ''}{_OPTIONS.sub('', shown)}"


def error_text(error: BaseException) -> str:
    """The server's error for the log: without the command that redis-py prepends, and with printable characters
    only."""
    said = _COMMAND.sub("", str(error))[:SHOWN]
    return "".join(character if character.isprintable() else "?" for character in said) or type(error).__name__


class _UnusableUrlError(ValueError):
    """An invalid URL. The message holds no secret."""


def _refuse_reserved(url: str, scheme: str) -> None:
    """Refuse `/` and `#` in credentials: parsers would take the beginning of the password for the host."""
    credentials = url.partition("://")[2].partition("?")[0].rpartition("@")[0]
    if scheme != "unix" and ("/" in credentials or "#" in credentials):
        raise _UnusableUrlError(_ENCODE)


def _likely_mistake(url: str) -> str:
    """A hint. The messages of the libraries may hold secrets."""
    _, mark, options = url.partition("?")
    if not mark or "@" in options:
        return f"its host, port or path can't be read; write host:port, and {_ENCODE}"
    names = ", ".join(option.partition("=")[0] for option in options.split("&") if "=" in option)
    return f"one of its options is unknown or has a wrong value: {names}; or {_ENCODE}"


def _single(url: str, scheme: str, more: Mapping[str, Any]) -> Client:
    client: Redis = Redis.from_url(url, **_common(), **more, retry=Retry(NoBackoff(), 0))
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)  # an unknown option fails here, not at the first command
    return client


def _common() -> dict[str, Any]:
    """RESP2: its replies have the same shape in all versions of redis-py."""
    return {"protocol": 2, "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}


def _cluster(url: str, scheme: str, more: Mapping[str, Any]) -> Client:
    options, hosts = _split(url, scheme, 6379)
    nodes = [ClusterNode(host, port) for host, port in hosts]
    return RedisCluster(startup_nodes=nodes, **options, **_common(), **more)


def _sentinel(url: str, scheme: str, more: Mapping[str, Any]) -> Client:
    options, hosts = _split(url, scheme, 26379)
    name = urlsplit(url).path.strip("/").partition("/")[0]
    if not name:
        raise _UnusableUrlError("name the primary after the hosts, as in redis+sentinel://host:26379/mymaster")
    options.pop("db", None)
    asking = {key: value for key, value in options.items() if key.startswith("ssl")}
    for key in ("username", "password"):
        if f"sentinel_{key}" in options:
            asking[key] = options.pop(f"sentinel_{key}")
    retry = Retry(NoBackoff(), 0)
    common = {**_common(), "retry": retry}
    asked = {**asking, **common}
    sentinels = Sentinel(hosts, sentinel_kwargs=asked, **options, **common, **more)  # type: ignore[no-untyped-call]
    master: Redis = sentinels.master_for(name)
    return master


def _split(url: str, scheme: str, default_port: int) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Options and hosts of a URL with several hosts; `parse_url` supports one only."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    names = [_host(text, default_port) for text in hosts.split(",") if text]
    if not names:
        raise _UnusableUrlError("it names no host")
    options: dict[str, Any] = dict(parse_url(urlunsplit((scheme, f"{credentials}{at}host", "", parts.query, ""))))
    options.pop("host", None)
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return options, names


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = urlsplit(f"//{text}")
    if not found.hostname:
        raise _UnusableUrlError("one of its hosts is no host:port")
    return found.hostname, found.port or default_port
