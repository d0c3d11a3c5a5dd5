"""A response's id names its replica, for its tenant alone."""

from __future__ import annotations

import pytest

from plumage_router.proxy.stored_responses import RANDOM_BYTES, find_replica, response_id

REPLICAS = [(f"pool-{number}", number) for number in range(50)]
RANDOM = bytes(range(RANDOM_BYTES))


@pytest.mark.parametrize("salt", ["", "salt", "é" * 300])
def test_id_leads_to_its_replica(salt: str) -> None:
    assert [find_replica(response_id(RANDOM, salt, name), salt, REPLICAS) for name, _ in REPLICAS] == list(range(50))


def test_id_is_of_one_tenant() -> None:
    name = response_id(RANDOM, "salt of a", "pool-7")
    assert find_replica(name, "salt of b", REPLICAS) is None
    assert find_replica(name, "", REPLICAS) is None


def test_replica_that_left_is_not_found() -> None:
    assert find_replica(response_id(RANDOM, "", "pool-50"), "", REPLICAS) is None


@pytest.mark.parametrize("place", range(61))
def test_changed_id_leads_nowhere(place: int) -> None:
    name = response_id(RANDOM, "", "pool-7")
    changed = name[:place] + ("0" if name[place] != "0" else "1") + name[place + 1 :]
    assert find_replica(changed, "", REPLICAS) is None


@pytest.mark.parametrize("name", ["", "resp_", "resp_1", "\ud800", response_id(RANDOM, "", "pool-7") + "0"])
def test_foreign_id_leads_nowhere(name: str) -> None:
    assert find_replica(name, "", REPLICAS) is None
