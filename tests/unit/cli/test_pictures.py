"""What users see: tables, lines, explanations, the demo's load and its comparison."""

from __future__ import annotations

import io
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plumage_cli import explanation
from plumage_cli.demo.client import Outcome
from plumage_cli.demo.load import LoadShape, make_load
from plumage_cli.demo.summary import comparison, summarise
from plumage_cli.doctor import machine as checks
from plumage_cli.doctor.finding import Finding, Verdict
from plumage_cli.doctor.machine import check_machine, check_pool
from plumage_cli.local.pool_view import check
from plumage_cli.local.tables import last_requests, pool_line, pool_overview, process_table, shadow_line


def text(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def process(restarts: int = 0, state: str = "Running") -> dict[str, Any]:
    return {"pid": 7, "state": state, "restarts": restarts, "lastExit": "was ended by SIGKILL" if restarts else None}


def view(**traffic: Any) -> dict[str, Any]:
    return {
        "pool": "chat",
        "pid": 1,
        "endpoint": "http://127.0.0.1:8000",
        "model": "tiny-chat",
        "policy": "Lbgr",
        "eviction": "Hotness",
        "routers": [process()],
        "directory": {"pid": 3, "state": "Running", "restarts": 0},
        "replicas": [
            {"id": "chat-0", "state": "Ready", "engine": process(2), "agent": process()},
            {"id": "chat-1", "state": "Warming", "engine": process(), "agent": process(1, "Waiting")},
        ],
        "problems": [],
        "traffic": traffic,
    }


FOLDER = Path("/run/chat")
DECISION = {"requestId": "r-1", "replica": "chat-0", "why": "holds 512 of ~600 prompt tokens, the most of 2"}
TRAFFIC = {
    "directory": "Degraded",
    "replicas": [{"id": "chat-0", "state": "Ready", "why": None, "routed": 9, "running": 2, "waiting": 1,
                  "kvUsage": 0.5, "hitRatio": 0.25}],
    "hottest": [{"chunk": "00ff00ff00ff00ff", "tokens": 64, "count": 3}],
    "decisions": [DECISION],
}  # fmt: skip


def test_pool_with_traffic() -> None:
    shown = text(pool_overview(view(**TRAFFIC)))
    assert "chat: Lbgr routing, Hotness eviction" in shown
    row = next(row for row in shown.splitlines() if "chat-0" in row)
    assert [cell.strip() for cell in row.split("│")[1:9]] == ["chat-0", "Ready", "9", "2", "1", "50%", "25%", "2"]
    assert "00ff00ff… (64 tokens, 3×)" in shown
    assert "r-1 → chat-0: holds 512" in shown
    assert pool_line(view(**TRAFFIC)).startswith(
        "chat-0 Ready 2+1 hit 25% | chat-1 Warming –+– hit – | hottest 00ff00ff…"
    )


def test_line_about_many_replicas_is_short_and_shows_those_with_errors() -> None:
    replicas = [{"id": f"chat-{i}", "state": "Warming" if i == 33 else "Ready"} for i in range(40)]
    shown = pool_line(view() | {"replicas": replicas}).split(" | ")
    assert [part.split()[0] for part in shown] == ["chat-33", *(f"chat-{i}" for i in range(5)), "and"]
    assert shown[-1] == "and 34 more"
    assert "more" not in pool_line(view() | {"replicas": replicas[:6]})


def test_pool_before_its_router_answers() -> None:
    assert "Warming" in text(pool_overview(view()))
    assert list(last_requests(view())) == []


def test_every_process_is_shown() -> None:
    rows = [[cell.strip() for cell in row.split("│")[1:5]] for row in text(process_table(view())).splitlines()]
    assert [row for row in rows if len(row) == 4] == [
        ["router", "7", "Running", ""],
        ["directory", "3", "Running", ""],
        ["engine chat-0", "7", "Running", "2"],
        ["agent chat-0", "7", "Running", ""],
        ["engine chat-1", "7", "Running", ""],
        ["agent chat-1", "7", "Waiting", "1"],
    ]
    elsewhere = {**view(), "directory": None, "routers": [process() | {"pid": None, "state": "Waiting"}]}
    shown = text(process_table(elsewhere))
    assert "directory" not in shown
    assert [cell.strip() for cell in shown.splitlines()[4].split("│")[1:4]] == ["router", "–", "Waiting"]


def test_doctor_recognizes_its_own_router_on_the_port() -> None:
    with socket.socket() as router:
        router.bind(("127.0.0.1", 0))
        router.listen()
        port = router.getsockname()[1]
        ours = {**view(), "endpoint": f"http://127.0.0.1:{port}"}
        [known] = [finding for finding in check_machine(port, [ours]) if f"port {port}" in finding.what]
        [unknown] = [finding for finding in check_machine(port, [view()]) if f"port {port}" in finding.what]
    assert known == Finding(Verdict.GOOD, f"port {port} is used by the router of pool chat")
    assert unknown.verdict is Verdict.WARNING


def test_doctor_names_how_to_install_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "uvloop" else object())
    [missing] = [finding for finding in check_machine(1) if "missing" in finding.what]
    assert (missing.verdict, missing.what) == (Verdict.BAD, "missing for the router: uvloop")
    assert missing.remedy.startswith("in a clone: make setup; else: pip install")


def test_doctor_checks_packages_of_benchmarks_only_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    [missing] = [finding for finding in check_machine(1) if "missing" in finding.what]
    assert (missing.what, "plumage-llm[bench]" in missing.remedy) == ("missing for benchmarks: matplotlib", True)
    monkeypatch.setitem(sys.modules, "plumage_bench", None)
    assert not [finding for finding in check_machine(1) if "missing" in finding.what]


def test_doctor_reports_the_faults_of_a_pool() -> None:
    findings = [(finding.verdict, finding.what) for finding in check_pool(view(**TRAFFIC), FOLDER)]
    assert (Verdict.WARNING, "chat-1 is warming up") in findings
    assert (Verdict.WARNING, "the engine of chat-0 was restarted 2 times: it was ended by SIGKILL") in findings
    assert (Verdict.WARNING, "the agent of chat-1 is down, 1 time so far: it was ended by SIGKILL") in findings
    assert (Verdict.WARNING, "the router works without the directory") in findings


def test_doctor_reports_every_lost_process_with_its_log() -> None:
    lost = view() | {"routers": [process(3)], "directory": {"pid": 3, "state": "Running", "restarts": 1}}
    lost["replicas"] = [{"id": "chat-2", "state": "Ready", "engine": process(1), "agent": process(4)}]
    ended = "it was ended by SIGKILL"
    assert list(check_pool(lost, FOLDER))[1:] == [
        Finding(Verdict.WARNING, f"the router was restarted 3 times: {ended}", "see /run/chat/router.log"),
        Finding(Verdict.WARNING, "the directory was restarted 1 time", "check whether memory ran out"),
        Finding(
            Verdict.WARNING, f"the engine of chat-2 was restarted 1 time: {ended}",
            "see /run/chat/engine-chat-2.log",
        ),
        Finding(
            Verdict.WARNING, f"the agent of chat-2 was restarted 4 times: {ended}",
            "see /run/chat/agent-chat-2.log",
        ),
    ]  # fmt: skip


def test_doctor_reports_processes_that_are_down_but_none_that_start() -> None:
    starting = view() | {"routers": [process(0, "Starting")], "replicas": []}
    assert [finding.what for finding in check_pool(starting, FOLDER)][1:] == ["pool chat has no replica"]
    lost = {"id": "chat-0", "state": "Unhealthy", "why": "Unhealthy"}
    down = view(replicas=[lost]) | {"routers": [process(1, "Waiting")], "replicas": []}
    assert list(check_pool(down, FOLDER))[2:] == [
        Finding(Verdict.BAD, "the router is down, 1 time so far: it was ended by SIGKILL", "see /run/chat/router.log"),
        Finding(Verdict.BAD, "no replica of pool chat can take requests", "the next lines say why"),
        Finding(Verdict.WARNING, "chat-0 gets no requests: Unhealthy", "see /run/chat/engine-chat-0.log"),
    ]


def test_explanation_is_readable() -> None:
    record = {
        **DECISION,
        "model": "tiny-chat",
        "policy": "Lbgr",
        "degraded": True,
        "failures": [{"replica": "chat-1", "reason": "it closed the connection"}],
        "promptTokens": {"estimated": 600, "actual": 590},
        "hitTokens": {"predicted": 512, "actual": None},
        "ttft": {"predicted": 0.05, "actual": 0.061},
        "latency": {"predicted": None, "actual": 1.2},
        "chunks": {"prompt": 9, "matched": 8},
        "candidates": [
            {"replica": "chat-0", "hitTokens": 512, "score": 0.05},
            {"replica": "chat-1", "hitTokens": 0, "score": None},
        ],
        "considered": 2,
        "available": 5,
        "decisionMicroseconds": 88.0,
        "shadow": {"policy": "PrefixAware", "replica": "chat-1", "hitTokens": 0},
    }
    console = Console(file=io.StringIO(), width=120, highlight=False)
    explanation.show(record, console)
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    for phrase in (
        "request r-1 for tiny-chat → chat-0 (Lbgr)",
        "an attempt on chat-1 failed before: it closed the connection",
        "the shadow policy PrefixAware would have chosen chat-1, which holds 0 of its tokens",
        "decided from its own data",
        "→ chat-0",
        "61 ms",
        "2 of 5 considered",
        "8 of 9 chunks in the directory; decided in 88 µs; the lowest score wins",
    ):
        assert phrase in shown
    del record["available"], record["shadow"]  # an older router reports none
    check(record, "chat", explanation.Explanation)
    explanation.show(record, console)
    assert "2 of 2 considered" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("scores", [(None, None), ()])
def test_no_score_wins_where_a_policy_has_none(scores: tuple[None, ...]) -> None:
    record: Any = {
        **DECISION,
        "model": "tiny-chat",
        "policy": "RoundRobin",
        "degraded": False,
        "failures": [],
        "promptTokens": {"estimated": 600, "actual": 590},
        "hitTokens": {"predicted": 0, "actual": 0},
        "ttft": {"predicted": None, "actual": 0.061},
        "latency": {"predicted": None, "actual": 1.2},
        "chunks": {"prompt": 9, "matched": 0},
        "candidates": [{"replica": f"chat-{n}", "hitTokens": 0, "score": score} for n, score in enumerate(scores)],
        "considered": 2,
        "decisionMicroseconds": 88.0,
    }
    console = Console(file=io.StringIO(), width=120, highlight=False)
    explanation.show(record, console)
    assert console.file.getvalue().endswith("decided in 88 µs\n")  # type: ignore[attr-defined]


def test_load_is_determined_by_its_seed() -> None:
    shape = LoadShape(seconds=4.0, suites=3, questions=4, conversations=5, turns=2)
    load = make_load(7, shape)
    assert load == make_load(7, shape)
    assert load != make_load(8, shape)
    assert [session.at for session in load] == sorted(session.at for session in load)
    assert sum(session.kind == "few-shot" for session in load) == 12
    assert len({session.system for session in load if session.kind == "few-shot"}) == 3
    assert all(len(session.turns) == 2 for session in load if session.kind == "multi-turn")


def test_summary_counts_losses_and_cuts() -> None:
    good = [Outcome("few-shot", 0.1 * n, 0.2 * n, 100, 50) for n in range(1, 11)]
    bad = [
        Outcome("few-shot", 0, 0, 0, 0, cut=2, error="APITimeoutError: gone"),
        Outcome("multi-turn", 9.0, 9.0, 100, 0, cut=1),
    ]
    found = summarise(good + bad)
    assert (found.requests, found.lost, found.cut) == (12, 1, 3)
    assert found.hit_ratio == 500 / 1100
    assert found.ttft_p50 == 0.1 * 6
    assert found.ttft_p95 == 9.0
    assert found.errors == ("APITimeoutError: gone",)
    shown = text(comparison(summarise(good), found, "ours", "theirs"))
    assert "The GPUs are simulated" in shown
    assert "×1.10" in shown
    assert summarise([]).hit_ratio == 0.0


def test_shadow_policy_is_compared_in_one_line() -> None:
    shadow = {
        "policy": "PrefixAware", "same": 660, "other": 340, "errors": 0, "promptTokens": 2000,
        "hitTokens": {"policy": 1200, "shadow": 1300}, "busiestShare": {"policy": 0.26, "shadow": 0.5},
    }  # fmt: skip
    assert shadow_line(view(shadow=shadow)) == (
        "shadow policy PrefixAware: another replica for 34% of 1,000 requests; cached 65% of their tokens instead of "
        "60%; busiest replica 50% of requests instead of 26%"
    )
    broken = shadow_line(view(shadow=shadow | {"errors": 2}))
    assert broken is not None
    assert broken.endswith("2 errors, see the router's log")
    assert shadow_line(view(shadow=None)) is None
    assert shadow_line(view(shadow=shadow | {"same": 0, "other": 0})) is None
    assert shadow_line(view()) is None
