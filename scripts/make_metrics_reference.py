#!/usr/bin/env python3
"""Write docs/reference/metrics.md from the metrics pages of a running pool, of the operator and of vLLM's plugin.

It starts a pool of one simulated engine, sends a request, and reads `/metrics` of router, engine and agent.

python scripts/make_metrics_reference.py            # write the page (half a minute, or two on a busy machine)
python scripts/make_metrics_reference.py --check    # status 1 when the page differs
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from plumage.prometheus.exposition import page
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics
from plumage_operator.observability.metrics import Metrics as OperatorMetrics
from plumage_router.http.tls import tls_lines
from plumage_router.multi_pool.metrics import port_lines, route_lines
from plumage_router.process.engine_tls import engine_tls_lines

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
SECONDS = 60.0
STABLE = 3.0  # seconds
LAST = "plumage_router_hit_gap_ratio{"  # the last family that gets a sample
# Each process of the pool imports it at its start. A family without samples has no label to show, so it gets one.
SITE = """from plumage.prometheus import exposition


def with_a_sample(lines, example):
    return lambda name, text, labels, values: lines(name, text, labels, values or {example(labels): 0})


exposition.counters = with_a_sample(exposition.counters, lambda label: "x")
exposition.gauges = with_a_sample(exposition.gauges, lambda label: "x")
exposition.counters_by = with_a_sample(exposition.counters_by, lambda labels: ("x",) * len(labels))
"""
HEAD = """# Metrics reference

`make docs-pages` writes this page from the metrics pages of a running pool. Each component serves `/metrics` in
Prometheus' text form; routers serve OpenMetrics too. A counter's name ends with `_total`. Routers behind a gateway add
the label `pool`. [What to watch](../how-to/observe.md) names the important ones.
"""
# Stats of the plugin with one sample of each family that has labels.
STATS: Mapping[str, Any] = {
    "features": {"x": {"on": True}},
    **dict.fromkeys(("heldBack", "batchLimit", "recordedBlocks", "missingBlocks", "rankedChunks", "stepTimeError"), 0),
    "stepTime": {"x": 0},
    "kvMetrics": {
        "batches": [("x", 0, 0, 0)],
        "best": {"x": (0, 0)},
        "requestSeconds": {"x": {"buckets": [("+Inf", 0)], "sum": 0}},
    },
}
SECTIONS = {
    "Router": "plumage_router_",
    "Agent": "plumage_agent_",
    "Operator": "plumage_operator_",
    "Engine: the plugin in vLLM": "plumage_engine_",
    "Engine: the simulator": "vllm:",
}


def main(arguments: list[str]) -> int:
    """1 where the page differs and --check is given."""
    text = text_of(of_a_pool())
    if "--check" not in arguments:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE} differs from the metrics pages: make docs-pages", file=sys.stderr)
    return 1


def text_of(a_pool: Mapping[str, str]) -> str:
    """The reference. a_pool: as `of_a_pool` returns it."""
    pages = {**a_pool, "Operator": _of_the_operator(), "Engine: the plugin in vLLM": _of_the_plugin()}
    pages["Router"] += _of_tls() + _of_a_gateway()
    return HEAD + "".join(_section(title, prefix, pages[title]) for title, prefix in SECTIONS.items())


def _section(title: str, prefix: str, text: str) -> str:
    found = (one for one in text_string_to_metric_families(text) if one.name.startswith(prefix))
    named = {_name(one): one for one in found}  # a gateway's port repeats some of a pool's
    families = [named[name] for name in sorted(named)]
    rows = "".join(
        f"| `{_name(one)}` | {one.type} | {_labels(one)} | {_line(one.documentation)} |\n" for one in families
    )
    return f"\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n{rows}"


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    return ", ".join(f"`{one}`" for one in sorted({key for sample in family.samples for key in sample.labels} - {"le"}))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def _of_the_operator() -> str:
    metrics = OperatorMetrics()
    metrics.certificate_expires = 0.0
    for counts in (metrics.errors, metrics.actions, metrics.refusals):
        counts["x"] += 1  # a count without a value has no label to show
    return metrics.page(pools=0, waiting=0, oldest=0.0, conditions=[("x",) * 6])


def _of_tls() -> str:
    """A pool on one machine has no TLS."""
    certificate = SimpleNamespace(expires=0.0, failures=0)
    acceptor: Any = SimpleNamespace(certificate=certificate, handshakes=0, failed=Counter())
    engines: Any = SimpleNamespace(expires=0.0, failures=0)
    return page(tls_lines("plumage_router_", [acceptor])) + page(engine_tls_lines("plumage_router_", engines))


def _of_a_gateway() -> str:
    """A router of one pool has no port of its own, and no routes."""
    dispatcher: Any = SimpleNamespace(
        connections=(),
        body_memory=SimpleNamespace(used=0),
        pools=(),
        broken=(),
        config_error=None,
        port_keys_error=None,
        config_ignored=0,
    )
    return page(port_lines(dispatcher), route_lines({("x", "x"): 0}, {("x", "x", "x"): 0}, 0))


def _of_the_plugin() -> str:
    registry, metrics = CollectorRegistry(), PluginMetrics()
    metrics.stats = STATS
    registry.register(metrics)
    return generate_latest(registry).decode()


def of_a_pool() -> dict[str, str]:
    """The pages of a pool's router, agent and engine, after one request and one refused request."""
    with tempfile.TemporaryDirectory(prefix="plm-") as runtime:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        tracing = "--set=spec.tracing.endpoint=http://127.0.0.1:9"  # nothing listens there, and no request is traced
        shadow = "--set=spec.router.shadowPolicy=PrefixAware"
        queue = "--set=spec.flowControl.maxSeconds=60"
        changes = ["--set=spec.replicas=1", "--set=spec.router.accessLog=true", tracing, shadow, queue]
        command = [sys.executable, "-m", "plumage_cli", "up", str(ROOT / "examples/local.yaml"), f"--port={port}"]
        (Path(runtime) / "sitecustomize.py").write_text(SITE)
        paths = os.pathsep.join(filter(None, (runtime, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime, "PYTHONPATH": paths}
        pool = subprocess.Popen([*command, *changes], env=environment, stdout=subprocess.DEVNULL)
        try:
            return _read(f"http://127.0.0.1:{port}", Path(runtime))
        finally:
            pool.send_signal(signal.SIGINT)
            try:
                pool.wait(SECONDS)
            except subprocess.TimeoutExpired:
                pool.kill()


def _read(url: str, runtime: Path) -> dict[str, str]:
    body = {"model": "tiny-chat", "max_tokens": 4, "messages": [{"role": "user", "content": "word " * 400}]}
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        _wait(client, f"{url}/health")
        for change in ({}, {"stream": True}, {"priority": 1}):
            client.post(f"{url}/v1/chat/completions", json={**body, **change})
        client.get(f"{url}/v1/audio/speech")
        (membership,) = runtime.rglob("membership.json")
        (replica,) = json.loads(membership.read_text())["replicas"]
        urls = {"Router": url, "Agent": replica["agent"], "Engine: the simulator": replica["url"]}
        return _complete(client, {part: f"{at}/metrics" for part, at in urls.items()})


def _complete(client: httpx.Client, urls: Mapping[str, str]) -> dict[str, str]:
    """The pages once no sample was added for STABLE seconds: estimators and directory follow the requests.

    The router checks the gap of hits once a minute, for the replicas whose agent it knows by then.
    """
    deadline, before, since = time.monotonic() + 2 * SECONDS, set[str](), time.monotonic()
    while True:
        pages = {part: client.get(at).text for part, at in urls.items()}
        samples = {line.rpartition(" ")[0] for page in pages.values() for line in page.splitlines() if line[:1] != "#"}
        now = time.monotonic()
        if samples != before or not any(name.startswith(LAST) for name in samples):
            before, since = samples, now
        if now - since > STABLE or now > deadline:
            return pages
        time.sleep(0.5)


def _wait(client: httpx.Client, url: str) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if client.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} did not become ready within {SECONDS:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
