"""Virtual time: every request is served in order, and the same seed gives the same run."""

from __future__ import annotations

import random

import pytest

from plumage.errors import StateError
from plumage_bench.ours import Ours
from plumage_bench.virtual_time.virtual_fleet import Hooks, VirtualFleet
from plumage_engine.simulator.engine.device import GPU
from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.engine.sim_engine import SimEngine

OUTPUT = 4


class Chats(Hooks):
    """Clients of 1024 new tokens a turn. Each sends its next turn a second after the answer."""

    def __init__(self, seed: int, slots: int) -> None:
        self.rng = random.Random(seed)
        self.slots = slots
        self.hashes: dict[int, list[int]] = {}
        self.turns: dict[int, int] = {}
        self.log: list[tuple[object, ...]] = []
        self.fleet = VirtualFleet({slot: make_engine(slot) for slot in range(slots)}, self)

    def send(self, client: int, turn: int, at: float) -> None:
        prompt = (turn + 1) * 1024 + turn * OUTPUT
        known = self.hashes.setdefault(client, [])
        while len(known) < (prompt + OUTPUT) // 16:
            known.append(self.rng.getrandbits(64))
        full = prompt // 16
        rest = tuple(known[full : (prompt + OUTPUT - 1) // 16])
        self.fleet.arrive(SimRequest((client, turn), prompt, known[:full], OUTPUT, at, output_hashes=rest))

    def route(self, request: SimRequest, now: float) -> int | None:
        client, _ = request.request_id  # type: ignore[misc]
        return client % self.slots  # type: ignore[no-any-return]

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        self.log.append(("first", request.request_id, slot, now))

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        self.log.append(("finished", request.request_id, slot, now, cached_tokens))
        client, turn = request.request_id  # type: ignore[misc]
        if turn + 1 < self.turns[client]:
            self.send(client, turn + 1, now + 1.0)


def make_engine(slot: int) -> SimEngine:
    return SimEngine(Ours({"engine.feather.policy": "Fcfs"}).engine(), rng=random.Random(slot))


def run(seed: int, *, clients: int = 40, slots: int = 4) -> Chats:
    chats = Chats(seed, slots)
    at = 0.0
    for client in range(clients):
        chats.turns[client] = 2 + 2 * (client % 4)
        at += chats.rng.expovariate(4.0)
        chats.send(client, 0, at)
    chats.fleet.run()
    return chats


def test_every_turn_is_answered_and_hits_all_earlier_turns() -> None:
    chats = run(1)
    answered = {entry[1]: entry[4] for entry in chats.log if entry[0] == "finished"}
    assert set(answered) == {(client, turn) for client, turns in chats.turns.items() for turn in range(turns)}
    assert all(cached == (turn * (1024 + OUTPUT) - 1) // 16 * 16 for (_, turn), cached in answered.items() if turn)  # type: ignore[misc]


def test_seed_repeats_the_run_and_another_seed_does_not() -> None:
    assert run(7).log == run(7).log
    assert run(7).log != run(8).log


def test_lone_request_takes_the_time_of_the_device() -> None:
    """Its latency is the device's own sum over its steps."""
    chats = Chats(0, 1)
    chats.turns[0] = 1
    chats.send(0, 0, 2.0)
    chats.fleet.run()
    first, finished = chats.log
    assert first[3] - 2.0 == pytest.approx(GPU.fixed + 1024 * GPU.row + GPU.pair * 1024 * 1025 / 2)  # type: ignore[operator]
    assert finished[3] - first[3] == pytest.approx(3 * (GPU.fixed + GPU.weights), rel=0.02)  # type: ignore[operator]


def test_event_in_the_past_is_refused() -> None:
    chats = run(1, clients=1)
    with pytest.raises(StateError):
        chats.fleet.call_at(0.0, lambda: None)
