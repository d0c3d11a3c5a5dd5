"""FEATHER's queue without its policy: the order after the policy has failed, and when a batch is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather.queue_adapter import FeatherQueue
from plumage_engine.vllm.guard import Guard


class Order:
    """Admits by name, until it fails."""

    def __init__(self) -> None:
        self.waiting: dict[str, Any] = {}
        self.asked = 0
        self.fails = False

    def insert(self, request: Any) -> None:
        self.waiting[request.request_id] = request

    put_back = insert

    def choose(self, running: list[Any]) -> Any:
        self.asked += 1
        if self.fails:
            raise RuntimeError("made to fail")
        return self.waiting[min(self.waiting)]

    def pop(self, request: Any) -> None:
        del self.waiting[request.request_id]


def queue(*names: str, places: int = 8, sessions: int = 0) -> tuple[FeatherQueue, Order, SimpleNamespace]:
    scheduler = SimpleNamespace(running=[], max_num_active_reqs=places, num_waiting_for_streaming_input=sessions)
    order, counters = Order(), Counters()
    made = FeatherQueue(scheduler, order, Guard("feather", counters), counters)  # type: ignore[arg-type]
    for name in names:
        made.add_request(SimpleNamespace(request_id=name))  # type: ignore[arg-type]
    return made, order, scheduler


def test_failed_order_serves_preempted_then_oldest() -> None:
    made, order, _ = queue("c", "a", "b")
    preempted = made.pop_request()
    assert preempted.request_id == "a"
    made.prepend_request(preempted)
    assert [one.request_id for one in made.oldest(9)] == ["a", "c", "b"]
    order.fails = True
    assert [made.pop_request().request_id for _ in range(3)] == ["a", "c", "b"]
    assert len(made) == 0


def test_sessions_waiting_for_input_count_in_batch() -> None:
    made, order, scheduler = queue("a", places=2, sessions=1)
    assert bool(made)
    assert order.asked == 1
    scheduler.running.append(SimpleNamespace(request_id="r"))
    assert bool(made)
    assert order.asked == 1, "vLLM looks at its limit next and admits nobody"
