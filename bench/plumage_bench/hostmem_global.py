"""`plumage bench hostmem-global`: host memory ranked by the pool's hotness beside host memory ranked by each replica's.

Four replicas, each vLLM's real scheduler, block pool and offloading connector over a pretended device (`vllm_pretend`)
with the plugin's eviction by hotness, host tier and promotion. Both contenders have the same blocks of either memory:
devices that hold an eighth of all prefixes beside what a batch needs, host memories that hold a quarter. Few-shot
questions whose subjects are asked for by Zipf's law, since subjects that are all asked for alike have no hotness to
know; at each quarter of the questions other subjects become the favourites.

`local` counts what each replica was asked. `global` has the pool's word beside it, made as in production: a request
counts a use of the deepest chunk that any replica holds (0064), the view ages by the pool's requests, and each 64
requests each replica receives the faded uses of the blocks that it holds (0135), which count for host memory, promotion
and eviction on the device (0152). Requests go to replicas in two ways: in
turn, to the one with the fewest under way; and by prefix, to the one that holds most of it unless that one is busy.
The closing line is of the first: where each prefix has a home, its home has seen all there is to know of it.

A pair is a suite with a seed, which draws lengths, favourites and questions: both contenders serve the same prompts.
`as_configured` is the result: the ratio with the same settings. With the pool's word fewer blocks are copied down, so
`interpolated` compares at equal bytes, as a note: `local` also runs with a higher `minFrequency`, which copies fewer,
and the hits that it would have with as many blocks as `global` copied lie on the line between the two that copied more
and fewer; where none copied more, or none fewer, they are those of the nearest. No configuration has that figure.

Hits are counted, so the machine has no part in them, but what chance does has: when copies end, and what a replica that
receives nothing draws. `again` is `local` with another seed of that, on the same prompts: its ratio to `local` is
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
from plumage_bench.harness import Context, Report, ResultTable, interval_keys
from plumage_bench.ours import Ours
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.vllm_engine import prepare_environment
from plumage_bench.vllm_hostmem import BLOCK, tokens_of
from plumage_bench.workloads import FEWSHOT_SUITES, FewshotShape, Prompt, fewshot_prompts

__all__ = ["run"]

REPLICAS: Final = 4
_BATCH = 8
_EVERY = 64  # requests of the pool between two words; at 6 a second that is the agents' ten seconds
_CHUNK = 4  # blocks of 16 tokens that a chunk of 256 bytes covers
_QUESTIONS = 1024
_PHASES = 4
_SPILL = 4  # requests more than the least busy replica's that a holder may have
ROUTES = ("in turn", "by prefix")
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "in turn": ("local", "local 3", "local 4", "global", "again"),
    "by prefix": ("local", "global"),
}
OURS = Ours(
    {"engine.hostMemory.capacity": "1Gi", "engine.feather.policy": "Fcfs", "engine.batchLimit": "Static"}, "VLLM"
)
"""Order of eviction and host tier of a pool, under vLLM's own queue."""
_FREQUENCY = int(OURS.plugin()["hostTier"]["minFrequency"])
_FREQUENCIES: Final[Mapping[str, int]] = {"local": _FREQUENCY, "local 3": 3, "local 4": 4}
"""minFrequency of those that know what they saw themselves; all others have the first."""
_SEEDS: Final = 6  # requests in turn; by prefix half as many
_OTHER_CHANCE: Final = 1_000


def tier_of(kind: str) -> HostTierConfig:
    """The host tier of a replica, by who ranks it."""
    tier = OURS.plugin()["hostTier"]
    return HostTierConfig.model_validate({**tier, "minFrequency": _FREQUENCIES.get(kind, _FREQUENCY)})


@dataclass(slots=True)
class Counted:
    """Prompt tokens: all, found on devices, found in host memory; blocks copied down, and up ahead of requests."""

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
    """The word of the pool, made as routers, directory and agents make it, with requests for a clock."""

    def __init__(self, replicas: Sequence[Any]) -> None:
        self.view = FleetHotness()
        self._replicas = replicas
        self._paths: dict[int, tuple[int, ...]] = {}
        self._now = 0

    def asked(self, keys: Sequence[int], held: int) -> None:
        """A request for the blocks `keys`, of which some replica holds the first `held`."""
        self._now += 1
        depth = held // _CHUNK * _CHUNK
        if depth:
            self._paths[keys[depth - 1]] = tuple(keys[:depth])
        self.view.add(HotnessDelta(1, {keys[depth - 1]: (1, depth * BLOCK)} if depth else {}))
        if self._now % _EVERY == 0:
            self._tell()

    def _tell(self) -> None:
        uses: dict[int, int] = {}
        for last, path in self._paths.items():
            if faded := self.view.aged(last):
                for key in path:
                    uses[key] = uses.get(key, 0) + faded
        for replica in self._replicas:
            replica.heats.update({key: number for key, number in uses.items() if replica.holds(key)})


class Replica:
    """One engine with the plugin's host tier. heats: the pool's hotness; nothing where it is local."""

    def __init__(self, model: Path, device: int, host: int, seed: int, kind: str) -> None:
        from plumage.settings.engine_policies import EvictionConfig
        from plumage_bench.vllm_pretend import PretendEngine, host_tier_arguments
        from plumage_engine.vllm.counters import Counters
        from plumage_engine.vllm.eviction import ordered_pool
        from plumage_engine.vllm.guard import Guard
        from plumage_engine.vllm.offload.install import install
        from plumage_engine.vllm.pool_hotness import PoolHotness

        self.engine = PretendEngine(
            model, blocks=device + 1, seed=seed, block_size=BLOCK, max_num_seqs=_BATCH, max_num_batched_tokens=2048,
            max_model_len=8192, **host_tier_arguments(host),
        )  # fmt: skip
        self.heats = PoolHotness(lambda: 0.0)
        settings, counters = tier_of(kind), Counters()
        guard, eviction = Guard("promotion", counters), Guard("eviction", counters)
        prior, rng, engine = self.heats if kind == "global" else None, random.Random(seed), self.engine
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
        """On the device or in host memory."""
        name = self._names.get(key)
        if name is None:
            return False
        here: bool = self.engine.pool.get_cached_block(name, [0]) is not None
        return here or self._manager.residents.get(name + bytes(4)) is not None

    def held(self, keys: Sequence[int]) -> int:
        """Blocks of the chain `keys` that it holds from the first on."""
        return next((depth for depth, key in enumerate(keys) if not self.holds(key)), len(keys))

    def step_until(self, requests: int) -> None:
        while self.busy >= requests:
            self.engine.step()


def play(model: Path, prompts: Sequence[Prompt], device: int, host: int, seed: int, route: str, kind: str) -> Counted:
    """Four replicas serve all of them. device, host: blocks of each replica's."""
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
    """vLLM's block hashes as KV events tell them, their low 64 bits."""

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
    """The suite's questions; at each quarter of them other subjects are the favourites."""
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
    """All contenders on the same prompts, suites, seeds and ways of routing."""
    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    names = ("mmlu", "bbh") if context.quick else tuple(FEWSHOT_SUITES)
    counts = dict.fromkeys(ROUTES, 2) if context.quick else _counts(context)
    total = len(names) * sum(counts[route] * len(KINDS[route]) for route in ROUTES)
    found: dict[tuple[str, str], dict[str, list[Counted]]] = {}
    with TemporaryDirectory() as folder, context.progress("pools", total) as advance:
        model = write_model(Path(folder) / "tiny")
        for suite in names:
            # A suite of long answers takes a step a token: fewer questions do.
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
    """Seeds by way of routing."""
    seeds = context.count("seeds", _SEEDS)
    return {"in turn": seeds, "by prefix": -(-seeds // 2)}


Found = Mapping[tuple[str, str], Mapping[str, Sequence[Counted]]]


def over_local(found: Found, route: str, kind: str, what: str = "device_ratio") -> PairedRatio:
    """`kind` ÷ local, over all pairs of that way of routing: each suite with each of its seeds."""
    over = [getattr(one, what) for (_, way), rows in found.items() if way == route for one in rows[kind]]
    under = [getattr(one, what) for (_, way), rows in found.items() if way == route for one in rows["local"]]
    return paired_ratio(over, under)


def at_equal_bytes(found: Found) -> PairedRatio:
    """`global` ÷ what local's own hotness finds with as many blocks copied down: device hits, requests in turn."""
    pairs = [
        (one.device_ratio, _with_stored(one.stored, [rows[name][number] for name in _FREQUENCIES]))
        for (_, way), rows in found.items()
        if way == "in turn"
        for number, one in enumerate(rows["global"])
    ]
    return paired_ratio([one for one, _ in pairs], [local for _, local in pairs])


def _with_stored(stored: int, known: Sequence[Counted]) -> float:
    """Device hits for so many blocks copied down, on the line through `known`; beyond its ends, what is there."""
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
        "by other chance. Stored, promoted: blocks."
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
