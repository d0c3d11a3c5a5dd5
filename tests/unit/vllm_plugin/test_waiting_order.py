"""The order of vLLM's requests, driven as vLLM's scheduler drives its waiting queue, without vLLM."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plumage.batching import Candidate, StepOutcome
from plumage_bench.baselines.batching import make_queue
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather.waiting_order import WaitingOrder

BLOCK = 16


@dataclass(eq=False)
class FakeRequest:
    """The fields of vLLM's `Request` that the order reads."""

    request_id: str
    block_hashes: list[bytes]
    num_prompt_tokens: int
    sampling_params: Any = None


@dataclass
class FakeClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Bench:
    """An order, and the scheduler's side of it."""

    policy: str = "ChtOrder"
    max_wait: float = 10.0
    clock: FakeClock = field(default_factory=FakeClock)
    counters: Counters = field(default_factory=Counters)
    running: list[Any] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.order = self.make_order(self.policy)

    def make_order(self, policy: str, stride: int = 1) -> WaitingOrder:
        queue = make_queue(policy, rng=random.Random(0), max_wait=self.max_wait)
        return WaitingOrder(
            queue, block_tokens=BLOCK, stride=stride, max_wait=self.max_wait, clock=self.clock, counters=self.counters
        )

    def change_policy(self, policy: str, stride: int = 1) -> None:
        """Between two steps."""
        before, self.order = self.order, self.make_order(policy, stride)
        self.order.take_over(before, self.running)

    def request(self, group: int, blocks: int = 4) -> Any:
        self.made += 1
        hashes = [f"{group}:{level}".encode() for level in range(blocks)]
        return FakeRequest(f"r{self.made}", hashes, blocks * BLOCK + 1)

    def insert(self, group: int, blocks: int = 4) -> Any:
        request = self.request(group, blocks)
        self.order.insert(request)
        return request

    def admit(self) -> Any:
        """As `schedule()` does: ask, pop, run. None for STOP."""
        request = self.order.choose(self.running)
        if request is not None:
            self.order.pop(request)
            self.running.append(request)
        return request

    def put_aside(self) -> Any:
        request = self.order.choose(self.running)
        if request is not None:
            self.order.pop(request)
        return request

    def finish(self, request: Any) -> None:
        self.running.remove(request)
        self.order.end(request.request_id)


def test_sibling_is_admitted_before_an_older_stranger() -> None:
    bench = Bench()
    first, stranger, sibling = bench.insert(1), bench.insert(2), bench.insert(1)
    assert [bench.admit() for _ in range(3)] == [first, sibling, stranger]
    assert bench.admit() is None


def test_loss_of_the_shared_prefix_is_counted() -> None:
    bench = Bench()
    bench.insert(1, blocks=4)
    bench.insert(1, blocks=4)
    bench.insert(2, blocks=4)
    assert bench.admit()
    assert bench.admit()
    bench.order.match(bench.running)
    assert bench.counters.get("tip_loss") == 0
    assert bench.admit()
    bench.order.match(bench.running)
    assert bench.counters.get("tip_loss") == 4


def test_request_put_aside_returns_before_the_choice_of_the_policy() -> None:
    bench = Bench()
    blocked, other = bench.insert(1), bench.insert(1)
    assert bench.put_aside() is blocked
    assert bench.admit() is other  # the step continues without it
    bench.order.put_back(blocked)
    assert len(bench.order) == 1
    assert bench.admit() is blocked
    bench.order.match(bench.running)
    assert bench.order.active == bench.order.queue.active == 2


def test_preempted_request_is_next_and_no_longer_active() -> None:
    bench = Bench()
    old, new = bench.insert(1), bench.insert(1)
    assert bench.admit() is old
    bench.order.match(bench.running)
    bench.running.remove(old)
    bench.order.put_back(old)
    assert bench.order.queue.active == 0
    assert bench.admit() is old
    assert bench.admit() is new


def test_request_past_the_ageing_bound_is_admitted_next() -> None:
    bench = Bench(policy="Heuristic")
    for _ in range(6):
        bench.insert(1, blocks=40)
    assert bench.admit()
    stranger = bench.insert(2, blocks=40)
    bench.insert(2, blocks=40)
    while bench.admit():
        assert stranger not in bench.running
    bench.clock.now = 10.0
    assert bench.admit() is stranger
    bench.order.match(bench.running)
    assert bench.counters.get("aged") == 1


def test_order_never_stops_while_nothing_runs() -> None:
    bench = Bench(policy="Heuristic")
    for group in range(4):
        bench.insert(group)
    while len(bench.order):
        admitted = bench.admit()
        assert admitted is not None
        bench.finish(admitted)


def test_aborts_are_accepted_in_every_state() -> None:
    bench = Bench()
    waiting, aside, gone = bench.insert(1), bench.insert(2), bench.request(3)
    bench.order.remove(gone)
    bench.order.end(gone.request_id)
    assert bench.put_aside() is waiting
    bench.order.put_back(waiting)
    bench.order.remove(waiting)
    bench.order.end(waiting.request_id)
    bench.order.remove(aside)
    bench.order.remove(aside)
    assert len(bench.order) == len(bench.order.queue) == 0


def test_ended_open_request_is_forgotten() -> None:
    bench = Bench()
    only = bench.insert(1)
    assert bench.put_aside() is only
    bench.order.end(only.request_id)
    assert len(bench.order.queue) == bench.order.queue.active == 0


def test_running_requests_that_never_waited_here_are_active_too() -> None:
    bench = Bench()
    loaded = bench.request(1)
    bench.running.append(loaded)
    bench.order.match(bench.running)
    assert bench.order.queue.active == 1
    bench.running.clear()
    bench.order.match(bench.running)
    assert bench.order.queue.active == 0


def test_next_input_of_a_session_waits_again() -> None:
    bench = Bench()
    session = bench.insert(1)
    assert bench.admit() is session
    bench.order.match(bench.running)
    bench.running.remove(session)
    bench.order.insert(session)
    assert bench.order.queue.active == 0
    assert bench.admit() is session


def test_steps_without_a_question_are_reported_together_before_the_next_one() -> None:
    bench, reported = Bench(), []
    bench.order.queue.policy.observe = lambda outcome: reported.append(  # type: ignore[attr-defined]
        outcome._replace(shape=None)
    )
    bench.insert(1)
    bench.insert(1)
    assert bench.admit()
    bench.order.observe(StepOutcome(0.5, 0, prefill_tokens=64))
    for _ in range(3):
        bench.order.observe(StepOutcome(0.25, 1))
    assert reported == [StepOutcome(0.5, 0, prefill_tokens=64)]
    assert bench.admit()
    bench.order.observe(StepOutcome(0.5, 2))
    assert reported[1:] == [StepOutcome(0.75, 3, steps=3), StepOutcome(0.5, 2)]
    for _ in range(100):
        bench.order.observe(StepOutcome(0.25, 2))
    assert reported[3:] == [StepOutcome(16.0, 128, steps=64), StepOutcome(0.25, 2)], "nor do they wait for ever"


def test_new_policy_takes_over_waiting_and_running_requests() -> None:
    bench = Bench(policy="Fcfs")
    first, aside = bench.insert(1), bench.insert(3)
    assert bench.admit() is first
    assert bench.put_aside() is aside
    bench.order.put_back(aside)
    stranger, sibling = bench.insert(2), bench.insert(1)
    admissions = bench.counters.get("admissions")
    bench.change_policy("ChtOrder", stride=2)
    assert [bench.admit() for _ in range(3)] == [aside, sibling, stranger]
    bench.order.match(bench.running)
    assert bench.counters.get("admissions") == admissions + 3, "a running request is not admitted again"


def test_aged_request_keeps_its_turn_under_another_policy() -> None:
    bench = Bench(policy="Fcfs", max_wait=10.0)
    first = bench.insert(1)
    assert bench.admit() is first
    old = bench.insert(2)
    bench.clock.now = 9.0
    bench.change_policy("ChtOrder")
    bench.insert(1)
    bench.clock.now = 10.5
    assert bench.admit() is old, "its age is unchanged"


@pytest.mark.parametrize(
    "policy",
    [
        "Bandit",
        "BanditPaper",
        "QLearning",
        "QLearningPaper",
        "Heuristic",
        "Predictive",
        "ChtOrder",
        "Fcfs",
        "Lpm",
        "DfsWeight",
    ],
)
def test_every_request_is_served_once(policy: str) -> None:
    bench, rng, served = Bench(policy=policy), random.Random(3), []
    for _ in range(300):
        bench.clock.now += 0.05
        if rng.random() < 0.5 and bench.made < 120:
            bench.insert(rng.randrange(5), blocks=rng.randrange(0, 9))
        while len(bench.running) < 6 and bench.admit():
            pass
        bench.order.match(bench.running)
        bench.order.observe(StepOutcome(0.01, len(bench.running)))
        if bench.running and rng.random() < 0.6:
            done = rng.choice(bench.running)
            bench.finish(done)
            served.append(done.request_id)
    while bench.running or len(bench.order):
        while len(bench.running) < 6 and bench.admit():
            pass
        bench.order.match(bench.running)
        served.append(bench.running[0].request_id)
        bench.finish(bench.running[0])
    assert sorted(served) == sorted(f"r{one + 1}" for one in range(bench.made))


@pytest.mark.parametrize("group", [["a"], {"a": 1}, None, 1.5, "g" * 257, 1 << 65, float("nan")])
def test_invalid_group_is_ignored(group: Any) -> None:
    """A client may send lists and more in `vllm_xargs`."""
    bench = Bench("Oracle")
    assert _candidate_of(bench, {"plumage_group": group}).group is None
    assert bench.admit() is not None


@pytest.mark.parametrize("group", ["chat", 7, "g" * 256])
def test_group_is_a_name_or_a_number(group: Any) -> None:
    assert _candidate_of(Bench("Oracle"), {"plumage_group": group}).group == group


@pytest.mark.parametrize("extra", [None, {}, {"other": [1]}, ["plumage_group"]])
def test_other_arguments_of_clients_are_ignored(extra: Any) -> None:
    assert _candidate_of(Bench("Oracle"), extra).group is None


def _candidate_of(bench: Bench, extra: Any) -> Candidate:
    request = bench.request(1)
    request.sampling_params = SimpleNamespace(extra_args=extra)
    bench.order.insert(request)
    return bench.order._candidates[request.request_id]


class AsVllmDoes(RuleBasedStateMachine):
    """Any sequence of operations of vLLM's scheduler on its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(policy="Bandit")
        self.waiting: dict[str, Any] = {}

    @rule(group=st.integers(0, 3), blocks=st.integers(0, 5))
    def arrive(self, group: int, blocks: int) -> None:
        request = self.bench.insert(group, blocks)
        self.waiting[request.request_id] = request

    @rule(admitted=st.integers(0, 4), aside=st.integers(0, 2), seconds=st.floats(0, 4))
    def step(self, admitted: int, aside: int, seconds: float) -> None:
        self.bench.clock.now += seconds
        put_aside = []
        for _ in range(aside):
            if (request := self.bench.put_aside()) is not None:
                assert self.waiting.pop(request.request_id) is request
                put_aside.append(request)
        for _ in range(admitted):
            if (request := self.bench.admit()) is not None:
                assert self.waiting.pop(request.request_id) is request
        for request in put_aside:
            self.bench.order.put_back(request)
            self.waiting[request.request_id] = request
        self.bench.order.match(self.bench.running)
        self.bench.order.observe(StepOutcome(0.01, len(self.bench.running)))

    @rule(policy=st.sampled_from(["Bandit", "BanditPaper", "ChtOrder", "Fcfs", "DfsWeight"]), stride=st.integers(1, 3))
    def change_policy(self, policy: str, stride: int) -> None:
        self.bench.change_policy(policy, stride)

    @precondition(lambda self: self.bench.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.bench.finish(data.draw(st.sampled_from(self.bench.running)))

    @precondition(lambda self: self.bench.running)
    @rule()
    def preempt(self) -> None:
        request = self.bench.running.pop()
        self.bench.order.put_back(request)
        self.waiting[request.request_id] = request

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))
        self.bench.order.remove(request)
        self.bench.order.end(request.request_id)

    @invariant()
    def the_length_is_true(self) -> None:
        assert len(self.bench.order) == len(self.waiting) == len(list(self.bench.order))

    @invariant()
    def active_is_running(self) -> None:
        self.bench.order.match(self.bench.running)
        assert self.bench.order.queue.active == self.bench.order.active == len(self.bench.running)

    @invariant()
    def no_stop_without_a_batch(self) -> None:
        if not self.bench.running and self.waiting:
            assert self.bench.order.choose(self.bench.running) is not None


TestAsVllmDoes = AsVllmDoes.TestCase
TestAsVllmDoes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
