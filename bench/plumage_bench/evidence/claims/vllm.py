"""Real vLLM on a CPU, with generated models: a small one of 8 layers for speed, random weights for the others."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim, at_least, at_most, exactly
from plumage_bench.evidence.derived import bandit_least, greatest_in_column, rounds_cached, rounds_ratio
from plumage_bench.evidence.figures import Cell, Either, Key

__all__ = ["CLAIMS"]

_FEATHER = "FEATHER in real vLLM"
_GAIN = "HotPrefix: 1.30 to 1.56"
_SUITES = ("mmlu", "bbh", "hellaswag", "ceval")
_FULL = "plumage bench vllm-feather"
_TURNS = "vllm-feather-turns"
_WITH_TURNS = "plumage bench vllm-feather 'cells=8 × 4k' 'policies=product;bandit, 10 s' pairs=5 resume=1"
_NOW = "vllm-feather-default"
_WITH_LONGER_TURNS = "plumage bench vllm-feather 'cells=8 × 4k' policies=product pairs=5"
_ORDER = "plumage bench vllm-order --quick"
_PRODUCT = "vllm-feather-product"
_DEFAULT = f"{_FULL} pairs=5 policies=product 'cells=8 × 4k;8 × 4k, open;no sharing, 1k'"
_MODELLED, _MIDDLE = "vllm-hotprefix-modelled", "llama-3-8b, 25 GB/s"
_DISK = "vllm-hotprefix-disk"
_OVER_ORDER = Either(Key("bandit_over_order_mean"), Key("over_order"))


def _was(name: str, before: str) -> Either:
    """A key that has another name in older runs; five seeds for each suite."""
    return Either(Key(name, pairs=5), Key(before, pairs=5))


def _over_fcfs(cell: str, policy: str) -> Cell:
    return Cell(_FEATHER, (cell, policy), "÷ FCFS")


def _of_product(cell: str, column: str) -> Cell:
    return Cell(_FEATHER, (cell, "product"), column)


_BATCHES = (
    Claim("Greedy answers that differ with the plugin", "vllm-parity", Key("mismatches"), exactly(0)),
    Claim("… that differ without it", "vllm-parity", Key("stock_mismatches"), exactly(0)),
    Claim("Simulator against vLLM: hit ratio, points off at most", "fidelity", Key("hit_points"), at_most(2)),
    Claim("… time to first token, relative error, vLLM without asynchronous scheduling", "fidelity",
          Key("ttft_error"), at_most(0.10)),
    Claim("… with asynchronous scheduling, vLLM's default, worst of four traces", "fidelity",
          greatest_in_column("stock, asynchronous (not counted)", "TTFT error"), at_most(0.10)),
    Claim("… throughput, relative error", "fidelity", Key("throughput_error"), at_most(0.10)),
    Claim("A toy model, 8 groups × 4k, closed: the default manifest ÷ the same with FCFS, output tokens a second", _NOW,
          _of_product("8 × 4k", "÷ FCFS"), at_least(2, by_bound=True), "", _WITH_LONGER_TURNS),
    Claim("… ÷ the tree's order, ageing limit 120 s", _NOW, _of_product("8 × 4k", "÷ order"), at_least(0.98),
          "", _WITH_LONGER_TURNS),
    Claim("… ÷ FCFS with turns of four batches; here and below eviction and limit as in vLLM", _TURNS,
          _of_product("8 × 4k", "÷ FCFS"), command=_WITH_TURNS),
    Claim("… the same ÷ FCFS before overdue requests had turns (0311)", _PRODUCT, _of_product("8 × 4k", "÷ FCFS"),
          command=_DEFAULT),
    Claim("… the tree's order alone, ageing limit 120 s", "vllm-feather",
          Either(_over_fcfs("8 × 4k", "order"), _over_fcfs("8 × 4k", "tree"))),
    Claim("… the bandit, ageing limit 120 s", "vllm-feather", _over_fcfs("8 × 4k", "bandit"), at_least(2)),
    Claim("… the bandit, a pool's ageing limit of 10 s", _TURNS, _over_fcfs("8 × 4k", "bandit, 10 s"),
          at_least(2), "", _WITH_TURNS),
    Claim("… part of the ceiling that one group sets", "vllm-feather", Key("of_ceiling"), at_least(0.85)),
    Claim("… open arrivals, before turns: the default manifest's order ÷ FCFS", _PRODUCT,
          _of_product("8 × 4k, open", "÷ FCFS"),
          command=_DEFAULT),
    Claim("… open arrivals, before turns: the default manifest's order ÷ the tree's, ageing limit 120 s", _PRODUCT,
          _of_product("8 × 4k, open", "÷ order"), at_least(0.98), "", _DEFAULT),
    Claim("… open arrivals: the bandit, ageing limit 120 s", "vllm-feather", _over_fcfs("8 × 4k, open", "bandit")),
    Claim("… open arrivals, before turns: the bandit, a pool's ageing limit of 10 s", "vllm-feather",
          _over_fcfs("8 × 4k, open", "bandit, 10 s")),
    Claim("… open arrivals, before turns: the bandit with 10 s ÷ the order with 120 s", "vllm-feather",
          Either(Cell(_FEATHER, ("8 × 4k, open", "bandit, 10 s"), "÷ order"),
                 Cell(_FEATHER, ("8 × 4k, open", "bandit, 10 s"), "÷ tree"))),
    Claim("Bandit ÷ the tree's order, mean of the cells", "vllm-feather", _OVER_ORDER, at_least(1)),
    Claim("… everywhere: the least of the cells", "vllm-feather",
          Either(bandit_least(_FEATHER, "÷ order"), bandit_least(_FEATHER, "÷ tree")), at_least(1)),
    Claim("… while it learns, quick run", "vllm-feather-quick", _OVER_ORDER, at_least(1), "", f"{_FULL} --quick"),
    Claim("… 20 prefixes, room for 4", "vllm-feather-room", _OVER_ORDER, at_least(1)),
    Claim("The default manifest's order ÷ known groups, least of five cells: levels, unequal answers, a step, cold "
          "groups",
          "vllm-order-quick", Key("over_oracle", pairs=5), at_least(0.97, by_bound=True), "", _ORDER),
    *(
        Claim(f"… {cell}", "vllm-order-quick", Cell("Orders in real vLLM", (cell, "product"), "÷ oracle"),
              command=_ORDER)
        for cell in ("two levels", "three levels", "unequal answers", "step", "cold groups")
    ),
    Claim("Nothing shared: bandit ÷ FCFS", "vllm-feather", _over_fcfs("no sharing, 1k", "bandit"),
          at_least(0.97, by_bound=True)),
    Claim("… the default manifest's order ÷ FCFS", _PRODUCT, _of_product("no sharing, 1k", "÷ FCFS"),
          at_least(0.97, by_bound=True), "", _DEFAULT),
    Claim("P99 by which a request begins later than under FCFS, s, ageing limit 10 s", "vllm-feather",
          Key("wait_later_s"), at_most(10)),
    *(
        Claim(f"… one pair beside: {cell}, bandit ÷ FCFS", "vllm-feather-beside",
              Cell(_FEATHER, (cell, "bandit"), "÷ FCFS"))
        for cell in ("8 × 4k, 1 token", "8 × 4k, 20 tokens", "8 × 2k", "8 × 4k, two levels", "8 × 4k, three levels",
                     "8 × 4k, batch 32")
    ),
    Claim("Engine core's CPU a request, a default pool's plugin ÷ stock, 2,000 queued", "vllm-overhead",
          Key("over_stock_2k", pairs=20), at_most(1.05)),
    Claim("… by the interval's upper end", "vllm-overhead", Key("over_stock_2k_high"), at_most(1.10)),
    Claim("… 20,000 queued", "vllm-overhead",
          Cell("CPU microseconds", ("20,000 queued",), "plugin ÷ stock"), at_most(1.05)),
    Claim("… answers of one token", "vllm-overhead",
          Cell("CPU microseconds", ("2,000 queued, answers of one token",), "plugin ÷ stock")),
    Claim("… 20,000 queued ÷ 2,000", "vllm-overhead", Key("growth_20k", pairs=20), at_most(1.2)),
    Claim("Adaptive batch limit ÷ best static batch, worst of six loads, virtual time", "vllm-pressure",
          Key("min_over_best_static", pairs=5), at_least(0.95)),
    Claim("… ÷ an oversized batch, 32k, without vLLM's gate", "vllm-pressure", Key("over_oversized", pairs=5),
          at_least(1.4)),
    Claim("… ÷ an oversized batch, 32k, with vLLM's gate", "vllm-pressure", Key("over_oversized_gated", pairs=5),
          at_least(1.4)),
    Claim("Decode attention over different prefixes ÷ one shared, batch of 16, 4k, CPU kernel",
          "attention-premise", Key("different_over_shared", pairs=20, low="low")),
)  # fmt: skip
_CACHES = (
    Claim("RLT's mean hit ratio over cache sizes, GSP's worst order, vLLM's pool", "vllm-eviction",
          Cell("GSP, worst order", ("Rlt",), "area")),
    Claim("… LRU's, in the same sizes; a ratio to 0 is undefined", "vllm-eviction",
          Cell("GSP, worst order", ("vLLM",), "area")),
    Claim("Hotness ÷ LRU, least of four few-shot suites, cache of 95 %; no other size was run", "vllm-eviction",
          Key("hotness_over_lru", pairs=20), at_least(1.02)),
    Claim("Hotness ÷ LRU on conversations", "vllm-eviction", Key("multiturn_hotness", pairs=20), at_least(0.98)),
    Claim("RLT ÷ LRU on conversations", "vllm-eviction", Key("multiturn_rlt", pairs=20), at_least(0.92)),
    Claim("CPU of an allocated block ÷ vLLM's own: Hotness", "vllm-eviction", Key("cost_hotness"), at_most(3)),
    Claim("… RLT", "vllm-eviction", Key("cost_rlt"), at_most(3)),
    Claim("… a step that allocates 16 blocks, µs; 1 % of 10 ms is 100", "vllm-eviction", Key("cost_step_us"),
          at_most(100)),
)  # fmt: skip
_HOST_MEMORY = (
    Claim("Virtual GPU, two models, three links: the default manifest with host memory ÷ LRU, requests a second, least",
          _MODELLED, Key("product_over_lru")),
    Claim("… ÷ vLLM's own offloading at the second use, 8B, 25 GB/s", _MODELLED,
          rounds_ratio("product", "offloading, 2", _MIDDLE), at_least(1)),
    Claim("… ÷ vLLM's own offloading of every block, by ARC, 8B, 25 GB/s", _MODELLED,
          rounds_ratio("product", "offloading, ARC", _MIDDLE), at_least(1)),
    Claim("… eviction by hotness alone ÷ LRU", _MODELLED, Key("E_over_lru"), at_least(1)),
    Claim("Virtual GPU, 8B, host memory for half of the prefixes: with a disk of 7 GB/s ÷ without, requests a second",
          _DISK, rounds_ratio("half, PCIe 4", "half", _MIDDLE), at_least(1, by_bound=True)),
    Claim("… share of the prompts found, with that disk", _DISK, rounds_cached("half, PCIe 4", _MIDDLE)),
    Claim("… without a disk", _DISK, rounds_cached("half", _MIDDLE)),
    Claim("… with host memory for all prefixes", _DISK, rounds_cached("all", _MIDDLE)),
    Claim("… a disk of 3.5 GB/s ÷ none, requests a second", _DISK, rounds_ratio("half, PCIe 3", "half", _MIDDLE),
          at_least(1, by_bound=True)),
    Claim("… a disk of 0.5 GB/s, which is slower than computing, ÷ none", _DISK,
          rounds_ratio("half, SATA", "half", _MIDDLE), at_least(1)),
    Claim("… 70B on eight chips, a disk of 7 GB/s for all of them ÷ none", _DISK,
          rounds_ratio("half, PCIe 4", "half", "llama-3-70b, 25 GB/s"), at_least(1, by_bound=True)),
    *(
        Claim(f"Host memory, {suite}: blocks copied down, everything ÷ selective", "vllm-hostmem",
              Cell("Ratios", ("bytes_ratio",), suite, pairs=5), at_least(10))
        for suite in _SUITES
    ),
    Claim("… hellaswag with the 10,042 questions of its own set", "vllm-hostmem-hellaswag",
          Key("bytes_ratio"), at_least(10)),
    Claim("… time on the modelled link, everything ÷ selective, least of four suites", "vllm-hostmem",
          Key("link_ratio", pairs=5), at_least(10)),
    Claim("… time with the store path's CPU, least of four suites", "vllm-hostmem", Key("time_ratio", pairs=5),
          at_least(10)),
    Claim("… hits, selective ÷ everything, all suites", "vllm-hostmem", Cell("Ratios", ("hits_kept",), "all"),
          at_least(0.90)),
    Claim("… hits ÷ vLLM's `store_threshold` 2, room for half, least of four suites", "vllm-hostmem",
          Key("over_threshold", pairs=5), at_least(1)),
    Claim("Promotion by hotness alone, device hits ÷ LRU's, even draws, least of four suites", "vllm-hostmem",
          Key("hotness_gain", pairs=5), at_least(1.30), _GAIN),
    Claim("… all suites", "vllm-hostmem", Cell("Ratios", ("hotness_gain",), "all")),
    Claim("… Zipf draws, least of four suites", "vllm-hostmem", Key("hotness_gain_zipf", pairs=5), at_least(1.30),
          _GAIN, "plumage bench vllm-hostmem"),
    Claim("… ÷ promotion by recency, Zipf draws", "vllm-hostmem", Key("over_recency", pairs=20),
          at_least(1, by_bound=True)),
    Claim("… ÷ promotion by frequency, Zipf draws", "vllm-hostmem", Key("over_frequency", pairs=20),
          at_least(1, by_bound=True)),
    Claim("… ÷ promotion by depth, Zipf draws", "vllm-hostmem", Key("over_depth", pairs=20),
          at_least(1, by_bound=True)),
    Claim("Queue lookahead with promotion (ours, not HotPrefix's), device hits ÷ LRU's, even draws, least of four",
          "vllm-hostmem", _was("lookahead_gain", "ap_gain"), at_least(1.30)),
    Claim("… with eviction by hotness", "vllm-hostmem", _was("lookahead_e_gain", "eap_gain"), at_least(1.32)),
    Claim("… Zipf draws", "vllm-hostmem", _was("lookahead_gain_zipf", "ap_gain_zipf"), at_least(1.30)),
    Claim("… Zipf draws, with eviction by hotness", "vllm-hostmem",
          _was("lookahead_e_gain_zipf", "eap_gain_zipf"), at_least(1.32)),
    Claim("… promotion's part of a step, worst suite", "vllm-hostmem", Key("decode_slowdown", pairs=5), at_most(0.03)),
    Claim("Pool-wide hotness ÷ each replica's own, device hits, as configured, requests in turn", "hostmem-global",
          Key("as_configured"), at_least(1, by_bound=True)),
    Claim("… requests by prefix, as LBGR routes", "hostmem-global", Key("by_prefix", pairs=40),
          at_least(1, by_bound=True)),
    Claim("… hits of both memories, requests in turn", "hostmem-global", Key("all_hits"), at_least(1, by_bound=True)),
    Claim("… beside local settings of the nearest bytes, requests in turn: no configuration has it",
          "hostmem-global", Either(Key("interpolated"), Key("global_over_local"))),
)  # fmt: skip
_KNOWLEDGE = (
    Claim("Router's prediction of hit tokens: error, 95th percentile", "truth", Key("error_tokens_p95"), at_most(80)),
    Claim("… the greatest, outside of eviction races", "truth", Key("error_tokens_max"), at_most(160)),
    Claim("… agent's µs of CPU a block event, the run's events replayed in one go", "truth",
          Key("agent_us_per_block"), at_most(15)),
    Claim("… agent's own figure while it ran, roomy cache", "truth", Cell("The agent", ("roomy",), "its own figure"),
          at_most(15)),
    Claim("… agent's whole process while it ran, roomy cache", "truth",
          Cell("The agent", ("roomy",), "whole process"), at_most(15)),
)  # fmt: skip
CLAIMS = (*_BATCHES, *_CACHES, *_HOST_MEMORY, *_KNOWLEDGE)
