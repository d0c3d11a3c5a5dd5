"""A shadow policy chooses with what the policy in use knows, learns from its outcomes, and can't change a request."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plumage.directory.mirror.mirror import Mirror
from plumage.hashing.chunks import chain, seed
from plumage.routing import make_policy
from plumage.routing.interface import Choice, Query, ReplicaState, Ticket
from plumage_router.fleet.replicas import Load
from plumage_router.http.paths import CHAT_PATH
from plumage_router.request.prompt import Prompt
from plumage_router.request.usage import Usage, WantedUsage
from plumage_router.routing.decider import Decider
from plumage_router.routing.decision_log import Audit
from plumage_router.routing.shadow import Shadow


def prompt(letter: str) -> Prompt:
    text = (letter * 2600).encode()
    return Prompt(CHAT_PATH, "base", b"{}", True, WantedUsage.NONE, text, chain(text, seed("base")))


class Recorded:
    """Chooses the last candidate, and records its calls."""

    name = "Recorded"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def choose(self, query: Query, replicas: Any) -> Choice:
        return Choice(replicas[-1].slot)

    def routed(self, query: Query, choice: Choice) -> Ticket:
        self.calls.append(("routed", choice.slot))
        return Ticket(choice.slot, query.now, query.tokens, 0.0)

    def first_token(self, ticket: Ticket, now: float) -> None:
        self.calls.append(("first_token", ticket.slot))

    def finished(self, ticket: Ticket, now: float, cached_tokens: float | None) -> None:
        self.calls.append(("finished", ticket.slot))

    def failed(self, ticket: Ticket, now: float) -> None:
        self.calls.append(("failed", ticket.slot))

    def forget(self, slot: int) -> None:
        self.calls.append(("forget", slot))


class Broken(Recorded):
    def choose(self, query: Query, replicas: Any) -> Choice:
        raise ZeroDivisionError


def world(shadow: Any, policy: str = "RoundRobin", replicas: int = 3) -> tuple[Decider, list[ReplicaState]]:
    loads: list[ReplicaState] = [Load(slot, name=f"r{slot}") for slot in range(replicas)]
    decider = Decider(Mirror(10_000), make_policy(policy, rng=random.Random(1)), loads.__getitem__)
    decider.shadow = Shadow(shadow, loads.__getitem__)
    return decider, loads


def test_policy_with_knowledge_is_compared_with_one_in_use_without() -> None:
    decider, loads = world(make_policy("PrefixAware", rng=random.Random(2)))
    rng = random.Random(3)
    for step in range(120):
        decision = decider.decide(prompt(rng.choice("abcde")), loads, float(step))
        assert decision.ticket.slot == step % 3, "round robin still decides"
        decider.finished(decision, step + 0.5, Usage(650, 100))
    shadow = decider.shadow
    assert shadow is not None
    assert shadow.same + shadow.other == 120
    assert shadow.other > 20
    assert shadow.hit_tokens > 1.3 * shadow.used_hit_tokens > 0
    assert shadow.tokens >= shadow.hit_tokens
    theirs, ours = shadow.busiest()
    assert ours == pytest.approx(1 / 3, abs=0.01)
    assert 1 / 3 <= theirs <= 1


def test_it_learns_from_the_replica_that_got_the_request() -> None:
    recorded = Recorded()
    decider, loads = world(recorded)
    first = decider.decide(prompt("a"), loads, 1.0)
    decider.first_token(first, 1.1)
    decider.finished(first, 1.2, Usage(650, 0))
    second = decider.decide(prompt("b"), loads, 2.0)
    decider.failed(second, 2.1)
    assert recorded.calls == [("routed", 0), ("first_token", 0), ("finished", 0), ("routed", 1), ("failed", 1)]
    assert first.shadow is not None
    assert first.shadow.load is loads[2]


def test_retry_is_not_compared_again() -> None:
    recorded = Recorded()
    decider, loads = world(recorded)
    again = decider.decide(prompt("a"), loads[1:], 1.0, attempt=2)
    assert again.shadow is None
    assert recorded.calls == []


def test_broken_policy_is_counted_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    decider, loads = world(Broken())
    for step in range(3):
        decision = decider.decide(prompt("a"), loads, float(step))
        assert decision.shadow is None
        decider.finished(decision, step + 0.5, Usage(650, 0))
    assert decider.shadow is not None
    assert (decider.shadow.errors, decider.shadow.same, decider.shadow.other) == (3, 0, 0)
    assert len([record for record in caplog.records if "shadow policy" in record.message]) == 1


def test_deleted_replica_is_forgotten() -> None:
    recorded = Recorded()
    decider, loads = world(recorded)
    decider.decide(prompt("a"), loads, 1.0)
    assert decider.shadow is not None
    assert decider.shadow.busiest() == (1.0, 1.0)
    decider.shadow.forget(2)
    assert recorded.calls[-1] == ("forget", 2)
    assert decider.shadow.busiest() == (0.0, 1.0)


def test_explanation_names_its_choice() -> None:
    decider, loads = world(Recorded())
    decision = decider.decide(prompt("a"), loads, 1.0)
    record = Audit(4).add(decision, request_id="r", at=0.0, tenant="", policy="RoundRobin", degraded=False)
    assert record.document()["shadow"] == {"policy": "Recorded", "replica": "r2", "hitTokens": 0}


def test_lbgr_takes_the_foreign_work_of_the_replica_in_use() -> None:
    lbgr = make_policy("Lbgr", rng=random.Random(1))
    decider, loads = world(lbgr)
    loads[0].foreign_work = 5.0  # round robin's first choice, which Lbgr avoids
    decision = decider.decide(prompt("a"), loads, 1.0)
    assert decision.shadow is not None
    assert decision.shadow.load is not loads[0]
    assert decision.shadow.ticket.predicted_ttft is not None
    assert decision.shadow.ticket.predicted_ttft > 5.0


def test_shares_follow_recent_decisions() -> None:
    decider, _ = world(Recorded(), replicas=2)
    for step in range(12_000):
        decider.shadow._count(Query(float(step), 10.0, {}), 0, step % 2)  # type: ignore[union-attr]
    assert decider.shadow is not None
    assert sum(decider.shadow._chosen.values()) < 10_100
    assert decider.shadow.busiest()[1] == pytest.approx(0.5, abs=0.01)
