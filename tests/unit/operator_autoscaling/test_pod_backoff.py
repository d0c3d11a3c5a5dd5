"""A silent pod is left alone for a while after its failure, but a new pod with its address is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleets import pod
from support.reporting_pool import KEY, World, report, running

from plumage_operator.autoscaling.report_client import LONGEST, PodBackoff


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_waits_grow_after_each_failure() -> None:
    backoff, waits = PodBackoff(), []
    now = 0.0
    for _ in range(6):
        now += 40.0  # the round in which it failed was a long one
        backoff.failed(now)
        waits.append(backoff.until - now)
    assert waits == [11.0, 26.0, 56.0, LONGEST - 4, LONGEST - 4, LONGEST - 4]
    assert backoff.succeeded()
    assert backoff.until < 0
    assert not backoff.succeeded()


async def test_long_round_counts_the_wait_from_the_failure(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        report(world, 0)
        world.reports["127.0.0.2"], world.slow = 503, 40.0
        await loop.round()
        assert len(world.asked) == 3, "two engines and a router"
        await loop.round()
        assert len(world.asked) == 3 + 2, "the one that failed just now is not polled"


async def test_new_pod_with_an_old_address_is_polled_at_once(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        report(world, 0)
        world.reports["127.0.0.2"] = 503
        for _ in range(3):
            world.now += 15
            await loop.round()
        world.now += 15
        report(world, 0)
        world.pods[0] = pod("new", address="127.0.0.2")
        await loop.round()
        assert loop.scalers[KEY].reports.agents["new"].seen == world.now
        assert "e0" not in loop.scalers[KEY].reports.backoffs
