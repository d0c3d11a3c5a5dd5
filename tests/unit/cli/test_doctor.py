"""What doctor reports about this machine."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from plumage_cli.doctor import machine as checks
from plumage_cli.doctor.finding import Finding, Verdict

SHORT = "at most 20,000 open files are allowed, 30,512 may be needed with 20,000 connections"
ENOUGH = "the 30,512 open files that a router may need are allowed"


@pytest.mark.parametrize(
    ("soft", "hard", "verdict", "what"),
    [
        (20_000, 20_000, Verdict.WARNING, SHORT),
        (1024, 20_000, Verdict.WARNING, SHORT),
        (1024, 30_512, Verdict.GOOD, ENOUGH),
        (1024, resource.RLIM_INFINITY, Verdict.GOOD, ENOUGH),
    ],
)
def test_open_file_limit_is_reported_as_the_router_will_raise_it(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, verdict: Verdict, what: str
) -> None:
    """The router itself raises the soft limit (tests/unit/router/test_server.py)."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    remedy = "raise the hard limit (ulimit -Hn), or lower spec.router.limits" if verdict is Verdict.WARNING else ""
    assert checks._files() == Finding(verdict, what, remedy)


@pytest.mark.parametrize(("tokens", "found"), [(100, True), (10, False)])
def test_clients_that_change_early_bytes_are_reported(tmp_path: Path, tokens: int, found: bool) -> None:
    totals = {"promptTokens": 1000, "prefixLostTokens": {"DateOrNumber": tokens, "Changed": 0}}
    child = {"pid": 1, "state": "Running", "restarts": 0, "lastExit": None}
    replica = {"id": "chat-0", "state": "Ready", "engine": child, "agent": child}
    view = {"pool": "chat", "endpoint": "http://127.0.0.1:8000", "routers": [child], "directory": None,
            "replicas": [replica], "problems": [], "traffic": {"totals": totals}}  # fmt: skip
    warnings = [one for one in checks.check_pool(view, tmp_path) if one.verdict is Verdict.WARNING]
    assert len(warnings) == found
    for one in warnings:
        assert "(DateOrNumber): 100 of 1,000 prompt tokens" in one.what
        assert "last message" in one.remedy


def test_problems_of_a_pools_folder_are_reported(tmp_path: Path) -> None:
    problem = "events-0 is gone: an agent that starts learns nothing"
    child = {"pid": 1, "state": "Running", "restarts": 0, "lastExit": None}
    replica = {"id": "chat-0", "state": "Ready", "engine": child, "agent": child}
    view = {
        "pool": "chat",
        "endpoint": "http://127.0.0.1:8000",
        "routers": [child],
        "directory": None,
        "replicas": [replica],
        "problems": [problem],
        "traffic": {},
    }
    found = list(checks.check_pool(view, tmp_path))
    assert [one.what for one in found if one.verdict is Verdict.WARNING] == [problem]
    assert not [one for one in checks.check_pool({**view, "problems": []}, tmp_path) if one.verdict is Verdict.WARNING]


def test_a_second_router_is_named_by_its_number(tmp_path: Path) -> None:
    """It is no replica, whose name would follow an "of"."""
    child = {"pid": 1, "state": "Running", "restarts": 0, "lastExit": None}
    down = {"pid": None, "state": "Waiting", "restarts": 3, "lastExit": "was ended by SIGKILL"}
    view = {"pool": "chat", "endpoint": "http://127.0.0.1:8000", "routers": [child, down], "directory": None,
            "replicas": [], "problems": [], "traffic": {}}  # fmt: skip
    (bad,) = [one for one in checks.check_pool(view, tmp_path) if one.verdict is Verdict.BAD]
    assert bad.what == "router 1 is down, 3 times so far: it was ended by SIGKILL"
    assert bad.remedy == f"see {tmp_path / 'router-1.log'}"


@pytest.mark.parametrize(("states", "bad"), [(("Unhealthy", "Stalled"), 1), (("Unhealthy", "Warming"), 0)])
def test_pool_whose_replicas_all_fail_is_bad(tmp_path: Path, states: tuple[str, str], bad: int) -> None:
    """One that warms up takes requests soon."""
    child = {"pid": 1, "state": "Running", "restarts": 0, "lastExit": None}
    replicas = [
        {"id": f"chat-{at}", "state": state, "why": "its health check fails"} for at, state in enumerate(states)
    ]
    running = [{"id": f"chat-{at}", "state": "Ready", "engine": child, "agent": child} for at in range(2)]
    view = {"pool": "chat", "endpoint": "http://127.0.0.1:8000", "routers": [child], "directory": None,
            "replicas": running, "problems": [], "traffic": {"replicas": replicas}}  # fmt: skip
    found = [one.what for one in checks.check_pool(view, tmp_path) if one.verdict is Verdict.BAD]
    assert found == ["no replica of pool chat can take requests"] * bad
