"""Each routing baseline against its product's formula, over random states and the whole history.

A model gets the query, the replicas and every prompt routed so far, by slot. It returns a cost per replica: the lowest
wins. It has no index, no ring and no running count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from plumage.routing import Query, ReplicaState
from plumage_bench.baselines.routing import POLICY_NAMES, make_policy

Chunks = tuple[int, ...]
History = Sequence[tuple[int, Chunks]]  # (slot, prompt), oldest first
Model = Callable[[Query, Sequence[ReplicaState], History], list[float]]


def matched(query: Query, slot: int, history: History) -> int:
    """Leading chunks that `query` shares with a prompt that was sent to `slot`."""
    best = 0
    for where, prompt in history:
        if where == slot:
            same = [ours == theirs for ours, theirs in zip(query.chunks, prompt, strict=False)]
            best = max(best, same.index(False) if False in same else len(same))
    return best


def shares(query: Query, replicas: Sequence[ReplicaState], history: History) -> list[float]:
    return [matched(query, replica.slot, history) / len(query.chunks) for replica in replicas]


def load(replica: ReplicaState) -> int:
    return max(replica.routed, replica.running + replica.waiting)


def least_load(query: Query, replicas: Sequence[ReplicaState], history: History) -> list[float]:
    return [float(load(replica)) for replica in replicas]


def prefix_aware(query: Query, replicas: Sequence[ReplicaState], history: History) -> list[float]:
    """The rank in the order by (most tokens held, least load)."""
    keys = [(-query.hits.get(replica.slot, 0.0), load(replica)) for replica in replicas]
    return [float(sorted(keys).index(key)) for key in keys]


def llmd(
    query: Query, replicas: Sequence[ReplicaState], history: History, *, precise: bool, cold: float
) -> list[float]:
    """3·prefix + 2·queue + 2·(1 − KV usage), and KServe's scorer for requests without a hit on any replica."""
    if precise:
        prefix = [query.hits.get(replica.slot, 0.0) / query.tokens for replica in replicas]
    else:
        prefix = shares(query, replicas, history)
    queues = [replica.waiting for replica in replicas]
    spread = max(queues) - min(queues)
    queue = [(max(queues) - length) / spread if spread else 1.0 for length in queues]
    chill = cold_ranks(replicas, history) if cold and not any(prefix) else [0.0] * len(replicas)
    return [
        -(3 * p + 2 * q + 2 * (1 - replica.kv_usage) + cold * c)
        for p, q, c, replica in zip(prefix, queue, chill, replicas, strict=True)
    ]


def cold_ranks(replicas: Sequence[ReplicaState], history: History) -> list[float]:
    """1 for the replica whose last cold request is oldest, 0 for the newest, and even steps between. A replica without
    one counts as oldest. A request is cold if no earlier one on these replicas began alike.
    """
    if len(replicas) == 1:
        return [0.0]
    last = dict.fromkeys((replica.slot for replica in replicas), -1)
    for number, (slot, prompt) in enumerate(history):
        earlier = history[:number]
        if all(not prompt or prompt[0] != other[0] for _, other in earlier):
            last[slot] = number
    older = [sum(last[other.slot] < last[replica.slot] for other in replicas) for replica in replicas]
    return [1 - count / (len(replicas) - 1) for count in older]


def dynamo(query: Query, replicas: Sequence[ReplicaState], history: History) -> list[float]:
    costs = []
    for replica in replicas:
        prefill = max(replica.prefill_tokens + query.tokens - query.hits.get(replica.slot, 0.0), 0) / 16
        costs.append(prefill + replica.decode_blocks + query.tokens / 16)
    return costs


def sglang(
    query: Query, replicas: Sequence[ReplicaState], history: History, *, limits: tuple[float, float, float], fork: bool
) -> list[float]:
    threshold, absolute, relative = limits
    loads = [float(replica.routed) for replica in replicas]
    if max(loads) - min(loads) > absolute and max(loads) > relative * min(loads):
        return loads
    share = shares(query, replicas, history)
    if max(share) > threshold:
        return [-one for one in share]
    if not fork:
        return loads
    nodes = [{p[: n + 1] for slot, p in history if slot == r.slot for n in range(len(p))} for r in replicas]
    return [float(len(one)) for one in nodes]


def aibrix(query: Query, replicas: Sequence[ReplicaState], history: History) -> list[float]:
    """The best match among those with load ≤ mean + one deviation, fewer requests among equals; otherwise fewest
    requests.
    """
    loads = [float(replica.routed) for replica in replicas]
    if max(loads) - min(loads) > 8:
        return loads
    mean = sum(loads) / len(loads)
    limit = mean + sqrt(sum((one - mean) ** 2 for one in loads) / len(loads))
    found = [matched(query, replica.slot, history) for replica in replicas]
    holders = [(match, -load) for match, load in zip(found, loads, strict=True) if load <= limit and match]
    if not holders:
        return loads
    return [float((match, -load) != max(holders)) for match, load in zip(found, loads, strict=True)]


def production_stack(query: Query, replicas: Sequence[ReplicaState], history: History, *, beta: float) -> list[float]:
    mean = sum(replica.routed for replica in replicas) / len(replicas)
    share = shares(query, replicas, history)
    return [beta * (r.routed - mean) / max(1, mean) - one for r, one in zip(replicas, share, strict=True)]


def kubeai(query: Query, replicas: Sequence[ReplicaState], history: History) -> list[float]:
    """Distance on the ring of 2⁶⁴ from the prompt's first 100 characters to a replica's nearest of 256 points, for
    replicas within 1.25 times the mean load with one request more.
    """
    key = xxh64_intdigest(query.text[:100])
    bound = 1.25 * (sum(replica.routed for replica in replicas) + 1) / len(replicas)
    distances = []
    for replica in replicas:
        points = [xxh64_intdigest(f"{replica.slot}-{node}".encode()) for node in range(256)]
        near = min((point - key) % 2**64 for point in points)
        distances.append(float(near) if replica.routed <= bound else float("inf"))
    return distances


def _with(model: Callable[..., list[float]], **fixed: Any) -> Model:
    return lambda query, replicas, history: model(query, replicas, history, **fixed)


FORK, RUST, PYTHON = (0.5, 32, 1.0001), (0.5, 32, 1.1), (0.3, 64, 1.5)
CASES: list[tuple[str, dict[str, Any], Model]] = [
    ("LeastLoad", {}, least_load),
    ("PrefixAware", {}, prefix_aware),
    ("LlmDWeighted", {}, _with(llmd, precise=False, cold=0.0)),
    ("LlmDWeighted", {"precise": True}, _with(llmd, precise=True, cold=0.0)),
    ("LlmDWeighted", {"cold_weight": 2.0}, _with(llmd, precise=False, cold=2.0)),
    ("Dynamo", {}, dynamo),
    ("SglangCacheAware", {}, _with(sglang, limits=FORK, fork=True)),
    ("SglangCacheAware", {"preset": "gateway-rust"}, _with(sglang, limits=RUST, fork=False)),
    ("SglangCacheAware", {"preset": "gateway-python"}, _with(sglang, limits=PYTHON, fork=False)),
    ("AIBrix", {}, aibrix),
    ("ProductionStack", {}, _with(production_stack, beta=0.0)),
    ("ProductionStack", {"load_aware": True}, _with(production_stack, beta=1.0)),
    ("KubeAI", {}, kubeai),
]
IDS = [" ".join([name, *map(str, options.values())]) for name, options, _ in CASES]
WITHOUT_FORMULA = {
    "Lbgr",
    "LbgrPaper",
    "LbgrCode",
    "LlmD",
    "Random",
    "RoundRobin",
    "PowerOfTwo",
}  # tested elsewhere and below


def states(rng: random.Random, slots: Sequence[int]) -> list[ReplicaState]:
    """A quiet fleet, a busy one, and one that is out of balance."""
    spread = rng.choice([[2], [4], [12], [4, 80]])
    return [state(rng, slot, rng.choice(spread)) for slot in slots]


def state(rng: random.Random, slot: int, busy: int) -> ReplicaState:
    return ReplicaState(
        slot,
        routed=rng.randrange(busy),
        running=rng.randrange(busy),
        waiting=rng.randrange(6),
        kv_usage=rng.random(),
        prefill_tokens=rng.choice([0.0, rng.uniform(0, 9000)]),
        decode_blocks=rng.uniform(0, 400),
    )


def question(rng: random.Random, slots: Sequence[int]) -> Query:
    path: Chunks = ()
    for _ in range(rng.randint(1, 5)):
        path = (*path, 1 + 4 * (path[-1] if path else 0) + rng.randrange(4))
    tokens = 64.0 * len(path) + rng.randrange(64)
    hits = {slot: 64.0 * rng.randint(0, len(path)) for slot in slots if rng.random() < 0.7}
    return Query(0.0, tokens, hits, path, b"prompt %d" % rng.randrange(200) + b"." * rng.randrange(200))


@pytest.mark.parametrize(("name", "options", "model"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_choice_has_the_least_cost_by_the_formula(name: str, options: dict[str, Any], model: Model, seed: int) -> None:
    rng = random.Random(seed)
    policy = make_policy(name, rng=random.Random(seed), **options)
    slots = rng.sample(range(9), rng.randint(1, 5))
    history: list[tuple[int, Chunks]] = []
    for _ in range(25):
        replicas, query = states(rng, slots), question(rng, slots)
        costs = model(query, replicas, history)
        choice = policy.choose(query, replicas)
        chosen = slots.index(choice.slot)
        assert costs[chosen] <= min(costs) + 1e-9
        policy.routed(query, choice)
        history.append((choice.slot, tuple(query.chunks)))


@pytest.mark.parametrize("name", ["LlmDWeighted", "Dynamo", "LeastLoad"])
def test_reported_scores_equal_the_formula(name: str) -> None:
    """Explanations show the scores, so their values must be right, not only their order."""
    model = next(model for case, options, model in CASES if case == name and not options)
    rng, policy = random.Random(5), make_policy(name, rng=random.Random(5))
    for _ in range(50):
        replicas, query = states(rng, range(4)), question(rng, range(4))
        assert list(policy.choose(query, replicas).scores) == pytest.approx(model(query, replicas, []))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_power_of_two_takes_the_less_loaded_of_a_pair(seed: int) -> None:
    """For any pair, the other one has at least the same load. Each replica is chosen at times, except a single worst
    one.
    """
    rng, policy = random.Random(seed), make_policy("PowerOfTwo", rng=random.Random(seed))
    replicas = states(rng, range(4))
    loads = [load(replica) for replica in replicas]
    chosen = {policy.choose(question(rng, range(4)), replicas).slot for _ in range(200)}
    for slot in chosen:
        assert any(loads[slot] <= loads[other] for other in range(4) if other != slot)
    never = set(range(4)) - chosen
    assert all(loads[slot] == max(loads) for slot in never)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_round_robin_takes_the_next_slot_in_a_circle(seed: int) -> None:
    rng, policy, last = random.Random(seed), make_policy("RoundRobin", rng=random.Random(seed)), -1
    for _ in range(40):
        slots = rng.sample(range(8), rng.randint(1, 8))
        choice = policy.choose(question(rng, slots), [ReplicaState(slot) for slot in slots]).slot
        assert choice == min(slots, key=lambda slot: (slot - last - 1) % 8)
        last = choice


def test_every_policy_has_a_model_or_another_test() -> None:
    assert {name for name, _, _ in CASES} | WITHOUT_FORMULA == set(POLICY_NAMES)
