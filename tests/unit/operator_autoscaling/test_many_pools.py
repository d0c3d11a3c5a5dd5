"""A thousand pools are polled, but only a few of them are in memory at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from support.fleets import observed, pod

from plumage_operator.autoscaling import AutoscalingLoop
from plumage_operator.autoscaling.report_client import PodBackoff
from plumage_operator.cache.store import PoolKey
from plumage_operator.observed import Observed

POOLS = [("default", f"chat-{number}") for number in range(300)]


class Pods:
    """All pods that a client could reach. Each takes a while to answer."""

    def __init__(self) -> None:
        self.held = self.most = self.looks = 0

    def observe(self, key: PoolKey) -> Observed:
        self.looks += 1
        return observed({"replicas": 1}, [pod("e0", address="127.0.0.2")], 1)

    async def fetch(self, _url: str, _take: Callable[[bytes], None], _backoff: PodBackoff) -> bool:
        self.held += 1
        self.most = max(self.most, self.held)
        await asyncio.sleep(0.001)
        self.held -= 1
        return False


async def test_number_of_concurrent_polls_is_bounded() -> None:
    pods = Pods()
    client: Any = pods
    await AutoscalingLoop(client, lambda: POOLS, pods.observe, lambda _: None, clock=lambda: 1_000.0).round()
    assert 1 < pods.most <= 64
    assert pods.looks >= len(POOLS)
