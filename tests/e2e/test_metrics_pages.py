"""Prometheus' own checker accepts every metrics page of a pool, and the reference lists what the pages have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.pool import Pool, load, lost, prompts, ready_pool
from support.scrapes import lint

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


VLLMS_OWN = re.compile(r"vllm:\S+ metric names should not contain ':'")  # the simulator has vLLM's names


@pytest.fixture
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 1) as pool:
        yield pool


async def test_promtool_accepts_every_page(pool: Pool) -> None:
    assert lost(await load(pool, prompts(4, seed=5))) == []
    (replica,) = json.loads((pool.folder / "membership.json").read_text())["replicas"]
    pages = {"router": pool.url, "engine": replica["url"], "agent": replica["agent"]}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for part, url in pages.items():
            answer = await client.get(f"{url}/metrics")
            assert answer.status_code == 200, part
            findings = [one for one in lint(answer.text) if not VLLMS_OWN.fullmatch(one)]
            assert findings == [], part


def test_reference_lists_the_metrics_of_each_page() -> None:
    script = Path(__file__).parents[2] / "scripts" / "make_metrics_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
