"""Operators that come and go, and an API server that does."""

from __future__ import annotations

import pytest
from support.operator_fleet import children, made, pool

LEASE = ("-n", "plumage-system", "get", "lease", "plumage-operator", "-o", "jsonpath={.spec.holderIdentity}")


@pytest.fixture
def apply(fleet, namespace):
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 2"))


def test_of_two_operators_one_works_and_the_other_takes_over(fleet, namespace, apply) -> None:
    made(fleet, namespace)
    holder = fleet.kubectl(*LEASE)
    assert holder in fleet.operators
    fleet.start("other")
    fleet.until(lambda: f"waiting: {holder} is active" in fleet.log("other"))
    assert fleet.kubectl(*LEASE) == holder
    assert fleet.stop(holder) == 0
    fleet.until(lambda: fleet.kubectl(*LEASE) == "other")
    fleet.kubectl("-n", namespace, "delete", "service", "chat-router")
    fleet.until(lambda: ("Service", "chat-router") in children(fleet, namespace))


def test_an_api_server_that_restarts_is_waited_for(fleet, namespace, apply) -> None:
    fleet.server.restart()
    # For a moment after its start it refuses what roles allow, which the operator tells and asks again.
    fleet.until(lambda: len(children(fleet, namespace)) == 17)
    fleet.kubectl("-n", namespace, "delete", "service", "chat-router")
    fleet.until(lambda: ("Service", "chat-router") in children(fleet, namespace))
    assert all(operator.poll() is None for operator in fleet.operators.values())
