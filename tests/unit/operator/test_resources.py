"""A container's resources: the named ones, and defaults that never contradict them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.api.v1alpha1 import Quantity
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.router import RouterLimits
from plumage.settings.router import body_memory
from plumage_operator.resources.workload import ResourceDefaults, router_defaults, with_defaults

DEFAULTS = ResourceDefaults("50m", "192Mi", "1Gi")
amounts = st.sampled_from(["0", "1m", "50m", "2", "64Mi", "192Mi", "1Gi", "3Gi"])
parts = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), amounts)


def resources(requests: dict[str, str], limits: dict[str, str]) -> Resources:
    return Resources.model_validate({"requests": requests, "limits": limits})


def test_missing_resources_have_defaults() -> None:
    assert with_defaults(Resources(), DEFAULTS) == {
        "requests": {"cpu": "50m", "memory": "192Mi"},
        "limits": {"memory": "1Gi"},
    }


def test_default_request_is_at_most_the_named_limit() -> None:
    completed = with_defaults(resources({}, {"cpu": "10m", "memory": "100Mi"}), DEFAULTS)
    assert completed["requests"] == {"cpu": "10m", "memory": "100Mi"}


def test_default_limit_is_at_least_the_named_request() -> None:
    assert with_defaults(resources({"memory": "3Gi"}, {}), DEFAULTS)["limits"] == {"memory": "3Gi"}


@pytest.mark.parametrize(
    ("body", "memory", "memory_limit"),
    [(None, "256Mi", "1Gi"), ("64Mi", "256Mi", "1Gi"), ("100Mi", "400Mi", "1Gi"), ("1Gi", "4Gi", "4Gi")],
)
def test_router_has_memory_for_the_bodies_that_it_may_hold(body: str | None, memory: str, memory_limit: str) -> None:
    limits = RouterLimits.model_validate({} if body is None else {"bodyMemory": body})
    defaults = router_defaults(limits)
    assert Quantity(defaults.memory) == Quantity(memory)
    assert Quantity(defaults.memory_limit) == Quantity(memory_limit)
    assert 4 * body_memory(limits, Resources()) <= Quantity(defaults.memory).value


@given(requests=parts, limits=parts)
def test_no_request_is_above_its_limit(requests: dict[str, str], limits: dict[str, str]) -> None:
    named = {
        name: one for name, one in requests.items() if Quantity(one).value <= Quantity(limits.get(name, one)).value
    }
    completed = with_defaults(resources(named, limits), DEFAULTS)
    assert named.items() <= completed["requests"].items()
    assert limits.items() <= completed["limits"].items()
    for name, limit in completed["limits"].items():
        assert Quantity(completed["requests"].get(name, "0")).value <= Quantity(limit).value
