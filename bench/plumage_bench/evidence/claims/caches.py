"""Data structures, caches and their policies, in virtual time or by CPU time."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim, at_least, at_most, between, exactly
from plumage_bench.evidence.derived import suite_least_over_lru
from plumage_bench.evidence.figures import Cell, Key, Over

__all__ = ["CLAIMS"]

_GSP = "GSP, worst order"
_KV = "plumage bench kvmetrics --quick"
_DRIFT = "plumage bench drift --quick"
_AREA = "mean hit ratio over cache sizes below one loop, GSP's worst order"

CLAIMS = (
    Claim("Chunked Hash Tree, 5,000 requests × 5,000 tokens: seconds in all", "cht", Key("total_s"), at_most(0.6)),
    Claim("… seconds without hashing and INSERT", "cht", Key("ops_s"), at_most(0.4)),
    Claim("… nodes visited, 50,000 siblings ÷ 500", "cht", Key("visits_flat"), at_most(1.05)),
    Claim("… time an operation, 50,000 siblings ÷ 500", "cht", Key("wall_flat"), at_most(2.5)),
    Claim("… answers that differ from the reference model", "cht", Key("mismatches"), exactly(0)),
    Claim(
        "RLT, cache of 200k tokens, GSP's worst order: hit ratio",
        "eviction", Key("rlt_at_200k"), between(0.40, 0.44), paper="KVRouting: 0.4193",
    ),
    Claim(
        "… leaf-LRU there: hit ratio; the loop is 198,144 tokens and fits",
        "eviction", Key("lru_at_200k"), between(0.04, 0.08), paper="KVRouting: 0.06",
    ),
    Claim(
        "… RLT ÷ leaf-LRU at 200k tokens",
        "eviction", Over(Key("rlt_at_200k"), Key("lru_at_200k")), at_least(1), paper="KVRouting: 42 % against 6 %",
    ),
    Claim(f"RLT's {_AREA}", "eviction", Cell(_GSP, ("Rlt",), "area")),
    Claim(
        "… leaf-LRU's, in the same sizes; a ratio to 0 is undefined", "eviction", Cell(_GSP, ("Lru",), "area"),
    ),
    Claim("… Hotness', in the same sizes", "eviction", Cell(_GSP, ("Hotness",), "area")),
    Claim(
        "Hotness ÷ leaf-LRU, least of four few-shot suites, cache of 95 % of their prefixes and a batch",
        "eviction", Key("hotness_over_lru"), at_least(1.05),
    ),
    Claim("… cache of 80 %", "eviction", suite_least_over_lru("80%"), at_least(1.05)),
    Claim("… cache of 90 %", "eviction", suite_least_over_lru("90%"), at_least(1.05)),
    Claim("… cache of 100 %", "eviction", suite_least_over_lru("100%"), at_least(1.05)),
    Claim(
        "Hotness ÷ best of LFU, FIFO, 2Q, TTL, ARC, S3-FIFO, SIEVE, evoke's and vllm-marconi-offload's, mean of "
        "the suites, cache of 95 %",
        "eviction", Key("hotness_over_textbook"), at_least(1),
    ),
    Claim("… on conversations", "eviction", Key("multiturn_over_textbook")),
    Claim("Hotness ÷ leaf-LRU on conversations", "eviction", Key("multiturn_hotness"), at_least(0.98)),
    Claim("RLT ÷ leaf-LRU on conversations", "eviction", Key("multiturn_rlt"), at_least(0.92)),
    Claim(
        "Construction C.1, n = 256: leaf-LRU's misses ÷ OPT's, per n",
        "eviction", Key("c1_lru_per_n"), between(0.5, 1.5), paper="KVRouting App. C: O(n)",
    ),
    Claim(
        "Construction C.2, n = 256: RLT's misses ÷ OPT's, per H(n)",
        "eviction", Key("c2_rlt_per_log_n"), at_most(1.5), paper="KVRouting App. C: O(log n)",
    ),
    Claim("The article's metrics, mean of 2k, 8k and 32k contexts: hit ratio (`chr`)", "kvmetrics", Key("chr"),
          at_least(0.70, by_bound=True), "the article: > 70 %, routing and batching together", _KV),
    Claim("… standard deviation over time of KV usage (`muv`)", "kvmetrics", Key("muv"), at_most(0.08, by_bound=True),
          "the article: < 8 %", _KV),
    Claim("… the same ÷ that with leaf-LRU", "kvmetrics", Key("muv_over_lru"), at_most(0.85, by_bound=True),
          "the article: 15–25 % less than LRU", _KV),
    Claim("… P99 under eviction ÷ that with leaf-LRU", "kvmetrics", Key("p99_under_eviction_over_lru"),
          at_most(1, by_bound=True), "", _KV),
    Claim("… steps of the batch ladder from the estimated optimal batch to that of a sweep, the most of all seeds",
          "kvmetrics", Key("obs_error_steps"), at_most(1), "", _KV),
    Claim("… repeated ÷ all prefill FLOPs (RCR)", "kvmetrics", Key("rcr"), command=_KV),
    Claim("… with leaf-LRU", "kvmetrics", Key("rcr_lru"), command=_KV),
    Claim("… hit ratio of the article's mix, of which 0.6 can hit", "kvmetrics", Key("chr_mix"), command=_KV),
    Claim("Sampled miss-ratio curve: mean absolute error", "mrc", Key("mae")),
    Claim("… nanoseconds an access", "mrc", Key("ns_per_access")),
    Claim("… bytes", "mrc", Key("bytes")),
    Claim("A tenant floods the caches with prompts of its own: share of their hits that its neighbours lose, worst of "
          "four cells (`neighbour_loss`)", "flood", Key("neighbour_loss"), at_most(0.05), "", "plumage bench flood"),
    *(
        Claim(f"… {cell}", "flood", Key(f"loss_{cell.replace(', ', '_').replace(' ', '_')}"),
              command="plumage bench flood")
        for cell in ("roomy, as much", "roomy, twice", "tight, as much", "tight, twice")
    ),
    Claim("… worst cell, where requests carry no salts", "flood", Key("neighbour_loss_no_salts"),
          command="plumage bench flood"),
    Claim("… worst cell, where eviction is given the flood's name and takes its blocks first", "flood",
          Key("neighbour_loss_best_eviction"), command="plumage bench flood"),
    Claim("A manifest that adapts, on each of the article's five loads and their mix: 1 − tokens a second ÷ those of "
          "the best fixed setting in hindsight, the largest of six loads and two pools (`regret`)", "drift",
          Key("regret"), at_most(0.05, by_bound=True), "", _DRIFT),
    Claim("… the default manifest", "drift", Key("regret_default"), command=_DRIFT),
    Claim("… with host memory", "drift", Key("regret_host_memory"), command=_DRIFT),
    *(
        Claim(f"… {pool}, {load}", "drift", Key(f"regret_{pool.replace(' ', '_')}_{load}"), command=_DRIFT)
        for pool in ("default", "host memory")
        for load in ("rag", "code", "agents", "chat", "summaries", "mix")
    ),
    Claim("Predictive ÷ the tree's order on a modelled device, least of six loads", "batching",
          Key("predictive_over_order"), at_least(0.98), "", "plumage bench batching"),
    Claim("… largest of six loads", "batching", Key("predictive_gain"), command="plumage bench batching"),
    Claim("The default manifest's order ÷ the tree's order without ageing, least of six loads", "batching",
          Key("product_over_order"), at_least(0.98), "", "plumage bench batching"),
    Claim("… largest of six loads", "batching", Key("product_gain"), command="plumage bench batching"),
    Claim("Bandit ÷ FCFS on a modelled device, least of the loads, credit by trial", "batching", Key("bandit_trial")),
    Claim("… credit by step, the paper's", "batching", Key("bandit_step")),
    Claim("Q-learning ÷ FCFS, credit by trial", "batching", Key("q_trial")),
    Claim("… credit by step, the paper's", "batching", Key("q_step")),
)  # fmt: skip
