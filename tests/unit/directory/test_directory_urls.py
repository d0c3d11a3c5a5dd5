"""Every form of a directory URL, and what is said about those that have none."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis, RedisCluster

from plumage.directory.connection import connect, redacted
from plumage.errors import ConfigurationError


async def test_one_server_by_socket_tcp_and_tls() -> None:
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


async def test_a_cluster_takes_several_hosts_and_tls() -> None:
    cluster = connect("rediss+cluster://u:p@a:7000,b:7001,[::1]:7002?ssl_ca_certs=/etc/ca.pem")
    assert isinstance(cluster, RedisCluster)
    nodes = {(node.host, node.port) for node in cluster.nodes_manager.startup_nodes.values()}
    assert nodes == {("a", 7000), ("b", 7001), ("::1", 7002)}
    assert cluster.connection_kwargs["username"] == "u"
    assert cluster.connection_kwargs["ssl_ca_certs"] == "/etc/ca.pem"


async def test_sentinels_are_asked_with_their_own_user() -> None:
    master = connect("redis+sentinel://u:p@a,b:26380/mymaster?sentinel_password=s")
    assert isinstance(master, Redis)
    pool = master.connection_pool
    assert pool.service_name == "mymaster"
    sentinels = pool.sentinel_manager.sentinels
    told = [sentinel.connection_pool.connection_kwargs for sentinel in sentinels]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in told] == [("a", 26379), ("b", 26380)]
    assert {kwargs.get("password") for kwargs in told} == {"s"}
    assert pool.connection_kwargs["password"] == "p"


@pytest.mark.parametrize(
    ("url", "says"),
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
def test_a_bad_url_says_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        connect(url)


def test_no_secret_is_shown() -> None:
    shown = redacted("rediss+cluster://agent:secret@a:1,b:2/0?sentinel_password=other")
    assert shown == "rediss+cluster://agent:***@a:1,b:2/0"
    with pytest.raises(ConfigurationError) as error:
        connect("redis://user:secret@host:no")
    assert "secret" not in str(error.value)
