"""The replica with the coldest cache is deleted first, and no unneeded annotation is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumage.autoscaling import CacheHotness, coldest_first, deletion_costs

replicas = st.builds(
    CacheHotness,
    id=st.text("abcdef", min_size=1, max_size=6),
    ready=st.booleans(),
    hotness=st.none() | st.floats(0.0, 1e9),
    in_flight=st.integers(0, 100).map(float),
)
fleets = st.lists(replicas, max_size=12, unique_by=lambda one: one.id)


def test_coldest_replica_is_first() -> None:
    fleet = [
        CacheHotness("hot", hotness=900.0),
        CacheHotness("cold", hotness=10.0),
        CacheHotness("cold-and-busy", hotness=10.0, in_flight=7.0),
        CacheHotness("unknown"),
        CacheHotness("not-ready", ready=False, hotness=1000.0),
    ]
    assert coldest_first(fleet) == ["not-ready", "unknown", "cold", "cold-and-busy", "hot"]


def test_only_replicas_to_delete_have_a_cost_and_older_costs_become_zero() -> None:
    costs = deletion_costs(["a", "b", "c", "d"], 2, {"a": "-2", "c": "-1", "d": "0"})
    assert costs == {"b": -1, "c": 0}


def test_nothing_is_written_while_a_replica_warms_or_none_is_deleted() -> None:
    assert deletion_costs(["a", "b"], 1, {}, warming=["c"]) == {}
    assert deletion_costs(["a", "b"], 0, {"a": "-1"}) == {}


@given(fleets, st.integers(1, 12), st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.just("-5")))
def test_replica_set_that_follows_the_costs_deletes_the_coldest(
    fleet: list[CacheHotness], leaving: int, annotated: dict[str, str]
) -> None:
    order = coldest_first(fleet)
    annotated = {pod: cost for pod, cost in annotated.items() if pod in order}
    for pod, cost in deletion_costs(order, leaving, annotated).items():
        annotated[pod] = str(cost)
    ranked = sorted(order, key=lambda pod: int(annotated.get(pod, "0")))
    assert ranked[:leaving] == order[:leaving]
    assert not deletion_costs(order, leaving, annotated)  # and then nothing is left to write
