"""Which replicas a request for a LoRA adapter is offered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from plumage.routing.adapters import AdapterSlots, AdapterState
from plumage.routing.interface import ReplicaState

NAMES = ("a", "b", "c", "d")


def _slots(slots: int = 1) -> AdapterSlots:
    return AdapterSlots(slots, len(NAMES))


def _loads(*routed: int) -> list[ReplicaState]:
    return [ReplicaState(slot, routed=count) for slot, count in enumerate(routed)]


def _offered(adapters: AdapterSlots, name: str, loads: Sequence[ReplicaState]) -> list[int]:
    return [load.slot for load in adapters.narrow(name, loads)]


def test_base_model_may_go_anywhere() -> None:
    adapters, loads = _slots(), _loads(0, 0)
    adapters.routed("a", 0)
    assert adapters.narrow("", loads) is loads


def test_nothing_is_left_out_where_all_adapters_fit() -> None:
    adapters, loads = _slots(len(NAMES)), _loads(0, 0)
    adapters.routed("a", 0)
    assert adapters.narrow("b", loads) is loads


def test_replica_with_the_adapter_comes_first_then_free_slots() -> None:
    adapters = _slots()
    assert adapters.routed("a", 0) is AdapterState.FREE_SLOT
    assert _offered(adapters, "a", _loads(1, 1, 1)) == [0]
    assert _offered(adapters, "b", _loads(1, 1, 1)) == [1, 2]
    assert adapters.routed("b", 1) is AdapterState.FREE_SLOT
    assert adapters.routed("a", 0) is AdapterState.LOADED
    assert _offered(adapters, "c", _loads(2, 1, 0)) == [2]
    assert adapters.requests == {AdapterState.LOADED: 1, AdapterState.FREE_SLOT: 2, AdapterState.WAITS: 0}


def test_busy_replica_is_not_the_only_choice() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    assert _offered(adapters, "a", _loads(5, 5, 5)) == [0]
    assert _offered(adapters, "a", _loads(9, 1, 1)) == [0, 1, 2], "1.5 times the mean of 4 is 6"
    assert _offered(adapters, "a", _loads(5, 3, 3)) == [0]


def test_adapter_spreads_while_slots_are_left_for_all_others() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    assert _offered(adapters, "a", _loads(1, 1, 1, 1)) == [0], "three slots are left for three adapters"
    assert _offered(adapters, "a", _loads(1, 1, 1, 1, 1)) == [0, 1, 2, 3, 4]
    adapters.routed("a", 1)
    assert _offered(adapters, "a", _loads(1, 1, 1, 1, 1)) == [0, 1]
    adapters.ended("a", 1)
    assert _offered(adapters, "a", _loads(1, 1, 1, 1, 1)) == [0, 1, 2, 3, 4]


def test_slots_of_a_removed_replica_are_not_taken() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    adapters.routed("a", 1)
    adapters.reported(1, ("b",))
    adapters.forget(1)
    assert _offered(adapters, "a", _loads(1, 1, 1, 1, 1)) == [0, 1, 2, 3, 4]


def test_full_replicas_are_offered_if_no_other_is_there() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    adapters.routed("b", 1)
    assert _offered(adapters, "c", _loads(1, 1)) == [0, 1]
    assert adapters.routed("c", 0) is AdapterState.WAITS


def test_request_waits_where_the_fewest_requests_must_end() -> None:
    adapters = _slots()
    for name, slot in (("a", 0), ("a", 0), ("b", 1)):
        adapters.routed(name, slot)
    assert _offered(adapters, "c", _loads(2, 9)) == [1]
    adapters.routed("c", 1)
    assert _offered(adapters, "d", _loads(2, 9)) == [0], "nobody waits there yet"


def test_adapter_stays_loaded_after_its_requests_until_another_needs_the_slot() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    assert adapters.state("b", 0) is AdapterState.WAITS
    adapters.ended("a", 0)
    assert (adapters.state("a", 0), adapters.state("b", 0)) == (AdapterState.LOADED, AdapterState.FREE_SLOT)
    adapters.routed("b", 0)
    assert (adapters.state("a", 0), adapters.state("b", 0)) == (AdapterState.WAITS, AdapterState.LOADED)


def test_adapter_that_was_used_longest_ago_loses_its_slot() -> None:
    adapters = _slots(2)
    for name in ("a", "b", "a"):
        adapters.routed(name, 0)
        adapters.ended(name, 0)
    adapters.routed("c", 0)
    assert adapters.state("a", 0) is AdapterState.LOADED
    assert adapters.state("b", 0) is AdapterState.FREE_SLOT


def test_further_requests_wait_with_the_first_one() -> None:
    adapters = _slots()
    for name in ("a", "b"):
        adapters.routed(name, 0)
    adapters.routed("c", 1)
    assert adapters.routed("b", 0) is AdapterState.WAITS
    adapters.ended("c", 1)
    assert _offered(adapters, "b", _loads(3, 0)) == [0, 1], "with the others, or where a slot is free"
    adapters.ended("a", 0)
    assert adapters.routed("b", 0) is AdapterState.LOADED, "the slot was the next one's"


def test_idle_adapter_loses_its_slot_to_those_of_other_routers() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    adapters.ended("a", 0)
    adapters.reported(0, ("b",))
    assert adapters.state("a", 0) is AdapterState.WAITS


def test_slots_of_replicas_that_are_no_candidates_do_not_count() -> None:
    adapters = _slots(2)
    for slot in (1, 2, 3):
        adapters.routed("a", slot)
        adapters.routed("b", slot)
    adapters.routed("a", 0)
    assert _offered(adapters, "a", _loads(1, 9, 9, 9, 0)[:1] + _loads(0, 0, 0, 0, 0)[4:]) == [0, 4]


def test_reported_adapters_have_slots_too() -> None:
    adapters = _slots()
    adapters.reported(0, ("a",))
    assert (adapters.state("a", 0), adapters.state("b", 0)) == (AdapterState.LOADED, AdapterState.WAITS)
    adapters.reported(0, ())
    assert adapters.state("b", 0) is AdapterState.FREE_SLOT


def test_new_replica_in_a_slot_has_nothing_loaded() -> None:
    adapters = _slots()
    adapters.routed("a", 0)
    adapters.forget(0)
    adapters.ended("a", 0)  # the last request of the removed replica
    assert adapters.state("b", 0) is AdapterState.FREE_SLOT


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(("route", "end", "report")), st.sampled_from(NAMES), st.integers(0, 2))),
    st.sampled_from(NAMES),
)
def test_no_request_is_offered_a_wait_while_a_replica_has_room(
    slots: int, history: list[tuple[str, str, int]], name: str
) -> None:
    adapters, open_requests = _slots(slots), dict.fromkeys(((name, slot) for name in NAMES for slot in range(3)), 0)
    loads = _loads(0, 0, 0)
    reports: dict[int, tuple[str, ...]] = dict.fromkeys(range(3), ())
    for action, adapter, slot in history:
        if action == "route":
            adapters.routed(adapter, slot)
            open_requests[adapter, slot] += 1
            loads[slot].routed += 1
        elif action == "end" and open_requests[adapter, slot]:
            adapters.ended(adapter, slot)
            open_requests[adapter, slot] -= 1
            loads[slot].routed -= 1
        elif action == "report":
            reports[slot] = (adapter,)
            adapters.reported(slot, reports[slot])
    assert adapters._replicas_of == Counter(one for replica in adapters._replicas.values() for one in replica.busy)
    there = {slot: {one for one in NAMES if open_requests[one, slot] or one in reports[slot]} for slot in range(3)}
    for slot, names in there.items():
        holding = [one for one in names if adapters.state(one, slot) is AdapterState.LOADED]
        assert len(holding) == min(len(names), max(slots, len(reports[slot])))
        assert set(reports[slot]) <= set(holding)
    offered = _offered(adapters, name, loads)
    assert offered
    if any(len(names) < slots for names in there.values()):
        assert all(name in there[slot] or len(there[slot]) < slots for slot in offered), (
            "no new wait while there is room"
        )


def test_only_replicas_that_serve_the_adapter_are_offered() -> None:
    adapters, loads = _slots(), _loads(0, 0, 0)
    assert adapters.serving("a", loads) is loads, "no agent says what its engine serves"
    adapters.serves(0, ("a", "b"))
    adapters.serves(1, ())
    assert [load.slot for load in adapters.serving("a", loads)] == [0, 2]
    assert [load.slot for load in adapters.serving("c", loads)] == [2]
    assert adapters.serving("", loads) is loads
    adapters.serves(2, ("b",))
    assert adapters.serving("c", loads) == []
    adapters.serves(1, None)
    assert [load.slot for load in adapters.serving("c", loads)] == [1]
    for slot in (0, 2):
        adapters.forget(slot)
    assert adapters.serving("c", loads) is loads
