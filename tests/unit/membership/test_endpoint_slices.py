"""From EndpointSlices, as a cluster writes them, to the replicas of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from plumage.endpoint_slices import members_of
from plumage.membership import Member, MemberState

PORTS = [{"name": "http", "port": 8000}, {"name": "agent", "port": 8081}]


def endpoint(pod: str | None, address: str, **conditions: bool | None) -> dict[str, Any]:
    target = {} if pod is None else {"targetRef": {"kind": "Pod", "name": pod}}
    return {"addresses": [address], "conditions": conditions, **target}


def one_slice(*endpoints: dict[str, Any], family: str = "IPv4", ports: Any = PORTS) -> dict[str, Any]:
    return {"addressType": family, "ports": ports, "endpoints": list(endpoints)}


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({"ready": True, "serving": True, "terminating": False}, MemberState.READY),
        ({"ready": True, "serving": False, "terminating": False}, MemberState.WARMING),  # publishNotReadyAddresses
        ({"ready": False, "serving": False}, MemberState.WARMING),
        ({"ready": True, "serving": True, "terminating": True}, MemberState.DRAINING),
        ({"ready": False, "serving": False, "terminating": True}, MemberState.DRAINING),
        ({"ready": True}, MemberState.READY),
        ({"ready": False}, MemberState.WARMING),
        ({}, MemberState.READY),
    ],
)
def test_conditions(conditions: dict[str, bool], state: MemberState) -> None:
    assert members_of([one_slice(endpoint("a", "10.0.0.1", **conditions))]) == [
        Member("a", "http://10.0.0.1:8000", "http://10.0.0.1:8081", state)
    ]


def test_port_of_a_slice_says_what_its_pods_serve() -> None:
    """While a rollout adds TLS: Kubernetes puts pods with other ports into another slice."""
    secure = [{"name": "https", "port": 8000}, {"name": "agent", "port": 8081}]
    plain, renewed = one_slice(endpoint("a", "10.0.0.1")), one_slice(endpoint("b", "10.0.0.2"), ports=secure)
    found = members_of([plain, renewed])
    assert [(member.url, member.secure) for member in found] == [
        ("http://10.0.0.1:8000", False), ("https://10.0.0.2:8000", True),
    ]  # fmt: skip
    assert found[1].agent == "http://10.0.0.2:8081"


def test_slices_of_a_pool_are_merged_and_a_pod_in_two_of_them_counts_once() -> None:
    moving = [
        one_slice(endpoint("b", "10.0.0.2", serving=True), endpoint("a", "10.0.0.1", serving=True)),
        one_slice(endpoint("b", "10.0.0.2", serving=True, terminating=True), endpoint("c", "10.0.0.3", serving=False)),
    ]
    for slices in (moving, moving[::-1]):
        found = {member.id: member.state for member in members_of(slices)}
        assert found == {"a": MemberState.READY, "b": MemberState.DRAINING, "c": MemberState.WARMING}


def test_both_families_of_a_pod_are_one_replica_and_ipv6_alone_is_bracketed() -> None:
    six = one_slice(endpoint("a", "fd00::1", serving=True), endpoint("b", "fd00::2", serving=True), family="IPv6")
    four = one_slice(endpoint("a", "10.0.0.1", serving=True))
    for slices in ((six, four), (four, six)):
        assert [member.url for member in members_of(slices)] == ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]
    assert members_of([six])[0].address() == ("fd00::1", 8000)
    assert members_of([six])[0].agent == "http://[fd00::1]:8081"


def test_cordoned_pod_gets_no_new_request_and_a_draining_one_stays_draining() -> None:
    slices = [one_slice(endpoint("a", "10.0.0.1", serving=True), endpoint("b", "10.0.0.2", terminating=True))]
    assert [member.state for member in members_of(slices, {"a", "b", "gone"})] == [
        MemberState.CORDONED, MemberState.DRAINING,
    ]  # fmt: skip


def test_optional_fields_of_a_slice_may_be_missing() -> None:
    bare: list[dict[str, Any]] = [
        {"addressType": "FQDN", "endpoints": [endpoint("x", "a.example")]},
        {"addressType": "IPv4", "ports": None, "endpoints": None},
        {"addressType": "IPv4", "endpoints": [{"addresses": []}, {"addresses": ["10.0.0.9"], "conditions": None}]},
    ]
    assert members_of(bare) == [Member("10.0.0.9", "http://10.0.0.9:8000", "http://10.0.0.9:8081")]
    named = one_slice(
        endpoint("a", "10.0.0.1"), ports=[{"name": "http", "port": 9000}, {"name": "agent", "port": 9001}]
    )
    assert members_of([named]) == [Member("a", "http://10.0.0.1:9000", "http://10.0.0.1:9001")]
