"""Members, slots, available replicas; key files; hot prefixes; the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage.membership import parse_members
from plumage.settings.router_config import AuthConfig, BreakerConfig
from plumage_router.config import load_config
from plumage_router.fleet.breaker import Breaker
from plumage_router.fleet.engine_keys import SecretLine
from plumage_router.fleet.replicas import Fleet, Member, MemberState
from plumage_router.http.auth import Auth
from plumage_router.routing.decision_log import HotPrefixes


class _Pool:
    """Stands for connections, which these tests do not need."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def _fleet() -> Fleet:
    return Fleet(lambda member: _Pool(), lambda: Breaker(BreakerConfig()))  # type: ignore[arg-type, return-value]


def _members(*names: str) -> list[Member]:
    return [Member(name, f"http://10.0.0.1:{9000 + int(name[1:])}") for name in names]


def _slots(fleet: Fleet) -> dict[str, int]:
    return {replica.id: replica.slot for replica in fleet}


def test_slot_is_reused_after_last_request() -> None:
    fleet, freed = _fleet(), []
    fleet.listen(lambda replica, came: None if came else freed.append(replica.id))
    fleet.update(_members("a1", "a2", "a3"))
    busy = fleet.get("a2")
    assert busy is not None
    busy.load.routed = 1
    fleet.update(_members("a1", "a3"))
    assert _slots(fleet) == {"a1": 0, "a3": 2}
    fleet.update(_members("a1", "a3", "a4"))
    assert _slots(fleet)["a4"] == 3, "the slot of a2 still has a request"
    assert fleet.loads[1] is busy.load
    busy.load.routed = 0
    fleet.release(busy)
    fleet.release(busy)
    assert freed == ["a2"]
    fleet.update(_members("a1", "a3", "a4", "a5"))
    assert _slots(fleet)["a5"] == 1


def test_new_address_makes_new_replica() -> None:
    fleet = _fleet()
    fleet.update([Member("a", "http://10.0.0.1:1")])
    first = fleet.get("a")
    fleet.update([Member("a", "http://10.0.0.1:2")])
    assert first is not None
    assert first.gone
    assert fleet.get("a") is not first


def test_only_available_replicas_are_candidates() -> None:
    fleet = _fleet()
    members = _members("a1", "a2", "a3", "a4", "a5", "a6")
    fleet.update(
        [Member(m.id, m.url, None, MemberState.DRAINING if m.id == "a1" else MemberState.READY) for m in members]
    )
    replicas = {replica.id: replica for replica in fleet}
    replicas["a2"].draining = True
    replicas["a3"].stalled = True
    replicas["a4"].healthy = False
    replicas["a5"].breaker.failed(0.0, certain=True)
    fleet.changed()
    assert [load.name for load in fleet.candidates(0.1)] == ["a6"]
    assert fleet.candidates(0.1, [replicas["a6"]]) == []
    assert "1 of 6: its engine is stalled" in fleet.why_none(0.1)
    assert [load.name for load in fleet.candidates(1.0)] == ["a5", "a6"], "the breaker moves by the clock alone"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "other"}, "pool 'other'"),
        ({"replicas": [{"id": "a", "url": "ftp://x"}]}, "http://HOST:PORT"),
        ({"replicas": [{"id": "a", "url": "http://x:99999"}]}, "http://HOST:PORT"),
        ({"replicas": [{"id": "a", "url": "http://x:80/some/path"}]}, "alone; it has a path"),
        ({"replicas": [{"id": "a", "url": "http://x:80/?q=1#f"}]}, "it has a query and a fragment"),
        ({"replicas": [{"id": "a", "url": "http://user:word@x:80"}]}, "it has user info$"),
        ({"replicas": [{"id": "a", "url": "http://x"}] * 2}, "same id"),
        ({"replicas": [{"id": "a", "url": "http://x", "state": "Odd"}]}, "state"),
        ({"replicas": 3}, "replicas"),
    ],
)
def test_invalid_membership_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_members(json.dumps({"pool": "chat", "replicas": [], **change}).encode(), "chat")


def test_newer_membership_may_have_more_fields() -> None:
    text = b'{"pool":"chat","more":1,"replicas":[{"id":"a","url":"http://[::1]:80","role":"both"}]}'
    assert parse_members(text, "chat")[0].address() == ("::1", 80)
    assert Member("a", "http://x:81/").address() == ("x", 81)
    assert Member("a", "https://x").address() == ("x", 443)


def test_keys_file_names_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("acme k1\nacme k2\nk3\n")
    auth = Auth(AuthConfig(api_keys_file=file))
    tenants = [auth.tenant({b"authorization": b"bearer " + key}) for key in (b"k1", b"k2", b"k3", b"k4")]
    assert tenants[0] == tenants[1]
    assert tenants[3] is None
    with pytest.raises(ConfigurationError, match="cannot read"):
        Auth(AuthConfig(api_keys_file=tmp_path / "none"))


def test_secret_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for text, message in (("", "is empty"), ("\n", "is empty"), ("a\nb\n", "single line"), ("a", "line break")):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            SecretLine(file, "a key").read()


def test_hot_prefix_stays_in_bounded_memory() -> None:
    hottest = HotPrefixes(capacity=64)
    for number in range(5000):
        hottest.count(number, 10)
        hottest.count(1 << 63, 640)
    top = hottest.top(3)
    assert top[0]["chunk"] == "8000000000000000"
    assert top[0]["tokens"] == 640
    assert len(hottest.top(1000)) <= 64


def test_invalid_configuration_names_every_error(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    file.write_text('{"pool":"chat","listen":{"port":70000},"surprise":1,"model":{"name":"m"}}')
    with pytest.raises(ConfigurationError) as refused:
        load_config(file)
    for path in ("listen.port", "surprise", "model.modelFolder", "membershipFile"):
        assert path in str(refused.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_config(tmp_path / "none.json")
