"""vLLM's engine cores, each in its own process, that alternate every few dozen milliseconds.

Each has its own process, as in production: two engines in one process would share the interpreter's inline caches,
which have one type for each place, and so slow each other down. They alternate because other work on the machine varies
within seconds and must affect all of them equally.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumage.errors import PlumageError
from plumage_bench.vllm.timed import Ask, TimedEngine
from plumage_cli.local.processes.launch import bind_to_parent

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["EngineProcess", "Load", "engines", "play"]

_QUEUED_A_TURN, _STEPS_A_TURN = 500, 64
_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """`queued` requests, of which `served` are answered. Groups share a prefix; each request has its own tail."""

    queued: int
    served: int = 500
    answer: int = 64
    groups: int = 40
    shared: int = 512
    tail: int = 64

    def asks(self, seed: int) -> list[Ask]:
        rng = random.Random(f"overhead {seed}")
        prefixes = [rng.choices(range(250), k=self.shared) for _ in range(self.groups)]
        return [
            Ask(f"{seed}-{n}", prefixes[rng.randrange(self.groups)] + rng.choices(range(250), k=self.tail),
                self.answer, 0.0)
            for n in range(self.queued)
        ]  # fmt: skip


class _Round:
    """One engine's part of a round, in its process."""

    def __init__(self, engine: TimedEngine, load: Load, seed: int) -> None:
        self._engine = engine
        self._requests = [engine.prepared(ask) for ask in load.asks(seed)]
        self._wanted = load.served
        self._queued = self._served = 0
        self._queueing = self._serving = 0.0  # CPU seconds
        gc.collect()

    def queue(self) -> bool:
        """Queue some of the requests. False when all are queued."""
        some = self._requests[self._queued : self._queued + _QUEUED_A_TURN]
        began = time.process_time()
        for request in some:
            self._engine.core.add_request(*request)
        self._queueing += time.process_time() - began
        self._queued += len(some)
        return self._queued < len(self._requests)

    def serve(self) -> bool:
        """Run some steps. False when enough requests are served."""
        began = time.process_time()
        for _ in range(_STEPS_A_TURN):
            outputs, _ = self._engine.core.step_fn()
            self._served += sum(out.finished for client in (outputs or {}).values() for out in client.outputs)
            if self._served >= self._wanted:
                break
        self._serving += time.process_time() - began
        return self._served < self._wanted

    def end(self) -> float:
        """CPU microseconds for each request. The remaining requests are discarded."""
        self._engine.core.abort_requests([request.request_id for request, _ in self._requests])
        while self._engine.scheduler.has_requests():
            self._engine.core.step_fn()
        return 1e6 * (self._queueing / self._queued + self._serving / self._served)


class EngineProcess:
    """One engine core. plumage, arguments: as for TimedEngine. PlumageError if its process ends or hangs."""

    def __init__(self, plumage: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")  # not fork: a forked torch may have locks that nobody releases
        self._connection, theirs = context.Pipe()
        given = (theirs, os.getpid(), dict(plumage), dict(arguments))
        self._process = context.Process(target=_work, args=given, daemon=True)
        self._process.start()
        theirs.close()

    def order(self, *order: Any) -> None:
        """Sends an order: begin with (load, seed); queue, serve, end, features. `answer` returns the result."""
        self._connection.send(order)

    def answer(self) -> Any:
        """The result of the last order."""
        try:
            if self._connection.poll(_WAIT_SECONDS):
                return self._connection.recv()
        except EOFError:
            raise PlumageError("an engine's process ended: its error stands above") from None
        raise PlumageError(f"an engine's process did not answer within {_WAIT_SECONDS:.0f} s")

    def ask(self, *order: Any) -> Any:
        self.order(*order)
        return self.answer()

    def close(self) -> None:
        """End the process in any state."""
        self._connection.close()
        self._process.join(5.0)
        self._process.kill()
        self._process.join(30.0)


@contextmanager
def engines(arguments: Mapping[str, Any], plumages: Sequence[Mapping[str, Any]]) -> Iterator[list[EngineProcess]]:
    """One engine for each plugin setting, for the time of a `with`."""
    made = [EngineProcess(plumage, arguments) for plumage in plumages]
    try:
        yield made
    finally:
        for engine in made:
            engine.close()


def play(made: Sequence[EngineProcess], load: Load, seed: int) -> list[float]:
    """One round. Returns the CPU microseconds a request of each engine."""
    for engine in made:
        engine.order("begin", load, seed)
    for engine in made:
        engine.answer()
    for order in ("queue", "serve"):
        busy = list(made)
        while busy:
            busy = [engine for engine in busy if engine.ask(order)]
            busy = [*busy[1:], *busy[:1]]
    return [engine.ask("end") for engine in made]


def _work(connection: Connection, parent: int, plumage: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """The process: reads orders and writes answers until the other end is closed."""
    bind_to_parent(parent)
    from plumage_bench.vllm.engine import prepare_environment

    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    with tempfile.TemporaryDirectory() as folder:
        engine = TimedEngine(write_model(Path(folder) / "tiny"), plumage, **arguments)
        under_way: _Round | None = None
        while (order := _next(connection)) is not None:
            match order:
                case ("begin", load, seed):
                    under_way = _Round(engine, load, seed)
                    connection.send(True)
                case ("features",):
                    connection.send(_features(engine))
                case (name,):
                    connection.send(getattr(under_way, name)())
        engine.close()


def _next(connection: Connection) -> tuple[Any, ...] | None:
    try:
        order: tuple[Any, ...] = connection.recv()
    except EOFError:
        return None
    return order


def _features(engine: TimedEngine) -> list[str]:
    """The features that are on."""
    features = getattr(engine.scheduler, "plumage", None)
    return [name for name, guard in features.guards.items() if guard.on] if features is not None else []
