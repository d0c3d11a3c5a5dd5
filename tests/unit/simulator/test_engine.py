"""The simulated engine: under any sequence of operations, blocks and tokens are accounted for and every request is
served.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.events import CPU, GPU, BlockEvent, Removed, Stored
from plumage.errors import ConfigurationError, StateError
from plumage_engine.simulator.engine.device import StepShape
from plumage_engine.simulator.engine.request import SimRequest, StepReport
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

SIZE = 4


class Recorder:
    """A device that takes a second per step and records each step's shape."""

    kv_bytes_per_token = 1000
    pcie = 1e9

    def __init__(self) -> None:
        self.shapes: list[StepShape] = []

    def seconds(self, shape: StepShape) -> float:
        self.shapes.append(shape)
        return 1.0


def make_engine(sink: Any = None, **changes: Any) -> SimEngine:
    options: dict[str, Any] = {
        "block_size": SIZE,
        "cache_blocks": 32,
        "max_num_seqs": 4,
        "max_batched_tokens": 16,
        "queue": "Fcfs",
        "eviction": "Lru",
        "batch_limit": "Static",
        "report_tokens": True,
        "device": Recorder(),
    }
    return SimEngine(EngineSettings(**{**options, **changes}), rng=random.Random(0), sink=sink)


def request(
    name: object, prompt: int, output: int, *, family: int = 0, shared: int = 0, tail: bool = False
) -> SimRequest:
    """A prompt whose first `shared` blocks are the family's, the others its own. `tail`: the output's hashes too."""
    full, total = prompt // SIZE, (prompt + output - 1) // SIZE
    hashes = [hash((family, level)) if level < shared else hash((name, family, level)) for level in range(total)]
    after = tuple(hashes[full:]) if tail else ()
    return SimRequest(name, prompt, hashes[:full], output, 0.0, output_hashes=after)


def drain(engine: SimEngine, limit: int = 10_000) -> list[StepReport]:
    reports = []
    while (report := engine.step(float(len(reports)))) is not None:
        reports.append(report)
        assert len(reports) < limit, "the engine does not end"
    return reports


class TestOneRequest:
    def test_prefill_gives_the_first_token_and_each_step_another(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 10, 3), 0.0)
        first, second, third = drain(engine)
        assert (first.prefill_tokens, first.decode_tokens, first.first_tokens) == (10, 0, ["a"])
        assert (second.prefill_tokens, second.decode_tokens, second.tokens) == (0, 1, ["a"])
        assert third.finished == [("a", 0)]
        assert engine.counters.generated_tokens == 3

    def test_long_prompt_is_prefilled_in_chunks(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 40, 1), 0.0)
        reports = drain(engine)
        assert [report.prefill_tokens for report in reports] == [16, 16, 8]
        assert reports[-1].first_tokens == ["a"]
        assert reports[-1].finished == [("a", 0)]

    def test_prefill_pairs_count_each_token_with_all_before_it(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 40, 1), 0.0)
        drain(engine)
        assert sum(shape.prefill_pairs for shape in engine.settings.device.shapes) == 40 * 41 / 2  # type: ignore[attr-defined]

    def test_fully_cached_prompt_recomputes_its_last_block(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 16, 1, shared=4), 0.0)
        drain(engine)
        engine.submit(request("b", 16, 1, shared=4), 1.0)
        (report,) = drain(engine)
        assert report.prefill_tokens == SIZE
        assert report.finished == [("b", 12)]

    def test_next_turn_finds_prompt_and_output(self) -> None:
        engine = make_engine()
        engine.submit(request("chat", 10, 7, tail=True), 0.0)
        drain(engine)
        longer = request("chat", 20, 1)
        engine.submit(longer, 1.0)
        (report,) = drain(engine)
        assert report.finished == [("chat", 16)]  # 10 + 6 tokens have KV: the last one is sampled, never computed

    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            (SimRequest("a", 0, (), 1, 0.0), ConfigurationError),
            (SimRequest("a", 4, (), 0, 0.0), ConfigurationError),
            (SimRequest("a", 4, (1, 2), 1, 0.0), ConfigurationError),
            (SimRequest("a", 4, (1,), 1000, 0.0), ConfigurationError),
        ],
    )
    def test_impossible_request_is_refused_and_leaves_nothing(self, bad: SimRequest, error: type[Exception]) -> None:
        engine = make_engine()
        with pytest.raises(error):
            engine.submit(bad, 0.0)
        assert len(engine) == 0
        assert engine.step(0.0) is None

    def test_used_id_is_refused(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 4, 1), 0.0)
        with pytest.raises(StateError):
            engine.submit(request("a", 4, 1), 0.0)


class TestManyRequests:
    def test_sibling_in_the_same_step_finds_the_blocks(self) -> None:
        engine = make_engine(max_batched_tokens=64)
        for name in "ab":
            engine.submit(request(name, 18, 1, shared=4), 0.0)
        (report,) = drain(engine)
        assert report.finished == [("a", 0), ("b", 16)]

    def test_block_computed_twice_is_published_twice(self) -> None:
        """As vLLM does: the recomputed last block of a cached prompt, and the same answer decoded side by side."""
        events: list[BlockEvent] = []
        engine = make_engine(events.append, max_batched_tokens=64)
        for name in "ab":
            hashes = tuple(range(100, 106))
            engine.submit(SimRequest(name, 16, hashes[:4], 9, 0.0, output_hashes=hashes[4:]), 0.0)
        drain(engine)
        stored = Counter(block for event in events if isinstance(event, Stored) for block in event.hashes)
        assert stored == {100: 1, 101: 1, 102: 1, 103: 2, 104: 2, 105: 2}

    def test_running_requests_are_limited(self) -> None:
        engine = make_engine(max_num_seqs=2)
        for name in range(5):
            engine.submit(request(name, 4, 3), 0.0)
        engine.step(0.0)
        assert (engine.load().running, engine.load().waiting) == (2, 3)
        finished = [name for report in drain(engine) for name, _ in report.finished]
        assert finished == [0, 1, 2, 3, 4]

    def test_youngest_is_preempted_when_blocks_run_out_and_still_finishes(self) -> None:
        engine = make_engine(cache_blocks=8)
        engine.submit(request("old", 8, 20), 0.0)
        engine.submit(request("young", 8, 20), 0.0)
        reports = drain(engine)
        assert [name for report in reports for name in report.preempted] == ["young"]
        assert [name for report in reports for name, _ in report.finished] == ["old", "young"]
        assert Counter(name for report in reports for name in report.tokens) == {"old": 20, "young": 20}
        assert sum(report.first_tokens.count("young") for report in reports) == 1

    def test_request_that_waits_for_memory_does_not_count_as_a_use(self) -> None:
        engine = make_engine(cache_blocks=16, max_batched_tokens=64)
        engine.submit(request("first", 16, 1, shared=4), 0.0)
        drain(engine)
        engine.submit(request("long", 40, 12, family=1), 1.0)
        engine.step(1.0)
        engine.submit(request("sibling", 28, 1, shared=4), 1.0)
        for step in range(8):
            engine.step(2.0 + step)
        assert engine.load().waiting == 1
        (run,) = [run for run in engine.pool.tree.runs() if run.hashes[0] == hash((0, 0))]
        assert run.uses == 1
        assert [name for report in drain(engine) for name, _ in report.finished] == ["long", "sibling"]

    def test_request_submitted_during_a_step_joins_the_next(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 4, 2), 0.0)
        engine.step(0.0)
        engine.submit(request("b", 4, 1), 0.5)
        assert engine.load().waiting == 1
        report = engine.step(1.0)
        assert report is not None
        assert report.first_tokens == ["b"]

    def test_abort_during_a_step_frees_the_blocks_at_once(self) -> None:
        engine = make_engine()
        engine.submit(request("a", 8, 5), 0.0)
        engine.step(0.0)
        engine.abort("a", 0.5)
        assert engine.pool.in_use == 0
        assert engine.step(1.0) is None
        assert engine.load().prefill_tokens == 0

    def test_device_sees_what_all_decodes_share(self) -> None:
        engine = make_engine(cache_blocks=64, max_batched_tokens=64)
        engine.submit(request("a", 18, 8, shared=3), 0.0)
        engine.submit(request("b", 18, 3, shared=3), 0.0)
        engine.submit(request("stranger", 9, 1, family=1), 0.0)
        drain(engine)
        shapes = engine.settings.device.shapes  # type: ignore[attr-defined]
        both = [shape for shape in shapes if shape.decodes == 2]
        assert {shape.shared for shape in both} == {3 * SIZE}
        assert [shape.context for shape in both] == [38, 40]
        assert all(shape.distinct == shape.context - 3 * SIZE + gap for shape, gap in zip(both, (2, 0), strict=True))


class Model:
    """A listener's view: copies of each block in each medium, from the events alone."""

    def __init__(self) -> None:
        self.media: dict[str, Counter[int]] = {GPU: Counter(), CPU: Counter()}

    def __call__(self, event: BlockEvent) -> None:
        if isinstance(event, Stored):
            copies = self.media[event.medium]
            orphan = event.medium == GPU and event.parent is not None and not copies[event.parent]
            assert not orphan, "a child without its parent"
            copies.update(event.hashes)
        elif isinstance(event, Removed):
            copies = self.media[event.medium]
            copies.subtract(event.hashes)
            assert min(copies.values()) >= 0


QUEUES = ["Fcfs", "ChtOrder", "Bandit", "BanditPaper", "QLearning", "QLearningPaper", "Heuristic", "Predictive"]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.integers(1, 60),  # prompt
            st.integers(1, 30),  # output
            st.integers(0, 2),  # family
            st.integers(0, 10),  # shared blocks
            st.booleans(),  # output hashes known
        ),
        st.tuples(st.just("abort"), st.integers(0, 40)),
        st.tuples(st.just("step"), st.integers(1, 8)),
        st.tuples(
            st.just("follow"), st.sampled_from(["Fcfs", "ChtOrder", "QLearning", "BanditPaper"]), st.integers(1, 3)
        ),
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(
    actions=ACTIONS,
    blocks=st.integers(23, 64),
    seqs=st.integers(1, 6),
    host=st.sampled_from([0, 20]),
    queue=st.sampled_from(QUEUES),
    eviction=st.sampled_from(["Lru", "Rlt", "Hotness"]),
    admission=st.sampled_from(["Hotness", "Frequency", "All"]),
)
def test_blocks_and_tokens_are_accounted_for_under_any_operations(
    actions: list[Any], blocks: int, seqs: int, host: int, queue: str, eviction: str, admission: str
) -> None:
    listener = Model()
    engine = make_engine(
        listener,
        cache_blocks=blocks,
        max_num_seqs=seqs,
        max_batched_tokens=12,
        host_blocks=host,
        tier_options={"min_frequency": 1, "admission": admission},
        queue=queue,
        eviction=eviction,
        adapter_slots=1,
    )
    wanted: dict[int, int] = {}
    got: Counter[object] = Counter()
    ended: list[object] = []
    aborted: set[int] = set()
    now = 0.0

    def step() -> bool:
        nonlocal now
        report = engine.step(now)
        if report is None:
            return False
        now += report.seconds
        check()
        got.update(report.tokens)
        ended.extend(name for name, _ in report.finished)
        return True

    def check() -> None:
        pool = engine.pool
        assert 0 <= pool.in_use <= pool.capacity
        assert pool.available == pool.capacity - pool.in_use
        published = {block: copies for block, copies in listener.media[GPU].items() if copies}
        assert published == {entry.block: entry.copies for entry in pool.snapshot()}
        below = {block for block, copies in listener.media[CPU].items() if copies}
        assert len(below) == (engine.host.tier.used if engine.host else 0) <= host
        assert all(block in engine.host.tier for block in below if engine.host)
        load = engine.load()
        assert load.running <= seqs
        assert len(engine.running_adapters()) <= 1
        assert load.running + load.waiting == len(engine)

    for action in actions:
        if action[0] == "submit":
            name = len(wanted)
            wanted[name] = action[2]
            new = request(name, action[1], action[2], family=action[3], shared=action[4], tail=action[5])
            engine.submit(replace(new, adapter=("", "x", "y")[action[3]]), now)
        elif action[0] == "abort":
            engine.abort(action[1], now)
            if action[1] in wanted and action[1] not in ended:
                aborted.add(action[1])
        elif action[0] == "follow":
            engine.change_policy(replace(engine.settings, queue=action[1], queue_options={}, chunk_blocks=action[2]))
        else:
            for _ in range(action[1]):
                step()
        check()

    for _ in range(20_000):
        if not step():
            break
    assert engine.step(now) is None, "some request starves"
    survivors = set(wanted) - aborted
    assert Counter(ended) == Counter(dict.fromkeys(survivors, 1)) + Counter(
        {name: 1 for name in aborted if name in ended}
    )
    assert {name: got[name] for name in survivors} == {name: wanted[name] for name in survivors}
    assert engine.pool.in_use == 0
    assert engine.load().prefill_tokens == 0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000))
def test_device_sees_the_true_sums(seed: int) -> None:
    """The decode clock against a plain count over the requests."""
    rng = random.Random(seed)
    engine = make_engine(cache_blocks=40, max_num_seqs=5, max_batched_tokens=20)
    prompts: dict[object, int] = {}
    tokens: Counter[object] = Counter()
    now = 0.0
    for name in range(40):
        prompt = rng.randint(1, 30)
        prompts[name] = prompt
        engine.submit(
            request(name, prompt, rng.randint(1, 20), family=rng.randint(0, 1), shared=rng.randint(0, 7)), now
        )
        for _ in range(rng.randint(0, 4)):
            report = engine.step(now)
            if report is None:
                break
            now += 1.0
            shape = engine.settings.device.shapes[-1]  # type: ignore[attr-defined]
            decoding = report.tokens[: report.decode_tokens]
            assert shape.decodes == len(decoding)
            assert shape.context == sum(prompts[name] + tokens[name] for name in decoding)
            tokens.update(report.tokens)


class TestAdapters:
    def _submit(self, engine: SimEngine, **adapters: str) -> None:
        for name, adapter in adapters.items():
            engine.submit(replace(request(name, 4, 3), adapter=adapter), 0.0)

    def test_an_adapter_without_a_slot_waits_and_others_go_first(self) -> None:
        engine = make_engine(adapter_slots=1)
        self._submit(engine, a="x", b="y", c="x", d="")
        reports = drain(engine)
        assert reports[0].admitted == ["a", "c", "d"]
        assert reports[3].admitted == ["b"], "in the step after the last request of the other adapter"

    def test_each_adapter_has_a_slot(self) -> None:
        engine = make_engine(adapter_slots=2)
        self._submit(engine, a="x", b="y")
        assert drain(engine)[0].admitted == ["a", "b"]

    def test_waiting_ones_keep_their_order(self) -> None:
        engine = make_engine(adapter_slots=1)
        self._submit(engine, a="x", b="y", c="z")
        admitted = [name for report in drain(engine) for name in report.admitted]
        assert admitted == ["a", "b", "c"]

    def test_an_aborted_request_frees_its_slot(self) -> None:
        engine = make_engine(adapter_slots=1)
        self._submit(engine, a="x", b="y")
        engine.step(0.0)
        assert (engine.running_adapters(), engine.waiting_adapters()) == (["x"], ["y"])
        engine.abort("a", 0.5)
        assert (step := engine.step(1.0)) is not None
        assert step.admitted == ["b"]

    def test_a_request_without_a_slot_is_not_held_back_by_the_policy(self) -> None:
        engine = make_engine(adapter_slots=1)
        self._submit(engine, a="x", b="y")
        engine.step(0.0)
        assert engine.held_back == 0


class TestHeldBack:
    def test_a_request_that_comes_during_a_step_is_not_held_back(self) -> None:
        engine = make_engine(queue="ChtOrder")
        engine.submit(request("a", 8, 5), 0.0)
        engine.step(0.0)
        engine.submit(request("b", 8, 5), 0.5)
        assert (engine.load().waiting, engine.held_back) == (1, 0)

    def test_requests_that_wait_after_a_stop_are(self) -> None:
        engine = make_engine(
            queue="Heuristic", cache_blocks=200, max_num_seqs=8, max_batched_tokens=256, chunk_blocks=1
        )
        for name in range(4):
            engine.submit(request(name, 40, 20, shared=8), 0.0)
        engine.step(0.0)
        for name in (10, 11):
            engine.submit(request(name, 40, 2, family=name), 0.5)
        engine.step(1.0)
        assert (engine.load().waiting, engine.held_back) == (2, 2)
        engine.submit(request(12, 40, 2), 1.5)
        assert engine.held_back == 2, "the new one was not decided yet"
        for name in (10, 11, 12):
            engine.abort(name, 1.6)
        assert engine.held_back == 0
