"""An OpenTelemetry collector takes a router's spans. None is installed here: PLUMAGE_OTELCOL names one with the OTLP
receiver and the debug exporter, as in each distribution of that project:

    PLUMAGE_OTELCOL=/usr/bin/otelcol make test ARGS=tests/integration/router/test_real_collector.py
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.conditions import until
from support.ports import free_port

PROGRAM = os.environ.get("PLUMAGE_OTELCOL")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONFIGURATION = (
    "receivers: {otlp: {protocols: {http: {endpoint: 127.0.0.1:%d}}}}",
    "exporters: {debug: {verbosity: detailed}}",
    "service: {telemetry: {metrics: {level: none}}, pipelines: {traces: {receivers: [otlp], exporters: [debug]}}}",
)
pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs an OpenTelemetry collector: name it by PLUMAGE_OTELCOL")


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its URL, and the file to which it writes."""
    port, written = free_port(), tmp_path / "collector.log"
    configuration = (CONFIGURATION[0] % port, *CONFIGURATION[1:])
    with written.open("wb") as output:
        command = [str(PROGRAM), *(f"--config=yaml:{part}" for part in configuration)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    yield f"http://127.0.0.1:{port}", written
    process.terminate()
    process.wait(20)


async def test_collector_takes_the_spans_of_a_request(start: Any, kit: Any, collector: tuple[str, Path]) -> None:
    endpoint, written = collector
    await until(lambda: "Everything is ready" in written.read_text(), pause=0.1)
    settings = {"endpoint": endpoint, "samplingRatePerMillion": 0, "service": "chat-router"}
    running = await start(engines=1, tracing=settings)
    assert (await running.post(kit.chat(stream=True), traceparent=f"00-{TRACE}-{PARENT}-01")).status == 200
    tracing = running.router.pool.tracing.current
    await running.router.pool.tracing.close()
    assert (tracing.exported, tracing.failed) == (2, 0)
    await until(lambda: written.read_text().count("Span #") == 2, pause=0.1)
    text = written.read_text()
    assert re.findall(r"Trace ID +: (\S+)", text) == [TRACE, TRACE]
    assert re.findall(r"Kind +: (\S+)", text) == ["Client", "Server"]
    attempt, request = re.findall(r"Parent ID +: (\S+)\s+ID +: (\S+)", text)
    assert (request[0], attempt[0]) == (PARENT, request[1])
    assert "service.name: Str(chat-router)" in text
    assert "gen_ai.usage.cache_read.input_tokens: Int(64)" in text
    assert re.search(r"Name *: first token", text)
