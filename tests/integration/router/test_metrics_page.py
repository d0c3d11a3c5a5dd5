"""The metrics page has a format that the scraper accepts, and metrics of the process."""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

OFFERED = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


async def _page(running: Any, accept: str) -> Any:
    return await running.send(f"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n".encode())


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "application/openmetrics-text;q=0, */*", "text/html"])
async def test_text_format_is_default(start: Any, kit: Any, accept: str) -> None:
    running = await start(engines=1)
    await running.post(kit.chat())
    answer = await _page(running, accept)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in plain(answer.body.decode())}
    assert families["plumage_router_requests"].samples[0].value == 1
    heads = re.findall(r"^# HELP (\S+)", answer.body.decode(), re.M)
    assert len(heads) == len(set(heads))


async def test_openmetrics_is_sent_if_accepted(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    await running.post(kit.chat(stream=True))
    answer = await _page(running, OFFERED)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.body.endswith(b"# EOF\n")
    text = {family.name for family in plain((await _page(running, "*/*")).body.decode())}
    families = {family.name: family for family in openmetrics(answer.body.decode())}
    assert families.keys() == text
    assert families["plumage_router_requests"].type == "counter"


async def test_page_has_process_metrics(start: Any) -> None:
    running = await start(engines=1)
    families = {f.name: f.samples[0].value for f in plain((await _page(running, "*/*")).body.decode()) if f.samples}
    assert 0 < families["process_cpu_seconds"] < 1e6
    assert 1 << 20 < families["process_resident_memory_bytes"] < families["process_virtual_memory_bytes"]
    assert abs(families["process_open_fds"] - len(os.listdir("/proc/self/fd"))) < 8
    assert families["process_open_fds"] < families["process_max_fds"]
    assert 0 < time.time() - families["process_start_time_seconds"] < 86_400


async def test_page_has_sizes_of_stores(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    before = _sizes((await _page(running, "*/*")).body.decode())
    for number in range(3):
        await running.post(kit.chat(f"prompt {number} " * 40))
    after = _sizes((await _page(running, "*/*")).body.decode())
    assert (before["audit"], after["audit"]) == (0, 3)
    assert after["bodies"] == after["slicedWork"] == 0
    assert 0 < after["upstream"] <= 2


async def test_page_counts_tasks_of_the_event_loop(start: Any) -> None:
    running = await start(engines=1)
    before = _sizes((await _page(running, "*/*")).body.decode())["tasks"]
    more = [asyncio.create_task(asyncio.sleep(60)) for _ in range(100)]
    assert (
        abs(_sizes((await _page(running, "*/*")).body.decode())["tasks"] - before - 100) < 20
    )  # engines have some too
    for task in more:
        task.cancel()


def _sizes(page: str) -> dict[str, float]:
    """Entries by store, and tasks."""
    samples = [sample for family in plain(page) for sample in family.samples]
    (tasks,) = (sample.value for sample in samples if sample.name == "plumage_router_tasks")
    named = (sample for sample in samples if sample.name == "plumage_router_entries")
    return {sample.labels["store"]: sample.value for sample in named} | {"tasks": tasks}
