"""Settings that a router refuses, and background tasks that fail."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage.settings.router_config import LimitsConfig, RouterConfig
from plumage_router.process import background
from plumage_router.server import RouterServer, raise_file_limit


def config(folder: Path, **changes: Any) -> RouterConfig:
    """The settings of a router without replicas."""
    members = folder / "members.json"
    members.write_text('{"pool": "chat", "replicas": []}')
    settings = {
        "pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
        "membershipFile": str(members), "listen": {"port": 0}, **changes,
    }  # fmt: skip
    return RouterConfig.model_validate(settings)


@pytest.mark.parametrize("policy", [{"options": {"rng": 1}}, {"lbgr": {"name": "x"}}])
async def test_reserved_policy_option_is_refused(tmp_path: Path, policy: dict[str, Any]) -> None:
    [name] = next(iter(policy.values()))
    with pytest.raises(ConfigurationError, match=f"^routing policy Lbgr has no option {name}: "):
        RouterServer(config(tmp_path, policy={"name": "Lbgr", **policy}))


async def test_failed_task_is_counted_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "RESTART", 0.0)
    router = RouterServer(config(tmp_path))
    errors = iter([ValueError("one"), OSError("two"), ValueError("three"), ValueError("four")])

    async def work() -> None:
        raise next(errors, asyncio.CancelledError())

    with pytest.raises(asyncio.CancelledError):
        await background.Background(router.pool.metrics).forever(work)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in errors if record.exc_info] == [ValueError, OSError]
    assert all("work" in record.getMessage() for record in errors)
    assert "plumage_router_background_failures_total 4" in list(router.pool.metrics.lines())


@pytest.mark.parametrize(
    ("soft", "hard", "logged", "raised"),
    [
        (1024, 20_000, ["at most 20,000 open files are allowed, 30,512 may be needed"], [(20_000, 20_000)]),
        (20_000, 20_000, ["at most 20,000 open files are allowed, 30,512 may be needed"], [(20_000, 20_000)]),
        (1024, 30_512, [], [(30_512, 30_512)]),
        (1024, resource.RLIM_INFINITY, [], [(30_512, resource.RLIM_INFINITY)]),
        (40_000, 40_000, [], []),
    ],
)
async def test_file_limit_is_raised_as_far_as_allowed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    logged: list[str],
    raised: list[tuple[int, int]],
) -> None:
    """The numbers are those that `plumage doctor` reports beforehand (tests/unit/cli/test_doctor.py)."""
    limits = LimitsConfig.model_validate({"maxConnections": 20_000, "maxInFlight": 10_000})
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    raise_file_limit(limits)
    assert made == raised
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == logged
