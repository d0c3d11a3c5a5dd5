"""The order of waiting requests: classes by weight, tenants equally, deadlines in time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from plumage.queueing import Cost, FairQueue


def queue(**weights: float) -> FairQueue[str]:
    return FairQueue(weights or {"all": 1.0})


def take(waiting: FairQueue[str], most: int, now: float = 0.0) -> list[str]:
    return [waiting.next(now)[0] for _ in range(min(most, len(waiting)))]


def fill(waiting: FairQueue[str], name: str, tenant: str, count: int, tokens: float = 100.0) -> None:
    for number in range(count):
        waiting.add(f"{name}/{tenant}/{number}", name, tenant, tokens, 60.0, 0.0)


def test_equal_deadlines_go_in_order_of_arrival() -> None:
    waiting = queue()
    fill(waiting, "all", "alice", 5)
    assert take(waiting, 5) == [f"all/alice/{number}" for number in range(5)]
    with pytest.raises(IndexError, match="nothing waits"):
        waiting.next(0.0)


def test_earliest_deadline_of_a_tenant_goes_first() -> None:
    waiting = queue()
    for name, deadline in (("late", 9.0), ("soon", 1.0), ("middle", 5.0)):
        waiting.add(name, "all", "alice", 100.0, deadline, 0.0)
    assert take(waiting, 3) == ["soon", "middle", "late"]


def test_classes_share_the_service_by_weight() -> None:
    waiting = queue(interactive=4.0, batch=1.0)
    fill(waiting, "interactive", "alice", 200)
    fill(waiting, "batch", "alice", 200)
    taken = Counter(item.partition("/")[0] for item in take(waiting, 100))
    assert taken == {"interactive": 80, "batch": 20}


def test_tenants_share_tokens_not_requests() -> None:
    waiting = queue()
    fill(waiting, "all", "large", 100, tokens=1000.0)
    fill(waiting, "all", "small", 1000, tokens=100.0)
    taken = Counter(item.split("/")[1] for item in take(waiting, 110))
    assert taken["small"] == pytest.approx(10 * taken["large"], abs=10)


def test_tenant_gets_no_credit_for_the_time_it_was_away() -> None:
    waiting = queue()
    fill(waiting, "all", "busy", 1000)
    take(waiting, 500)
    fill(waiting, "all", "back", 500)
    taken = Counter(item.split("/")[1] for item in take(waiting, 100))
    assert abs(taken["back"] - taken["busy"]) <= 2


def test_tenant_that_used_an_idle_pool_is_not_punished() -> None:
    """While nothing waited, alice took all. That harmed nobody."""
    waiting = queue()
    for _ in range(1000):
        waiting.charge("all", "alice", 100.0)
    fill(waiting, "all", "bob", 100)
    fill(waiting, "all", "alice", 100)
    taken = Counter(item.split("/")[1] for item in take(waiting, 100))
    assert abs(taken["alice"] - taken["bob"]) <= 2


def test_settled_costs_decide_not_expected_ones() -> None:
    """Both expect 100 tokens; each of liar's answers costs 400."""
    waiting = queue()
    fill(waiting, "all", "liar", 1000)
    fill(waiting, "all", "plain", 1000)
    spent: Counter[str] = Counter()
    for _ in range(500):
        _, cost = waiting.next(0.0)
        real = 400.0 if cost.tenant == "liar" else 100.0
        waiting.charge_actual(cost, real)
        spent[cost.tenant] += int(real)
    assert spent["liar"] == pytest.approx(spent["plain"], abs=800)


def test_cost_below_the_expected_one_is_given_back() -> None:
    waiting = queue()
    fill(waiting, "all", "short", 400)
    fill(waiting, "all", "plain", 400)
    count: Counter[str] = Counter()
    for _ in range(300):
        _, cost = waiting.next(0.0)
        waiting.charge_actual(cost, 50.0 if cost.tenant == "short" else 100.0)
        count[cost.tenant] += 1
    assert count["short"] == pytest.approx(2 * count["plain"], abs=6)


def test_service_gap_of_random_load_is_bounded() -> None:
    """Tenants with waiting requests differ by the largest request and what is not settled (VTC, Theorem 4.8)."""
    rng = random.Random(1)
    waiting = queue(high=3.0, low=1.0)
    for number in range(9_000):
        name, tenant = ("high", "low")[number % 2], "abc"[number % 3]
        waiting.add(str(number), name, tenant, rng.uniform(10, 500), 1e9, 0.0)
    spent: Counter[tuple[str, str]] = Counter()
    unsettled: list[Cost] = []
    for _ in range(4_000):
        unsettled.append(waiting.next(0.0)[1])
        if len(unsettled) > 16:
            cost, real = unsettled.pop(0), rng.uniform(10, 500)
            waiting.charge_actual(cost, real)
            spent[cost.name, cost.tenant] += real
    most = 2 * (16 + 1) * 500
    for name in ("high", "low"):
        of_class = [spent[name, tenant] for tenant in "abc"]
        assert max(of_class) - min(of_class) <= most
    low = sum(spent["low", one] for one in "abc")
    assert sum(spent["high", one] for one in "abc") == pytest.approx(3 * low, rel=0.05)


def test_removed_items_do_not_go() -> None:
    waiting = queue()
    fill(waiting, "all", "alice", 1000)
    for number in range(1000):
        if number % 10:
            waiting.remove(f"all/alice/{number}")
    waiting.remove("unknown")
    assert len(waiting) == 100
    assert take(waiting, 100) == [f"all/alice/{number}" for number in range(0, 1000, 10)]
    assert waiting.waiting() == {"all": 0}


def test_late_items_are_named() -> None:
    waiting = queue()
    for name, deadline in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        waiting.add(name, "all", name, 1.0, deadline, 0.0)
    assert waiting.late(2.0) == ["a", "b"]


def test_wait_follows_from_the_speed_of_the_service() -> None:
    """1,000 tokens a second; 5,000 tokens of bob wait."""
    waiting = queue()
    assert waiting.wait("all", "alice", 60.0, 0.0) == 0.0, "nothing is known yet"
    fill(waiting, "all", "bob", 200)
    for number in range(150):
        waiting.next(number / 10)
    assert waiting.wait("all", "bob", 60.0, 14.9) == pytest.approx(5.0, rel=0.1)
    assert waiting.wait("all", "alice", 60.0, 14.9) == 0.0, "nothing of her waits, so she goes next"
    assert waiting.wait("all", "bob", 59.0, 14.9) == 0.0, "an earlier deadline goes before all that waits"


def test_idle_time_does_not_slow_the_speed() -> None:
    waiting = queue()
    fill(waiting, "all", "bob", 100)
    for number in range(100):
        waiting.next(number / 10)
    for number in range(20):
        waiting.add(f"later {number}", "all", "bob", 100.0, 1e9, 20.0)
    waiting.next(20.1)
    assert waiting.wait("all", "bob", 1e9, 20.1) == pytest.approx(1.9, rel=0.1)


def test_stall_is_forgotten() -> None:
    """An engine stood still for a minute, and what waited was turned away. Later requests do not pay for that."""
    waiting = queue()
    fill(waiting, "all", "bob", 100)
    for number in range(50):
        waiting.next(number / 10)
    fill(waiting, "all", "bob", 1)
    assert waiting.wait("all", "bob", 60.0, 65.0) > 60.0, "during the stall"
    for number in range(100):
        waiting.remove(f"all/bob/{number}")
    assert waiting.wait("all", "bob", 60.0, 66.0) == 0.0, "nothing waits"
    waiting.add("first", "all", "bob", 100.0, 200.0, 120.0)
    assert waiting.wait("all", "bob", 200.0, 120.0) == 0.0, "the speed is unknown again"


def test_full_queue_gives_places_by_share() -> None:
    waiting = queue(chat=4.0, batch=1.0)
    fill(waiting, "batch", "bob", 10)
    assert waiting.crowded_out("chat", "alice") == "batch/bob/9"
    assert waiting.crowded_out("batch", "bob") is None, "it has the most itself"
    assert waiting.crowded_out("batch", "carol") == "batch/bob/9", "a tenant with nothing waiting"
    fill(waiting, "chat", "alice", 38)
    assert waiting.crowded_out("chat", "alice") == "batch/bob/9"
    fill(waiting, "chat", "dave", 3)
    assert waiting.crowded_out("chat", "dave") == "chat/alice/37"
    assert queue().crowded_out("all", "alice") is None


def test_other_classes_and_weights_while_items_wait() -> None:
    waiting = queue(gold=2.0, lead=1.0)
    fill(waiting, "gold", "alice", 3)
    fill(waiting, "lead", "alice", 3)
    waiting.configure({"iron": 1.0, "lead": 5.0})
    assert waiting.waiting() == {"iron": 3, "lead": 3}
    assert sorted(take(waiting, 6)) == sorted([f"{name}/alice/{n}" for name in ("gold", "lead") for n in range(3)])
    waiting.charge_actual(Cost("gold", "alice", 100.0), 50.0)  # its class is gone


def test_tenants_that_only_pass_are_forgotten() -> None:
    waiting = queue()
    for number in range(20_000):
        waiting.charge("all", f"tenant-{number}", 1.0)
    assert len(waiting._classes["all"].tenants) <= 4_097


def test_margin_may_change_while_items_wait() -> None:
    waiting = queue()
    for name, deadline in (("a", 1.0), ("b", 5.0)):
        waiting.add(name, "all", name, 1.0, deadline, 0.0)
    assert waiting.late(0.5) == []
    waiting.margin = 2.0
    assert waiting.late(0.5) == ["a"]
    waiting.margin = 6.0
    assert waiting.late(0.5) == ["a", "b"]


def test_refused_items_do_not_speed_up_the_service() -> None:
    """Ten items go in ten seconds. Of twenty more, ten are refused, and ten still take ten seconds."""
    waiting = queue()
    fill(waiting, "all", "alice", 31)
    for second in range(1, 11):
        waiting.next(float(second))
    before = waiting.wait("all", "alice", 60.0, 10.0)
    for _ in range(10):
        _, cost = waiting.next(10.0)
        waiting.refuse(cost)
    after = waiting.wait("all", "alice", 60.0, 10.0)
    assert after == pytest.approx(before * 11 / 21)
