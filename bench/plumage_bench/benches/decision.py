"""`decision`: the cost of a routing decision, from a request's bytes to the chosen replica.

It runs the router's own code as the router calls it: parse and check the body, render the model's chat template, hash
the prompt's chunks, look them up in the mirror, choose by LBGR, record the work and the pending owner. Nothing is
mocked. The replicas' answers and the events of their caches are generated between decisions, outside the timed code.

Requests have 8 KB of text in six messages, of which 75 % are shared over 32 prefixes, with 4 and with 1,000 replicas.
Results for one and for twenty messages, and for each single step, are printed too. Every case runs with three seeds,
and the figures are their medians.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise, product
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

from plumage.directory.mirror.mirror import Mirror
from plumage.hashing.chunks import ENDS
from plumage.models import resolve
from plumage.rendering import ChatRenderer, ModelFolder
from plumage.routing import Query
from plumage_bench.benches.router.prompts import MARK, MODEL, Body, make_bodies
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.quantiles import quantile
from plumage_router.fleet.replicas import Load
from plumage_router.http.paths import CHAT_PATH
from plumage_router.process.memory import freeze_startup_objects
from plumage_router.request.body import parse_body
from plumage_router.request.prompt import Prompt, PromptReader
from plumage_router.request.usage import Usage, WantedUsage
from plumage_router.routing.decider import Decider, Decision

__all__ = ["run"]

FEW, MANY = 4, 1000
OURS = Ours()
MESSAGES = 6
WARM_UP, REQUESTS, QUICK_REQUESTS = 2000, 20_000, 4000  # decisions of each seed
SEEDS = 3
REQUESTS_A_SECOND = 100.0  # arrivals a second at each replica, on the clock that LBGR reads
FIRST_TOKEN, FINISH = 0.1, 1.0  # seconds after the decision
TOKENS_A_CHUNK = 64
FIGURES = ("mean", "P50", "P95", "P99", "mean, own", "P99, own")  # microseconds
STEPS = ("parse", "check", "render", "hash", "look up", "choose", "account")


@dataclass(slots=True)
class Fleet:
    """A decider with its replicas, and the requests in flight."""

    decider: Decider
    loads: list[Load]
    underway: deque[tuple[float, Decision]] = field(default_factory=deque)
    prefilling: deque[tuple[float, Decision]] = field(default_factory=deque)

    @classmethod
    def of(cls, replicas: int, seed: int) -> Fleet:
        loads = [Load(slot, name=f"r{slot}") for slot in range(replicas)]
        policy = OURS.routing_policy(random.Random(f"decision {seed}"))
        return cls(Decider(Mirror(), policy, loads.__getitem__), loads)

    def answered(self, decision: Decision, now: float) -> None:
        """Add a request in flight, and end those that are due: engines answer, and the events of their caches
        arrive."""
        self.prefilling.append((now + FIRST_TOKEN, decision))
        self.underway.append((now + FINISH, decision))
        while self.prefilling[0][0] <= now:
            self._prefilled(*self.prefilling.popleft())
        while self.underway[0][0] <= now:
            at, done = self.underway.popleft()
            tokens = TOKENS_A_CHUNK * len(done.prompt.chunks)
            self.decider.finished(done, at, Usage(tokens, int(done.ticket.hit_tokens)))

    def _prefilled(self, at: float, decision: Decision) -> None:
        self.decider.first_token(decision, at)
        chunks = decision.prompt.chunks
        changes = [(chunk, 1, TOKENS_A_CHUNK * depth) for depth, chunk in enumerate(chunks, start=1)]
        self.decider.mirror.apply(decision.ticket.slot, changes)


def reader_of_tiny_chat() -> PromptReader:
    renderer = ChatRenderer.from_folder(ModelFolder.load(resolve("builtin://tiny-chat")), clock=datetime.now)
    return PromptReader(renderer, MODEL)


def requests(bodies: Sequence[Body], count: int, rng: random.Random) -> Iterator[bytes]:
    """Raw bodies. From the mark on each has its own text."""
    for _ in range(count):
        yield rng.choice(bodies).data.replace(MARK.encode(), b"%016x" % rng.getrandbits(64))


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of each decision: wall-clock time and CPU time of this thread."""

    wall: Sequence[int]
    thread: Sequence[int]

    def mean(self) -> float:
        return sum(self.wall) / len(self.wall) / 1000

    def quantile(self, share: float, of: Sequence[int] | None = None) -> float:
        return quantile(self.wall if of is None else of, share) / 1000

    def figures(self) -> list[float]:
        """The figures in the order of `FIGURES`."""
        own = sum(self.thread) / len(self.thread) / 1000
        quantiles = [self.quantile(share) for share in (0.5, 0.95, 0.99)]
        return [self.mean(), *quantiles, own, self.quantile(0.99, self.thread)]


# By (replicas, messages), one for each seed.
Timings = dict[tuple[int, int], list[Timing]]


def time_decisions(fleet: Fleet, reader: PromptReader, raw: Iterator[bytes], advance: Callable[[int], None]) -> Timing:
    """Decide on each request. The policy's clock runs at a fixed rate, so that a slow machine changes no decision."""
    wall, thread = [], []
    rate = REQUESTS_A_SECOND * len(fleet.loads)
    for number, data in enumerate(raw):
        now = number / rate
        mine, started = thread_time_ns(), perf_counter_ns()
        decision = fleet.decider.decide(reader.read(CHAT_PATH, data), fleet.loads, now)
        wall.append(perf_counter_ns() - started)
        thread.append(thread_time_ns() - mine)
        fleet.answered(decision, now)
        advance(1)
    return Timing(wall[WARM_UP:], thread[WARM_UP:])


def time_steps(fleet: Fleet, reader: PromptReader, raw: Iterator[bytes]) -> dict[str, list[int]]:
    """Nanoseconds of each step. `account` is what `decide` does besides the look-up and the choice."""
    taken: dict[str, list[int]] = {step: [] for step in STEPS}
    start = fleet.underway[-1][0] - FINISH
    for number, data in enumerate(raw, start=1):
        now = start + number / (REQUESTS_A_SECOND * len(fleet.loads))
        prompt, reading = _read_stepwise(reader, data)
        decision, choosing = _decide_stepwise(fleet, prompt, now)
        for step, nanoseconds in zip(STEPS, reading + choosing, strict=True):
            taken[step].append(nanoseconds)
        fleet.answered(decision, now)
    return taken


def _read_stepwise(reader: PromptReader, data: bytes) -> tuple[Prompt, list[int]]:
    times = [perf_counter_ns()]
    body = parse_body(data)
    times.append(perf_counter_ns())
    reader.check(CHAT_PATH, body)
    times.append(perf_counter_ns())
    text = reader.render(CHAT_PATH, body)
    times.append(perf_counter_ns())
    chunks = reader.chain(text, MODEL, "")
    times.append(perf_counter_ns())
    prompt = Prompt(CHAT_PATH, MODEL, data, True, WantedUsage.NONE, text, chunks)
    return prompt, [after - before for before, after in pairwise(times)]


def _decide_stepwise(fleet: Fleet, prompt: Prompt, now: float) -> tuple[Decision, list[int]]:
    times = [perf_counter_ns()]
    hits, depth, tokens = fleet.decider.look_up(prompt)
    times.append(perf_counter_ns())
    query = Query(now, tokens, hits, prompt.chunks, prompt.text, prompt.stream, ENDS, depth)
    fleet.decider.policy.choose(query, fleet.loads)
    times.append(perf_counter_ns())
    decision = fleet.decider.decide(prompt, fleet.loads, now)
    times.append(perf_counter_ns())
    look_up, choose, both_and_more = (after - before for before, after in pairwise(times))
    return decision, [look_up, choose, max(0, both_and_more - look_up - choose)]


@contextmanager
def _as_in_the_router() -> Iterator[None]:
    """The router's settings of Python's garbage collector, which affect the slowest decisions."""
    threshold = gc.get_threshold()
    freeze_startup_objects()
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


def run(context: Context) -> Report:
    count = QUICK_REQUESTS if context.quick else REQUESTS
    seeds = [context.seed + offset for offset in range(SEEDS)]
    timings: Timings = {case: [] for case in ((FEW, 1), (FEW, MESSAGES), (FEW, 20), (MANY, MESSAGES))}
    steps: dict[str, list[int]] = {step: [] for step in STEPS}
    reader = reader_of_tiny_chat()
    with context.progress("deciding", SEEDS * len(timings) * (count + WARM_UP)) as advance, _as_in_the_router():
        for seed, (replicas, messages) in product(seeds, timings):
            rng = random.Random(f"decision {seed} {replicas} {messages}")
            bodies, fleet = make_bodies(messages, seed, stream=True), Fleet.of(replicas, seed)
            timing = time_decisions(fleet, reader, requests(bodies, count + WARM_UP, rng), advance)
            timings[replicas, messages].append(timing)
            if (replicas, messages) == (FEW, MESSAGES):
                for step, taken in time_steps(fleet, reader, requests(bodies, count // 2, rng)).items():
                    steps[step] += taken
    return _report(seeds, timings, steps)


def _report(seeds: Sequence[int], timings: Timings, steps: dict[str, list[int]]) -> Report:
    of_seeds = {case: [timing.figures() for timing in found] for case, found in timings.items()}
    middle = {case: [median(column) for column in zip(*found, strict=True)] for case, found in of_seeds.items()}
    few, many = (dict(zip(FIGURES, middle[replicas, MESSAGES], strict=True)) for replicas in (FEW, MANY))
    rows: list[list[str | float]] = [[f"{replicas}, {messages}", *row] for (replicas, messages), row in middle.items()]
    own = (
        f"Medians of {len(seeds)} seeds. own: CPU time of this thread, without other work on the machine. "
        "All times are microseconds."
    )
    means = {step: sum(taken) / len(taken) / 1000 for step, taken in steps.items()}
    split: list[list[str | float]] = [[step, mean, median(steps[step]) / 1000] for step, mean in means.items()]
    split.append(["sum", sum(means.values()), sum(median(taken) for taken in steps.values()) / 1000])
    return Report(
        keys={"mean_us_4": few["mean"], "p99_us_4": few["P99"], "p99_us_1000": many["P99"]},
        tables=[
            ResultTable(
                "One decision: parse, render, hash, look up, choose", ("replicas, messages", *FIGURES), rows, own
            ),
            ResultTable(f"Step by step: {FEW} replicas, {MESSAGES} messages", ("step", "mean µs", "median µs"), split),
        ],
        plot=lambda figure: _plot(figure, timings, means),
        data={
            "own_p99_us_4": few["P99, own"],
            "own_p99_us_1000": many["P99, own"],
            "by_seed": {
                f"{replicas} replicas, {messages} messages": [
                    {"seed": seed, **dict(zip(FIGURES, row, strict=True))}
                    for seed, row in zip(seeds, found, strict=True)
                ]
                for (replicas, messages), found in of_seeds.items()
            },
        },
    )


def _plot(figure: Any, timings: Timings, means: dict[str, float]) -> None:
    left, right = figure.subplots(1, 2)
    for (replicas, messages), found in timings.items():
        ordered = sorted(value / 1000 for timing in found for value in timing.wall)
        shares = [index / len(ordered) for index in range(len(ordered))]
        left.plot(ordered, shares, label=f"{replicas} replicas, {messages} messages")
    left.set(xscale="log", xlabel="µs a decision", ylabel="share of decisions", title="Decisions")
    left.legend()
    right.barh(list(means), list(means.values()))
    right.invert_yaxis()
    right.set(xlabel="mean µs", title=f"{FEW} replicas, {MESSAGES} messages")
