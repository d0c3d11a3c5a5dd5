"""Changes of the configuration file while a router runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.otlp import received_spans

from plumage.errors import ConfigurationError
from plumage.settings.router_config import RouterConfig
from plumage_router.admin.status import metrics_page, status_document
from plumage_router.config import load_config
from plumage_router.process.config_watch import ConfigWatch, merge
from plumage_router.server import RouterServer

CHOICES = ("same", "other")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """As the kubelet does it: a new file under the same name."""

    def put(config: dict[str, Any]) -> Path:
        fresh = tmp_path / "new.json"
        fresh.write_text(json.dumps(config))
        return fresh.rename(tmp_path / "router.json")

    return put


def settings(members: Path, **more: Any) -> dict[str, Any]:
    model = {"name": "tiny", "modelFolder": "builtin://tiny-chat"}
    return {"pool": "chat", "model": model, "membershipFile": str(members), "listen": {"port": 0},
            "policy": {"name": "RoundRobin"}, **more}  # fmt: skip


@asynccontextmanager
async def following(running: Any, content: dict[str, Any], write: Any) -> AsyncIterator[tuple[RouterServer, Any]]:
    """A router that follows its file, before the same engines, and its client."""
    router = RouterServer(RouterConfig.model_validate(content), write(content))
    await router.start()
    client = type(running)(router, running.engines, running.members, running.folder)
    try:
        yield router, client
    finally:
        await client.close()


async def test_shadow_policy_comes_and_goes_at_runtime(start: Any, kit: Any, write: Any) -> None:
    running = await start(engines=2)
    plain = settings(running.members)
    async with following(running, plain, write) as (router, other):
        assert status_document(router.pool, decisions=1)["shadow"] is None
        write({**plain, "shadowPolicy": {"name": "PrefixAware"}})
        await kit.until(lambda: router.pool.decider.shadow)
        for _ in range(4):
            assert (await other.post(kit.chat("the same prompt " * 100))).status == 200
        seen = status_document(router.pool, decisions=1)
        assert seen["policy"] == "RoundRobin"
        assert (seen["shadow"]["policy"], seen["shadow"]["same"] + seen["shadow"]["other"]) == ("PrefixAware", 4)
        assert seen["decisions"][0]["shadow"]["policy"] == "PrefixAware"
        choices = [await other.metric(f'plumage_router_shadow_decisions_total{{choice="{name}"}}') for name in CHOICES]
        assert choices == [seen["shadow"][name] for name in CHOICES]
        write(plain)
        await kit.until(lambda: router.pool.decider.shadow is None)
        assert (await other.post(kit.chat())).status == 200


async def test_tracing_begins_and_ends_at_runtime(start: Any, kit: Any, write: Any) -> None:
    running = await start(engines=1)
    plain = settings(running.members)
    async with following(running, plain, write) as (router, other):
        assert (await other.post(kit.chat())).status == 200
        with received_spans() as collector:
            service = {"endpoint": collector.endpoint, "samplingRatePerMillion": 1_000_000, "service": "s"}
            write({**plain, "tracing": service})
            await kit.until(lambda: router.pool.tracing.current)
            assert (await other.post(kit.chat())).status == 200
            write(plain)
            await kit.until(lambda: router.pool.tracing.current is None)
            assert router.pool.config_error is None
            await kit.until(lambda: len(collector.spans) == 2)
        traced = ["traceparent" in seen.headers for seen in running.engines[0].seen]
        assert traced == [False, True]


async def test_policy_and_bounds_change_at_runtime(start: Any, kit: Any, write: Any) -> None:
    running = await start(engines=2)
    plain = settings(running.members)
    file = write(plain)
    router = RouterServer(RouterConfig.model_validate(plain), file)
    await router.start()
    other = type(running)(router, running.engines, running.members, running.folder)
    try:
        assert (await other.post(kit.chat())).status == 200
        write({**plain, "policy": {"name": "Lbgr"}, "limits": {"maxInFlight": 1},
               "hold": {"maxRequests": 3, "maxSeconds": 60},
               "timeouts": {"connect": 0.5}})  # fmt: skip
        await kit.until(lambda: router.pool.decider.policy.name == "Lbgr")
        assert router.pool.limits.max_in_flight == 1
        assert router.pool.wait_queue.config.max_requests == 3
        assert router.pool.config_error is None
        assert (await other.post(kit.chat())).status == 200
        record = next(router.pool.decisions.audit.latest(1))
        assert (record.policy, record.outcome) == ("Lbgr", "Finished")

        write({**plain, "policy": {"name": "Sideways"}})
        await kit.until(lambda: router.pool.config_error is not None)
        assert "Sideways" in str(router.pool.config_error)
        assert router.pool.decider.policy.name == "Lbgr"
    finally:
        await other.close()


async def test_request_ends_with_the_policy_that_chose(start: Any, kit: Any) -> None:
    running = await start(engines=1, policy={"name": "Lbgr"})
    router, engine = running.router, running.engines[0]
    changed = False

    async def change(seen: Any, writer: Any) -> None:
        nonlocal changed
        router.reconfigure(
            router.config.model_copy(update={"policy": router.config.policy.model_copy(update={"name": "LeastLoad"})})
        )
        changed = True
        await engine.normally(seen, writer)

    engine.answer = change
    assert (await running.post(kit.chat(stream=True))).status == 200
    assert changed
    assert router.pool.decider.policy.name == "LeastLoad"
    await kit.until(lambda: next(router.pool.decisions.audit.latest(1)).outcome == "Finished")
    assert router.pool.metrics.background_failures == 0


def test_fixed_settings_are_reported_and_others_applied(tmp_path: Path) -> None:
    now = RouterConfig.model_validate(settings(tmp_path / "members.json"))
    wanted = RouterConfig.model_validate(
        settings(tmp_path / "members.json", pool="other", limits={"maxInFlight": 7, "maxDirectoryChunks": 9000})
        | {"listen": {"port": 1}}
    )
    config, refused = merge(now, wanted)
    assert refused == ["limits.maxDirectoryChunks", "pool", "listen"]
    assert config.limits.max_in_flight == 7
    assert (config.pool, config.listen, config.limits.max_directory_chunks) == ("chat", now.listen, 1_000_000)


def test_invalid_or_missing_file_changes_nothing(tmp_path: Path, write: Any) -> None:
    plain = settings(tmp_path / "members.json")
    file = write(plain)
    applied: list[RouterConfig] = []
    watch = ConfigWatch(file, RouterConfig.model_validate(plain), applied.append)
    watch.check()
    assert (applied, watch.error) == ([], None)
    for broken in ({"pool": 3}, {**plain, "limits": {"maxInFlight": 0}}):
        write(broken)
        watch.check()
        assert watch.error is not None
    file.unlink()
    watch.check()
    assert watch.error is not None
    assert "cannot read" in watch.error
    write({**plain, "hold": {"maxRequests": 2, "maxSeconds": 60}})
    watch.check()
    assert ([one.wait_queue.max_requests for one in applied], watch.error) == ([2], None)

    def refuse(config: RouterConfig) -> None:
        raise ConfigurationError("no such policy")

    watch = ConfigWatch(file, applied[0], refuse)
    write({**plain, "hold": {"maxRequests": 4, "maxSeconds": 60}})
    watch.check()
    assert watch.error is not None
    assert "no such policy" in watch.error


async def test_settings_of_newer_operator_are_ignored_and_counted(start: Any, kit: Any, write: Any) -> None:
    running = await start(engines=1)
    operators = {**settings(running.members), "writtenBy": "operator"}
    file = write({**operators, "novelty": 1})
    router = RouterServer(load_config(file), file)
    await router.start()
    other = type(running)(router, running.engines, running.members, running.folder)
    try:
        assert "plumage_router_config_ignored_fields 1" in metrics_page(router.pool, "")[0].splitlines()
        assert (await other.post(kit.chat())).status == 200
        write({**operators, "novelty": 1, "policy": {"name": "Lbgr", "lbgr": {"novelty": 1, "forgetting": 0.9}}})
        await kit.until(lambda: router.pool.decider.policy.name == "Lbgr")
        assert router.pool.config_error is None
        await kit.until(
            lambda: "plumage_router_config_ignored_fields 2" in metrics_page(router.pool, "")[0].splitlines()
        )
        assert (await other.post(kit.chat())).status == 200
    finally:
        await other.close()
