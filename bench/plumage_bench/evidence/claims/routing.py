"""Routing in virtual time, a production trace, and real routers. Devices are modelled."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim, at_least, at_most, exactly
from plumage_bench.evidence.derived import (
    again_of_full,
    over_cache_aware,
    rank_equal,
    rank_equal_of_full,
    rate_over,
    unreached_devices,
)
from plumage_bench.evidence.figures import Cell, Computed, Either, Key

__all__ = ["CLAIMS"]

_NAMES = {"gsp": "GSP", "multiturn": "Multi-turn", "longdoc": "Long documents", "fewshot": "Few-shot"}
_GAIN = {"gsp": 10, "multiturn": 1, "longdoc": 1, "fewshot": 1}
_PRODUCTS = Either(Key("products_rank"), Key("rank"))
_FULL_GAIN = Either(rate_over("cache-aware + Lru"), Key("rate_gain"))
_FULL_PRODUCTS = Either(rate_over(" + Lru"), _PRODUCTS)
_SETTING = "… default setting, one eviction for all, ours ÷ the best other"
_LARGE = ("gsp-16-stated", "gsp-16-quadratic", "gsp-16-mixed", "longdoc-16-stated", "longdoc-16-quadratic",
          "longdoc-16-mixed", "fewshot-16")  # fmt: skip
_TRACE_SIZES = ("1%", "3%", "10%", "20%")
_BESIDE = "(a) Ours beside the best"


def _setting(name: str) -> list[Claim]:
    """One workload in its paper's default setting, and by the highest rate of each fleet."""
    who, paper = _NAMES[name], "KVRouting: ahead of cache-aware + LRU"
    return [
        Claim(
            f"{who}, default setting, 4 workers: P50 to first token, cache-aware + LRU ÷ ours",
            name, Key("p50_ttft_gain"), at_least(_GAIN[name]), paper if _GAIN[name] == 1 else "",
        ),
        Claim("… P95 to first token", name, over_cache_aware("P95", less_is_better=True), at_least(1), paper),
        Claim("… requests a second, ours ÷ theirs", name, over_cache_aware("req/s", less_is_better=False),
              at_least(1), paper),
        Claim(
            "… highest rate with P95 to first token under 2 s, ours ÷ cache-aware + LRU, least of the cells",
            name, _FULL_GAIN, at_least(1),
        ),
        Claim(
            "… the same rate ÷ the best other's, baselines with LRU and ours with Hotness, least of the cells",
            name, _FULL_PRODUCTS, at_least(1),
        ),
        *_equal(name),
    ]  # fmt: skip


def _equal(name: str) -> list[Claim]:
    quick = f"{name}-quick"
    rank = "… the same rate ÷ the best other's, one eviction policy for all (`rank_equal`)"
    return [
        Claim("… highest rate, ours ÷ cache-aware + LRU, quick run", quick, Key("rate_gain"), at_least(1)),
        Claim(f"{rank}, quick run", quick, Computed(rank_equal), at_least(1), "", f"plumage bench {name} --quick"),
        Claim("… the same by its interval", quick, Computed(rank_equal), at_least(1, by_bound=True)),
        Claim("… ours ÷ ours on other prompts and arrivals, quick run", quick, Key("aa")),
        *_at_default_rate(name, quick, "quick run"),
        Claim(f"{rank}, full run", name, Either(Computed(rank_equal_of_full), Key("rank_equal")),
              at_least(1, by_bound=True), "", f"plumage bench {name}"),
        *_unreached(name),
        Claim("… ours ÷ ours on other prompts and arrivals, full run", name, Either(Computed(again_of_full), Key("aa")),
              command=f"plumage bench {name}"),
        *_at_default_rate(name, name, "full run"),
    ]  # fmt: skip


def _unreached(name: str) -> list[Claim]:
    if name != "longdoc":
        return []
    words = "… devices of five on which no policy reaches the limit at any rate, which are in no figure of rates"
    return [Claim(words, name, Computed(unreached_devices), command=f"plumage bench {name}")]


def _at_default_rate(name: str, file: str, extent: str) -> list[Claim]:
    command = f"plumage bench {name}{' --quick' if extent == 'quick run' else ''}"
    return [
        Claim(f"{_SETTING}: {what}, {extent}", file, Key(f"setting_{key}_over_best"), target, "", command)
        for what, key, target in (
            ("requests a second", "throughput", at_least(1)),
            ("P50 to first token", "p50", at_most(1)),
            ("P95 to first token", "p95", at_most(1)),
        )
    ]


def _large(file: str) -> list[Claim]:
    name, *rest = file.split("-")
    fleet = f"{_NAMES[name]}, 16 workers, {f'{rest[1]} device' if len(rest) > 1 else 'three devices'}"
    return [
        Claim(f"{fleet}: highest rate, ours ÷ cache-aware + LRU", file, Key("rate_gain"), at_least(1)),
        Claim("… ÷ the best other's, baselines with LRU and ours with Hotness", file, _PRODUCTS, at_least(1)),
    ]


def _trace() -> list[Claim]:
    theirs = "÷ the best of libCacheSim's policies"
    rows = {"second half": "held-out half", "whole trace, both -": "whole trace, full blocks for both",
            "second half, both -": "held-out half, full blocks for both"}  # fmt: skip
    return [
        Claim(f"Mooncake trace, one cache {theirs}, least of four sizes, whole trace", "trace",
              Key("min_over_best"), at_least(1)),
        Claim("… held-out half (`min_over_best_second`)", "trace", Key("min_over_best_second"), at_least(1)),
        Claim("… whole trace, partial blocks for both", "trace", Key("min_over_best_partial"), at_least(1)),
        *(
            Claim(f"… {text}, cache of {size}", "trace", Cell(_BESIDE, (row, size), "ours ÷ best"), at_least(1))
            for row, text in rows.items()
            for size in _TRACE_SIZES
        ),
        Claim("Mooncake trace, eight workers: hit ratio, ours ÷ best other", "trace", Key("fleet_hit_over_best"),
              at_least(0.97)),
        Claim("… P50 to first token, ours ÷ best other", "trace", Key("fleet_ttft_p50_over_best"), at_most(1)),
        Claim("… P95 to first token, ours ÷ best other", "trace", Key("fleet_ttft_p95_over_best"), at_most(1)),
    ]  # fmt: skip


def _routers() -> list[Claim]:
    command = "plumage bench routers --quick"
    return [
        Claim("Three routers, the directory killed midway: P95 to first token ÷ one router's that sees everything, the "
              "worse of two workloads (`three_over_one_p95`)", "routers", Key("three_over_one_p95"), at_most(1.03), "",
              command),
        Claim("… hit ratio ÷ one router's (`three_over_one_hits`)", "routers", Key("three_over_one_hits"),
              at_least(0.97), "", command),
        Claim("… P95 to first token ÷ one router's, the directory always there", "routers", Key("shared_p95"),
              command=command),
        Claim("… after the directory was back", "routers", Key("after_p95"), command=command),
        Claim("… a third router joins: its requests of the first minute ÷ one router's", "routers", Key("joined_p95"),
              command=command),
    ]  # fmt: skip


def _quality() -> list[Claim]:
    command = "plumage bench quality"
    names = {**_NAMES, "trace": "Synthetic trace"}
    return [
        Claim("Real routers before the same simulated engines, real time: P95 to first token, the best of three peers "
              "that know caches ÷ ours, the worst of five workloads (`rank_min`)", "quality", Key("rank_min"),
              at_least(0.97), "", command),
        *(Claim(f"… {words}", "quality", Key(f"rank_{name}"), command=command) for name, words in names.items()),
        Claim("… requests that ours failed", "quality", Key("failed"), exactly(0), "", command),
        Claim("… runs whose requests were sent late", "quality", Key("late_runs"), exactly(0), "", command),
    ]  # fmt: skip


def _hotspot() -> list[Claim]:
    command = "plumage bench hotspot --quick"
    return [
        Claim("A prefix with 60 % of the requests, which becomes hot and cools: P95 to first token ÷ the best other "
              "policy or setting (`p95_over_best`)", "hotspot", Key("p95_over_best"), at_most(1.05), "", command),
        *(
            Claim(f"… replicas that get it, {phase}", "hotspot", Key(f"replicas_{phase}"), command=command)
            for phase in ("quiet", "peak", "cool")
        ),
        Claim("A system prompt that all requests share: P95 to first token ÷ the best other", "hotspot",
              Key("system_p95_over_best"), at_most(1.05), "", command),
        Claim("… requests of the busiest replica ÷ an equal share", "hotspot", Key("system_busiest"), command=command),
    ]  # fmt: skip


def _adapters() -> list[Claim]:
    command = "plumage bench adapters --quick"
    return [
        Claim("LoRA adapters that do not fit into one replica's slots: P95 to first token ÷ that of LBGR alone, worst "
              "of three cells (`p95_over_any`)", "adapters", Key("p95_over_any"), at_most(1.0), "", command),
        Claim("… ÷ the best other rule or policy (`p95_over_best`)", "adapters", Key("p95_over_best"), at_most(1.05),
              "", command),
        *(
            Claim(f"… requests that found no slot, {cell}", "adapters", Key(f"waits_{cell}"), command=command)
            for cell in ("calm", "hot", "crowded")
        ),
    ]  # fmt: skip


CLAIMS = (
    *(claim for name in _NAMES for claim in _setting(name)),
    *(claim for file in _LARGE for claim in _large(file)),
    *_trace(),
    *_routers(),
    *_quality(),
    *_hotspot(),
    *_adapters(),
)
