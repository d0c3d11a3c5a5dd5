"""One status of several routers."""

from __future__ import annotations

from typing import Any

from plumage_cli.local.pool.traffic import add_up


def replica(number: int, routed: int, hit: int, state: str = "Ready") -> dict[str, Any]:
    counts = {"inFlight": 1, "routed": routed, "finished": routed, "failed": 0, "abandoned": 0, "promptTokens": 100,
              "hitTokens": hit, "predictedHitTokens": hit, "hitRatio": hit / 100}  # fmt: skip
    why = None if state == "Ready" else "its circuit breaker is open"
    return {"id": f"chat-{number}", "state": state, "why": why, "breaker": "Closed", "running": 5, **counts}


def status(routed: int, at: float, **more: Any) -> dict[str, Any]:
    totals = {"requests": routed, "inFlight": 0, "connections": 2, "retries": 0, "aborted": 0, "truncated": 0,
              "errors": {"timeout": 1}, "promptTokens": 200, "hitTokens": routed, "predictedHitTokens": 0,
              "hitRatio": routed / 200, "prefixLostTokens": {}, "bytesPerToken": 4.0}  # fmt: skip
    return {
        "pool": "chat", "directory": "Fresh", "membershipError": None, "configError": None, "keysError": None,
        "waitingRequests": 1, "unservedRequests": 0, "replicas": [replica(0, routed, routed)],
        "decisions": [{"requestId": f"r-{at:g}", "at": at}],
        "hottest": [{"chunk": "ab", "tokens": 64, "count": routed}], "totals": totals, "shadow": None, **more,
    }  # fmt: skip


def test_one_router_is_shown_as_it_is() -> None:
    one = status(3, 1.0)
    assert add_up([one]) == one


def test_counts_are_added_and_the_newest_decisions_come_first() -> None:
    errors = {"errors": {"timeout": 2, "overloaded": 1}}
    other = status(50, 2.0, directory="Degraded", keysError="no file")
    other["totals"] |= errors
    both = add_up([status(10, 1.0), other])
    assert (both["directory"], both["keysError"], both["waitingRequests"]) == ("Degraded", "no file", 2)
    assert [one["requestId"] for one in both["decisions"]] == ["r-2", "r-1"]
    assert both["hottest"] == [{"chunk": "ab", "tokens": 64, "count": 60}]
    assert both["totals"]["requests"] == 60
    assert both["totals"]["errors"] == {"timeout": 3, "overloaded": 1}
    assert both["totals"]["hitRatio"] == 0.15
    (seen,) = both["replicas"]
    assert (seen["routed"], seen["hitRatio"], seen["running"]) == (60, 0.3, 5), "the engine's own load is no sum"


def test_replica_that_one_router_does_not_use_shows_why() -> None:
    one, other = status(1, 1.0), status(1, 2.0, replicas=[replica(0, 1, 1, "Unhealthy"), replica(1, 4, 0)])
    replicas = {seen["id"]: seen for seen in add_up([one, other])["replicas"]}
    assert (replicas["chat-0"]["state"], replicas["chat-0"]["why"]) == ("Unhealthy", "its circuit breaker is open")
    assert replicas["chat-1"]["routed"] == 4
