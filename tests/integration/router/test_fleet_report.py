"""The router's report for the operator, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plumage.fleet_report import FLEET_PATH, read_router_report


async def test_report_has_counters_histograms_and_curve(start: Any, kit: Any, tmp_path: Path) -> None:
    key = tmp_path / "admin.key"
    key.write_text("secret\n")
    running = await start(engines=2, auth={"adminKeyFile": str(key)})
    text = "the same long question " * 100
    for index in range(6):
        assert (await running.post(kit.chat(text, stream=index % 2 == 0))).status == 200

    def ask(**headers: str) -> bytes:
        return kit.request(b"", path=FLEET_PATH, method="GET", **headers)

    answer = await running.send(ask(authorization="Bearer secret"))
    report = read_router_report(answer.body)
    assert (report.pool, report.requests, report.in_flight, report.waiting, report.wanting) == ("chat", 6, 0, 0, 0)
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (600, 384, 18)
    assert (report.ttft.count, report.latency.count) == (3, 6)
    assert [(replica.routed, replica.output_tokens) for replica in report.replicas] == [(3, 9), (3, 9)]
    assert report.at >= report.started > 1e9
    chunks = report.curve.accesses / 6
    assert chunks >= 9
    curve = report.curve.as_curve()
    assert curve.hit_ratio(1) == 0.0
    assert curve.hit_ratio(chunks * 256 / 2) > 0.8, "whatever came again was asked for again at once"

    refused = await running.send(ask())
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
