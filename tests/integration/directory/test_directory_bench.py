"""`bench directory` in small: its parts run, no entry is lost, and entries are within their size limit."""

from __future__ import annotations

from plumage_bench.benches.directory.lag import measure_lag
from plumage_bench.benches.directory.size import measure_size


async def test_measured_sizes_are_plausible() -> None:
    size = await measure_size(entries=120_000, owners=4, replicas=4, colds=1, seed=1)
    assert size.entries == 120_000
    assert size.server_bytes - size.hotness_bytes < 30
    assert 0 < size.log_bytes < 12
    assert size.router_bytes > 0


def test_every_event_reaches_the_router() -> None:
    lag = measure_lag(rate=1000, seconds=0.5, seeds=[1, 2])
    assert len(lag.sorted) > 100
    assert lag.sorted[0] > 0
    assert [one.seed for one in lag.by_seed] == [1, 2]
    assert all(len(one.sorted) > 20 and one.agent_micros > 0 for one in lag.by_seed)
    low, high = sorted(one.percentile(99) for one in lag.by_seed)
    assert low <= lag.percentile(99) <= high
