"""`plumage bench hostmem-global`: compares host memory that is ranked by the pool's hotness with host memory that is
ranked by each replica's own.

There are four replicas. Each has vLLM's real scheduler, block pool and offloading connector over a fake device
(`vllm.pretend`), with the plugin's eviction by hotness, host tier and promotion. Both contenders have equal memory. The
device holds an eighth of all prefixes besides what a batch needs, host memory a quarter. The load is few-shot questions
whose subjects are popular by Zipf's law: with equally popular subjects hotness could not help. After each quarter of
the questions other subjects become the most popular.

`local` counts the requests of each replica. `global` also has the pool's hotness, computed as in production. A request
counts as a use of the deepest chunk that any replica has (0064). The counts age with the pool's requests. Every 64
requests each replica gets the aged uses of its blocks (0135), which count for host memory, promotion and eviction on
the device (0152). There are two ways of routing. *In turn*: to the replica with the fewest requests in flight. *By
prefix*: to the replica that has most of the prefix, unless it is busy. The closing line is for the first: with routing
by prefix one replica sees all requests of a prefix, so it knows its hotness alone.

A pair is a suite with a seed, which draws lengths, popular subjects and questions. Both contenders serve the same
prompts. `as_configured` is the result: the ratio with equal settings. With the pool's hotness fewer blocks are copied
to host memory, so the note `interpolated` compares at equal bytes. For it `local` also runs with higher values of
`minFrequency`, which copy fewer blocks. Its hits for the blocks that `global` copied are interpolated between the
nearest two runs, or are those of the nearest run at the ends. No configuration has that figure.

Hits are counted, so they do not depend on the machine, but on chance: when copies end, and what a replica without
reports draws. `again` is `local` with another seed of that chance, on the same prompts. Its ratio to `local` is the
noise.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

from plumage.hotness.fleet import FleetHotness, HotnessDelta
from plumage.settings.engine_policies import HostTierConfig
from plumage_bench.benches.vllm_hostmem import BLOCK, tokens_of
from plumage_bench.harness import Context, Report, ResultTable, interval_keys
from plumage_bench.ours import Ours
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.vllm.engine import prepare_environment
from plumage_bench.workloads import FEWSHOT_SUITES, FewshotShape, Prompt, fewshot_prompts

__all__ = ["run"]

REPLICAS: Final = 4
_BATCH = 8
_EVERY = 64  # requests of the pool between two reports; at 6 a second that is the agents' ten seconds
_CHUNK = 4  # blocks of 16 tokens in a chunk of 256 bytes
_QUESTIONS = 1024
_PHASES = 4
_SPILL = 4  # requests that the replica with the prefix may have more than the least busy replica
ROUTES = ("in turn", "by prefix")
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "in turn": ("local", "local 3", "local 4", "global", "again"),
    "by prefix": ("local", "global"),
}
OURS = Ours(
    {"engine.hostMemory.capacity": "1Gi", "engine.feather.policy": "Fcfs", "engine.batchLimit": "Static"}, "VLLM"
)
"""The eviction and host tier of a pool, with vLLM's own queue."""
_FREQUENCIES: Final[Mapping[str, int | None]] = {"local": None, "local 3": 3, "local 4": 4}
"""minFrequency of `local` runs; None, and all others: the manifest's."""
_SEEDS: Final = 6  # seeds for routing in turn; by prefix half as many
_OTHER_CHANCE: Final = 1_000


def tier_of(kind: str) -> HostTierConfig:
    """The host tier of a replica, by its source of hotness."""
    tier = OURS.plugin()["hostTier"]
    own = _FREQUENCIES.get(kind)
    return HostTierConfig.model_validate(tier if own is None else {**tier, "minFrequency": own})


@dataclass(slots=True)
class Counted:
    """Prompt tokens: all, found on devices, found in host memory. Blocks: copied to host memory, and promoted before a
    request."""

    prompt: int = 0
    device: int = 0
    host: int = 0
    stored: int = 0
    promoted: int = 0

    @property
    def device_ratio(self) -> float:
        return self.device / self.prompt

    @property
    def ratio(self) -> float:
        return (self.device + self.host) / self.prompt


class Pool:
    """The pool's hotness, computed as routers, directory and agents do, with the number of requests as the clock."""

    def __init__(self, replicas: Sequence[Any]) -> None:
        self.view = FleetHotness()
        self._replicas = replicas
        self._paths: dict[int, tuple[int, ...]] = {}
        self._now = 0

    def asked(self, keys: Sequence[int], held: int) -> None:
        """A request for the blocks `keys`. Some replica has the first `held` of them."""
        self._now += 1
        depth = held // _CHUNK * _CHUNK
        if depth:
            self._paths[keys[depth - 1]] = tuple(keys[:depth])
        self.view.add(HotnessDelta(1, {keys[depth - 1]: (1, depth * BLOCK)} if depth else {}))
        if self._now % _EVERY == 0:
            self._report_hotness()

    def _report_hotness(self) -> None:
        uses: dict[int, int] = {}
        for last, path in self._paths.items():
            if faded := self.view.aged(last):
                for key in path:
                    uses[key] = uses.get(key, 0) + faded
        for replica in self._replicas:
            replica.hotness.update({key: number for key, number in uses.items() if replica.holds(key)})


class Replica:
    """One engine with the plugin's host tier. hotness: the pool's; empty for `local`."""

    def __init__(self, model: Path, device: int, host: int, seed: int, kind: str) -> None:
        from plumage.settings.engine_policies import EvictionConfig
        from plumage_bench.vllm.pretend import PretendEngine, host_tier_arguments
        from plumage_engine.vllm.counters import Counters
        from plumage_engine.vllm.eviction import ordered_pool
        from plumage_engine.vllm.guard import Guard
        from plumage_engine.vllm.offload.install import install
        from plumage_engine.vllm.pool_hotness import PoolHotness

        self.engine = PretendEngine(
            model, blocks=device + 1, seed=seed, block_size=BLOCK, max_num_seqs=_BATCH, max_num_batched_tokens=2048,
            max_model_len=8192, **host_tier_arguments(host),
        )  # fmt: skip
        self.hotness = PoolHotness(lambda: 0.0)
        settings, counters = tier_of(kind), Counters()
        guard, eviction = Guard("promotion", counters), Guard("eviction", counters)
        prior, rng, engine = self.hotness if kind == "global" else None, random.Random(seed), self.engine
        order = EvictionConfig.model_validate(OURS.plugin()["eviction"])
        ordered_pool.install(engine.scheduler, order, eviction, counters, rng, lambda: float(engine.steps))
        if prior is not None:
            ordered_pool.use_pool_hotness(engine.scheduler, prior.prior)
        manager: Any = install(self.engine.scheduler, settings, guard, counters, prior=prior, seed=seed)
        if off := [one.reason for one in (guard, eviction, manager.guard) if not one.on]:
            raise RuntimeError(f"a feature is off: {off}")
        self._manager = manager
        self._names: dict[int, bytes] = {}

    @property
    def busy(self) -> int:
        return len(self.engine.scheduler.requests)

    def ask(self, name: str, prompt: Prompt, tokens: list[int]) -> None:
        self.engine.add(name, tokens, prompt.output_tokens)
        for one in self.engine.requests[name].block_hashes:
            self._names[int.from_bytes(one[-8:], "big")] = one

    def holds(self, key: int) -> bool:
        """Whether the block is on the device or in host memory."""
        name = self._names.get(key)
        if name is None:
            return False
        here: bool = self.engine.pool.get_cached_block(name, [0]) is not None
        return here or self._manager.residents.get(name + bytes(4)) is not None

    def held(self, keys: Sequence[int]) -> int:
        """How many leading blocks of the chain `keys` it has."""
        return next((depth for depth, key in enumerate(keys) if not self.holds(key)), len(keys))

    def step_until(self, requests: int) -> None:
        while self.busy >= requests:
            self.engine.step()


def play(model: Path, prompts: Sequence[Prompt], device: int, host: int, seed: int, route: str, kind: str) -> Counted:
    """Four replicas serve all prompts. device, host: blocks of each replica."""
    replicas = [Replica(model, device, host, seed + number, kind) for number in range(REPLICAS)]
    pool = Pool(replicas)
    hasher = Hasher()
    for number, prompt in enumerate(prompts):
        tokens = tokens_of(prompt, number)
        keys = hasher.keys(tokens)
        held = [replica.held(keys) for replica in replicas]
        pool.asked(keys, max(held))
        one = _chosen(route, number, held, [replica.busy for replica in replicas])
        replicas[one].ask(str(number), prompt, tokens)
        for replica in replicas:
            replica.step_until(2 * _BATCH)
    for replica in replicas:
        replica.engine.finish(10_000_000)
    found = [pair for replica in replicas for pair in replica.engine.cached.values()]
    return Counted(
        sum(prompt.tokens for prompt in prompts),
        sum(device for device, _ in found),
        sum(host for _, host in found),
        sum(replica.engine.stored_blocks for replica in replicas),
        sum(replica.engine.promoted_blocks for replica in replicas),
    )


class Hasher:
    """vLLM's block hashes as in KV events: their low 64 bits."""

    def __init__(self) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash

        init_none_hash(sha256)
        self._hash: Any = hash_block_tokens
        self._function: Any = sha256

    def keys(self, tokens: Sequence[int]) -> list[int]:
        found, parent = [], None
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = self._hash(self._function, parent, tuple(tokens[start : start + BLOCK]), None)
            found.append(int.from_bytes(parent[-8:], "big"))
        return found


def _chosen(route: str, number: int, held: Sequence[int], busy: Sequence[int]) -> int:
    least = min(busy)
    if route == "in turn":
        return min(range(REPLICAS), key=lambda one: (busy[one], (one - number) % REPLICAS))
    free = [one for one in range(REPLICAS) if busy[one] < least + _SPILL]
    return max(free, key=lambda one: (held[one], -busy[one], (number - one) % REPLICAS))


def drifting(shape: FewshotShape, seed: int) -> list[Prompt]:
    """The suite's questions. After each quarter other subjects are the most popular."""
    prompts: list[Prompt] = []
    everything = fewshot_prompts(replace(shape, zipf=0.0, questions=_PHASES * 4 * shape.questions), seed)
    by_subject: dict[int, list[Prompt]] = {}
    for prompt in everything:
        by_subject.setdefault(prompt.group, []).append(prompt)
    rng = random.Random(f"favourites {seed}")
    subjects = sorted(by_subject)
    rng.shuffle(subjects)
    weights = [1.0 / (rank + 1) for rank in range(len(subjects))]
    for phase in range(_PHASES):
        turn = phase * len(subjects) // 3 % len(subjects)
        order = subjects[turn:] + subjects[:turn]
        drawn = rng.choices(order, weights, k=shape.questions // _PHASES)
        prompts += [by_subject[subject].pop() for subject in drawn if by_subject[subject]]
    return prompts


def run(context: Context) -> Report:
    """All contenders on the same prompts, for all suites, seeds and ways of routing."""
    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    names = ("mmlu", "bbh") if context.quick else tuple(FEWSHOT_SUITES)
    counts = dict.fromkeys(ROUTES, 2) if context.quick else _counts(context)
    total = len(names) * sum(counts[route] * len(KINDS[route]) for route in ROUTES)
    found: dict[tuple[str, str], dict[str, list[Counted]]] = {}
    with TemporaryDirectory() as folder, context.progress("pools", total) as advance:
        model = write_model(Path(folder) / "tiny")
        for suite in names:
            # Each token of an answer takes a step, so a suite of long answers gets fewer questions.
            fewer = (2 if context.quick else 1) * (2 if FEWSHOT_SUITES[suite].output_tokens > 1 else 1)
            shape = replace(FEWSHOT_SUITES[suite], questions=_QUESTIONS // fewer)
            prefixes = int(shape.subjects * shape.example_tokens / BLOCK)
            own = int(_BATCH * (shape.question_tokens * 2 + shape.output_tokens * 2) / BLOCK)
            for route in ROUTES:
                rows = found[suite, route] = {kind: [] for kind in KINDS[route]}
                for seed in range(context.seed, context.seed + counts[route]):
                    prompts = drifting(shape, seed)
                    for kind in KINDS[route]:
                        chance = seed + (_OTHER_CHANCE if kind == "again" else 0)
                        rows[kind].append(play(model, prompts, prefixes // 8 + own, prefixes // 4, chance, route, kind))
                        advance(1)
    return _report(found)


def _counts(context: Context) -> Mapping[str, int]:
    """The number of seeds by way of routing."""
    seeds = context.count("seeds", _SEEDS)
    return {"in turn": seeds, "by prefix": -(-seeds // 2)}


Found = Mapping[tuple[str, str], Mapping[str, Sequence[Counted]]]


def over_local(found: Found, route: str, kind: str, what: str = "device_ratio") -> PairedRatio:
    """`kind` ÷ local, over all pairs of that way of routing: each suite with each of its seeds."""
    over = [getattr(one, what) for (_, way), rows in found.items() if way == route for one in rows[kind]]
    under = [getattr(one, what) for (_, way), rows in found.items() if way == route for one in rows["local"]]
    return paired_ratio(over, under)


def at_equal_bytes(found: Found) -> PairedRatio:
    """`global` ÷ the hits of local hotness with as many blocks copied to host memory: device hits, requests in turn."""
    pairs = [
        (one.device_ratio, _with_stored(one.stored, [rows[name][number] for name in _FREQUENCIES]))
        for (_, way), rows in found.items()
        if way == "in turn"
        for number, one in enumerate(rows["global"])
    ]
    return paired_ratio([one for one, _ in pairs], [local for _, local in pairs])


def _with_stored(stored: int, known: Sequence[Counted]) -> float:
    """Device hits for this many blocks copied to host memory, interpolated between `known` points; at their ends
    constant."""
    line = sorted(known, key=lambda one: one.stored)
    for fewer, more in pairwise(line):
        if fewer.stored <= stored < more.stored:
            part = (stored - fewer.stored) / (more.stored - fewer.stored)
            return fewer.device_ratio + part * (more.device_ratio - fewer.device_ratio)
    return (line[0] if stored < line[0].stored else line[-1]).device_ratio


def _report(found: Found) -> Report:
    keys: dict[str, int | float | str] = {}
    for name, route, kind, what in (
        ("as_configured", "in turn", "global", "device_ratio"),
        ("again_over_local", "in turn", "again", "device_ratio"),
        ("by_prefix", "by prefix", "global", "device_ratio"),
        ("all_hits", "in turn", "global", "ratio"),
    ):
        keys |= interval_keys(name, over_local(found, route, kind, what))
    keys |= interval_keys("interpolated", at_equal_bytes(found))
    keys["pairs"] = over_local(found, "in turn", "global").pairs
    data = {f"{suite}, {route}": _plain(rows) for (suite, route), rows in found.items()}
    return Report(keys, [_table(found)], lambda figure: _plot(figure, found), data)


def _table(found: Found) -> ResultTable:
    columns = ("suite, route", "hotness", "device hits", "÷ local", "all hits", "÷ local", "stored", "promoted")
    shown: list[tuple[str | float | int, ...]] = []
    for (suite, route), rows in found.items():
        for kind, counted in rows.items():
            only = {(suite, route): rows}
            shown.append(
                (
                    f"{suite}, {route}", kind, round(fmean(one.device_ratio for one in counted), 4),
                    str(over_local(only, route, kind)), round(fmean(one.ratio for one in counted), 4),
                    str(over_local(only, route, kind, "ratio")), round(fmean(one.stored for one in counted)),
                    round(fmean(one.promoted for one in counted)),
                )
            )  # fmt: skip
    notes = (
        "Hits: share of prompt tokens. ÷ local: of the same prompts. local 3, 4: with that minFrequency. again: local "
        "with another seed of chance. Stored, promoted: blocks."
    )
    return ResultTable("Four replicas, favourites that change", columns, shown, notes)


def _plain(rows: Mapping[str, Sequence[Counted]]) -> dict[str, list[dict[str, int]]]:
    fields = tuple(Counted.__dataclass_fields__)
    return {kind: [{what: getattr(one, what) for what in fields} for one in counted] for kind, counted in rows.items()}


def _plot(figure: Any, found: Found) -> None:
    axes = figure.subplots()
    shown = [(key, kind) for key, rows in found.items() for kind in rows if kind != "local"]
    colours = {"global": "tab:blue"}
    for place, (key, kind) in enumerate(shown):
        rows = found[key]
        pairs = zip(rows[kind], rows["local"], strict=True)
        each = [one.device_ratio / local.device_ratio for one, local in pairs]
        ratio = over_local({key: rows}, key[1], kind)
        axes.scatter([place] * len(each), each, color=colours.get(kind, "tab:gray"), alpha=0.5)
        axes.errorbar(
            place + 0.15, ratio.ratio, [[ratio.ratio - ratio.low], [ratio.high - ratio.ratio]], fmt="_", color="black"
        )
    labels = [f"{suite}, {route}, {kind}" for (suite, route), kind in shown]
    axes.set_xticks(range(len(shown)), labels, fontsize=8, rotation=60, ha="right")
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set_ylabel(
        "device hits ÷ local: each pair, the mean, its 95 % interval (of fewer than five pairs their range)"
    )
