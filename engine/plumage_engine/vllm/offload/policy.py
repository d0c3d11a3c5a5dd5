"""The residents of host memory where vLLM's manager keeps its cache policy, with a safety net under each question."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.residents import Residents

__all__ = ["GuardedPolicy"]

Key = bytes


class GuardedPolicy:
    """What a question to `residents` raises switches the feature off; the policy in charge from then on, as `stock`
    tells, answers it and whatever vLLM asks of this object later in the same call."""

    def __init__(self, residents: Residents, guard: Guard, stock: Callable[[], Any]) -> None:
        self._residents = residents
        self._guard = guard
        self._stock = stock

    def get(self, key: Key) -> Any:
        return self._ask("get", key)

    def insert(self, key: Key, chunk: Any, *request: object) -> None:
        self._ask("insert", key, chunk, *request)

    def remove(self, key: Key) -> None:
        self._ask("remove", key)

    def evict(self, number: int, protected: set[Key]) -> list[tuple[Key, Any]] | None:
        gone: list[tuple[Key, Any]] | None = self._ask("evict", number, protected)
        return gone

    def clear(self) -> None:
        self._ask("clear")

    def touch(self, keys: Iterable[Key], req_context: object) -> None:
        self._ask("touch", keys, req_context)

    def on_request_access(self, keys: Iterable[Key], req_context: object) -> None:
        self._ask("on_request_access", keys, req_context)

    def on_store_miss(self, keys: Iterable[Key], req_context: object) -> None:
        self._ask("on_store_miss", keys, req_context)

    def on_request_finished(self, *access: object) -> None:
        self._ask("on_request_finished", *access)

    def mark_evictable(self, key: Key) -> None:
        self._ask("mark_evictable", key)

    def mark_non_evictable(self, key: Key) -> None:
        self._ask("mark_non_evictable", key)

    def _ask(self, question: str, *given: Any) -> Any:
        if self._guard.on:
            try:
                return getattr(self._residents, question)(*given)
            except Exception as error:
                self._guard.failed(error)
        stock = self._stock()
        return getattr(self._residents if stock is self else stock, question)(*given)
