"""The benchmark of an event's cost measures every kind of event. This file asserts no times."""

from __future__ import annotations

from plumage_bench.benches.directory.event_cost import event_cost


def test_every_kind_of_event_is_measured() -> None:
    cost = event_cost(blocks=256)
    assert min(cost.prefill_us, cost.decode_us, cost.removed_us) > 0
    assert cost.mean_us == (cost.prefill_us + cost.removed_us) / 2
