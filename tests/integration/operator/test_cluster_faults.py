"""Operators that start and end, and an API server that restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.operator_fleet import children, made, pool

LEASE = ("-n", "plumage-system", "get", "lease", "plumage-operator", "-o", "jsonpath={.spec.holderIdentity}")


@pytest.fixture
def apply(fleet, namespace):
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 2"))


def test_second_operator_waits_and_takes_over(fleet, namespace, apply) -> None:
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


def test_operator_survives_api_server_restart(fleet, namespace, apply) -> None:
    """On a busy machine the restart may take longer than an operator may be without its Lease; then the operator is
    restarted."""

    def there(wanted: Callable[[dict], bool]) -> bool:
        for name, operator in fleet.operators.items():
            assert operator.poll() is None or "the Lease could not be renewed" in fleet.log(name)
        fleet.keep_up()
        return wanted(children(fleet, namespace))

    fleet.server.restart()
    # For a moment after its start it refuses what roles allow. The operator reports that and tries again.
    fleet.until(lambda: there(lambda found: len(found) == 17))
    fleet.kubectl("-n", namespace, "delete", "service", "chat-router")
    fleet.until(lambda: there(lambda found: ("Service", "chat-router") in found))
