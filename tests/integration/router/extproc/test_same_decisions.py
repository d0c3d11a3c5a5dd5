"""The picker decides as the router does for its own clients: by one policy, one mirror and one account."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

ENGINES = 4
# Twelve conversations of which each turn extends the one before it, interleaved.
PROMPTS = ["".join(f"part {turn} of story {story}. " * 60 for turn in range(last + 1))
           for last in range(4) for story in range(12)]  # fmt: skip


@pytest.mark.parametrize(
    "policy", ["Lbgr", "LbgrPaper", "PrefixAware", "LeastLoad", "PowerOfTwo", "RoundRobin", "Random"]
)
async def test_same_requests_go_to_the_same_replicas(behind_envoy: Any, start: Any, kit: Any, policy: str) -> None:
    """Requests that never end, so that no measured time of this machine changes a decision."""
    proxy = await behind_envoy(engines=ENGINES, policy={"name": policy})
    asleep = asyncio.Event()

    async def never(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asleep.wait()

    for engine in proxy.running.engines:
        engine.answer = never
    picked = await decisions(kit, proxy.running, proxy.connect)
    other = await start(engines=ENGINES, policy={"name": policy})
    for engine in other.engines:
        engine.answer = never
    assert await decisions(kit, other, other.connect) == picked
    assert len(set(picked)) > 1
    asleep.set()


async def decisions(kit: Any, running: Any, connect: Any) -> list[str]:
    """The replicas of all prompts, one after another."""
    audit = running.router.pool.decisions.audit
    for number, prompt in enumerate(PROMPTS):
        _, writer = await connect()
        writer.write(kit.request(kit.chat(prompt, max_tokens=16)))
        await kit.until(lambda number=number: len(audit) > number)
    return [record.replica for record in audit.latest(len(PROMPTS))][::-1]


async def test_one_account_for_both_ports(behind_envoy: Any, kit: Any) -> None:
    """A prefix that one port sent to a replica is found by the other."""
    proxy = await behind_envoy(engines=ENGINES, policy={"name": "Lbgr"})
    pool = proxy.pool
    for number in range(8):
        prompt = f"subject {number} " * 400
        body = json.dumps(kit.chat(prompt, stream=True, stream_options={"include_usage": True})).encode()
        first, second = (proxy, proxy.running) if number % 2 else (proxy.running, proxy)
        for port in (first, second):
            answer = await (port.post(body) if port is proxy.running else port.send(kit.request(body), kit.read_answer))
            assert answer.status == 200
        await kit.until(lambda: not pool.in_flight)
        later, earlier = pool.decisions.audit.latest(2)
        assert later.replica == earlier.replica
        assert later.matched_chunks == later.chunks > 0
