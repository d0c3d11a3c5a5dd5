"""Every form of a directory URL, and the errors for other text."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from plumage.directory.client.connection import connect, error_text, redacted
from plumage.errors import ConfigurationError


async def test_single_server_by_socket_tcp_and_tls() -> None:
    unix = connect("unix:///run/directory.sock")
    assert isinstance(unix, Redis)
    assert unix.connection_pool.connection_kwargs["path"] == "/run/directory.sock"
    tcp = connect("redis://agent:p%40ss@host:7000/2")
    assert isinstance(tcp, Redis)
    wanted = {"username": "agent", "password": "p@ss", "host": "host", "port": 7000, "db": 2}
    assert wanted.items() <= tcp.connection_pool.connection_kwargs.items()
    tls = connect("rediss://host?ssl_ca_certs=/etc/ca.pem")
    assert isinstance(tls, Redis)
    assert tls.connection_pool.connection_kwargs["ssl_ca_certs"] == "/etc/ca.pem"


async def test_cluster_takes_several_hosts_and_tls() -> None:
    cluster = connect("rediss+cluster://u:p@a:7000,b:7001,[::1]:7002?ssl_ca_certs=/etc/ca.pem")
    assert isinstance(cluster, RedisCluster)
    nodes = {(node.host, node.port) for node in cluster.nodes_manager.startup_nodes.values()}
    assert nodes == {("a", 7000), ("b", 7001), ("::1", 7002)}
    assert cluster.connection_kwargs["username"] == "u"
    assert cluster.connection_kwargs["ssl_ca_certs"] == "/etc/ca.pem"


async def test_sentinels_have_their_own_user() -> None:
    master = connect("redis+sentinel://u:p@a,b:26380/mymaster?sentinel_password=s")
    assert isinstance(master, Redis)
    pool = master.connection_pool
    assert pool.service_name == "mymaster"
    sentinels = pool.sentinel_manager.sentinels
    options = [sentinel.connection_pool.connection_kwargs for sentinel in sentinels]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in options] == [("a", 26379), ("b", 26380)]
    assert {kwargs.get("password") for kwargs in options} == {"s"}
    assert pool.connection_kwargs["password"] == "p"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host", "no known form"),
        ("host:6379", "no known form"),
        ("unix+cluster:///x", "no known form"),
        ("redis+sentinel://host:26379", "name the primary"),
        ("redis+cluster://", "names no host"),
        ("redis://host:port", "host:port"),
        ("redis://host?no_such_option=1", "no_such_option"),
        ("redis://host?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_bad_url_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        connect(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss+cluster://agent:secret@a:1,b:2/0?sentinel_password=other", "rediss+cluster://agent:***@a:1,b:2/0"),
        ("redis://host:6379/0?password=secret", "redis://host:6379/0"),
        ("unix:///run/directory.sock?password=secret", "unix:///run/directory.sock"),
        ("redis://:s3cr/et@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://:s3cr#et@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://:s3cr@et@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://user:s3c://r@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://s3cret@host:6379", "redis://:***@host:6379"),
        ("redis://s3c/ret:x@host:6379", "redis://:***@host:6379"),
        ("redis://:s3cr?et@host:6379/0", "redis://***"),
        ("redis://host:6379/0?password=s3c@ret", "redis://***"),
        ("redis://u:p@host?password=s3c@ret", "redis://***"),
        (":s3cret@host:6379", ":***@host:6379"),
        (":s3cret@x://host:6379", ":***@x://host:6379"),
    ],
)
def test_shown_url_has_no_secret(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel", "http", "unix"])
@pytest.mark.parametrize("host", ["host:no", "[host", "a,b:c/m?db=x", "host?no_such_option=1"])
@pytest.mark.parametrize("reserved", ["/", "?", "#", "@", "[", "]", ":", "&", "=", "?x=", "://"])
def test_no_error_shows_a_part_of_a_password(scheme: str, host: str, reserved: str) -> None:
    """Also for a password that is not percent-encoded."""
    error = _refusal(f"{scheme}://user:LEFT{reserved}RIGHT@{host}")
    if error is not None:
        assert "LEFT" not in str(error)
        assert "RIGHT" not in str(error)
        assert error.__context__ is None, "a log would show it"


@pytest.mark.parametrize("kind", ["", "+cluster", "+sentinel"])
@pytest.mark.parametrize("reserved", ["/", "#"])
def test_half_a_password_is_never_used_as_a_host(kind: str, reserved: str) -> None:
    error = _refusal(f"redis{kind}://LEFT{reserved}RIGHT@host:6379/m")
    assert "percent-encode" in str(error)


def _refusal(url: str) -> ConfigurationError | None:
    try:
        connect(url)
    except ConfigurationError as error:
        return error
    return None


def test_server_error_is_logged_without_command_and_data() -> None:
    refused = ResponseError(
        "Command # 1 (XADD plumage:v1:{p}:hotness * d \x93\x01\n) of pipeline caused error: ('OOM',)"
    )
    assert error_text(refused) == "('OOM',)"
    assert error_text(ResponseError("a\x00b\x1b[31m" + "c" * 1000)) == "a?b?[31m" + "c" * 292
    assert error_text(TimeoutError()) == "TimeoutError"
