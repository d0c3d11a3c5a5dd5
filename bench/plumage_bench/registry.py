"""Benchmarks by name: what each measures and its options. The code of a benchmark is imported only when it runs, so
that help is fast and needs none of its dependencies."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plumage.errors import ConfigurationError

if TYPE_CHECKING:
    from plumage_bench.harness import Context, Report

__all__ = ["BENCHMARKS", "NAMES", "Benchmark", "describe", "load"]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """quick_budget: seconds that `--quick` may take, shown by `--help`. quick_omits: what `--quick` leaves out.
    options: names of extra `key=value` options, with their help. needs_vllm: runs real vLLM, so in `.venv-vllm`.
    needs_torch: needs torch only. on_device: computes on the device that `--device` names; the others run without one
    or on a virtual GPU. compiled: measures CPU time, so with the compiled modules of the images (`compiled`)."""

    name: str
    summary: str
    quick_budget: int
    quick_omits: str
    options: tuple[tuple[str, str], ...] = ()
    needs_vllm: bool = False
    needs_torch: bool = False
    on_device: bool = False
    compiled: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that must be importable in the Python that runs it."""
        return ("torch", "vllm") if self.needs_vllm else ("torch",) if self.needs_torch else ()


def _routing(name: str, summary: str, also_omits: str = "") -> Benchmark:
    return Benchmark(
        name,
        summary,
        quick_budget=600,
        quick_omits="16 workers, the devices other than the stated one, the weaker baselines, the "
        f"second round on fresh seeds{also_omits}",
        options=(
            ("sweep", "1: also run the ranges of the setting (minutes)"),
            ("workers", "4 or 16, or 4,16: the fleet sizes whose highest rates are searched"),
            ("devices", "stated, quadratic, mixed, windowed, measured, or several by commas: likewise"),
            ("pairs", "seeds of the first round, five"),
            ("resume", "1: go on with a run that was ended, from the results that it left beside the report"),
        ),
    )


_ALL = (
    Benchmark(
        "defaults",
        "whether benchmarks measure what the default manifest deploys, and whether each field of the API is read",
        quick_budget=30,
        quick_omits="nothing",
    ),
    _routing("gsp", "routing on generated shared prefixes: 128 groups × 32 prompts, KVRouting's default setting"),
    _routing("multiturn", "routing of conversations: 128 clients, 2 to 8 rounds of 1024 new tokens"),
    _routing("longdoc", "routing of questions about 512 long documents", ", 192 of 512 documents"),
    _routing("fewshot", "routing of few-shot questions: 57 subjects, each behind its worked examples"),
    Benchmark(
        "routers",
        "three routers beside one that sees every request, while the directory is killed and while a router joins",
        quick_budget=480,
        quick_omits="5 of 10 seeds",
        options=(("pairs", "seeds"),),
    ),
    Benchmark(
        "quality",
        "how well real routers choose: ours and the peers in turn, every routing workload, the same simulated engines",
        quick_budget=360,
        quick_omits="four of five pairs, and round robin",
        options=(
            ("pairs", "pairs of runs, five"),
            ("peers", "a folder with the programs of make setup-peers instead of .venv-peers/bin"),
            ("workloads", "some of gsp; multiturn; longdoc; fewshot; trace, by semicolons"),
        ),
    ),
    Benchmark(
        "hotspot",
        "a prefix with 60 % of the requests, whose rate grows and falls, and a system prompt that all requests share",
        quick_budget=480,
        quick_omits="3 of 8 seeds, 12 of 18 other policies",
        options=(("pairs", "seeds"),),
    ),
    Benchmark(
        "flood",
        "a tenant that sends prompts of its own only: what it costs the hits of eight neighbours, in virtual time",
        quick_budget=600,
        quick_omits="two of four cells, LRU and RLT",
        options=(("pairs", "seeds"),),
    ),
    Benchmark(
        "drift",
        "a manifest that adapts beside the fixed setting that was best for each of the article's loads and their mix",
        quick_budget=480,
        quick_omits="settings that differ in more than one part, and RLT",
        options=(("pairs", "seeds"),),
    ),
    Benchmark(
        "adapters",
        "LoRA adapters that do not all fit into a replica's slots: where their requests go, and how long they wait",
        quick_budget=300,
        quick_omits="3 of 8 seeds",
        options=(("pairs", "seeds"),),
    ),
    Benchmark(
        "trace",
        "a Mooncake-format trace: one cache beside libCacheSim's policies, eight workers under every routing",
        quick_budget=240,
        quick_omits="18 of libCacheSim's 27 policies, their runs without partial blocks, 13 of 16 seeds of the block "
        "names, all but the first 1,500 requests and 1 of 3 seeds of the fleet, half of the synthetic trace",
        options=(
            ("trace", "a Mooncake-format JSONL (or --trace FILE); without it a seeded synthetic trace is replayed"),
        ),
    ),
    Benchmark(
        "batching",
        "compares batching policies on one simulated engine; learners by trial, by step and as FEATHER prints them",
        quick_budget=30,
        quick_omits="four of six loads, three of five seeds",
        options=(
            ("sweep", "1: also FEATHER's ranges of rate, groups, lengths and levels (minutes)"),
            ("ahead", "1: also loads in which an order must look ahead, against known groups (minutes)"),
        ),
    ),
    Benchmark(
        "cht",
        "what the Chunked Hash Tree costs, beside FEATHER's Table 5.1",
        quick_budget=20,
        quick_omits="chunk sizes other than 64, two of three repeats of each of three seeds",
    ),
    Benchmark(
        "decision",
        "what a routing decision costs: parse, render, hash, look up, choose",
        quick_budget=30,
        quick_omits="16,000 of 20,000 decisions of each case and seed",
        compiled=True,
    ),
    Benchmark(
        "eviction",
        "hit ratio of eviction policies: GSP worst order, few-shot suites, multi-turn, KVRouting's constructions",
        quick_budget=60,
        quick_omits="5 of 8 seeds, every other size of the GSP curve, 3 of 4 sizes of the suites, constructions of "
        "n > 64",
    ),
    Benchmark(
        "kvmetrics",
        "the article's metrics by eviction policy, batch limit and context: hits, repeated work, KV usage, saturation",
        quick_budget=480,
        quick_omits="four of five seeds of RLT, of other routing, of the article's mix, and of batch limits with LRU",
        options=(("pairs", "seeds, five"),),
    ),
    Benchmark(
        "mrc",
        "accuracy, cost and memory of sampled miss-ratio curves",
        quick_budget=60,
        quick_omits="2 of 4 seeds",
    ),
    Benchmark(
        "directory",
        "the directory: lag from event to router, bytes per entry in server and router, cold start",
        quick_budget=60,
        quick_omits="25 of 30 s of the event load, one of three seeds, all but one of them at 4 and at 32 owners",
    ),
    Benchmark(
        "router",
        "requests (without streaming) a second of one router core with LBGR and live directory events; added latency",
        quick_budget=60,
        quick_omits="three of five rounds; measurements of 1.5 and 7 seconds instead of 6 and 20",
        options=(
            (
                "peers",
                "1: also other routers, of make setup-peers, at 8, 64 and 450 KB (five minutes); a folder: their "
                "programs are there",
            ),
        ),
        compiled=True,
    ),
    Benchmark(
        "extproc",
        "requests a second through Envoy with the endpoint picker, both on one core; Envoy alone, and the router",
        quick_budget=60,
        quick_omits="three of five rounds; measurements of 1.5 seconds instead of 6",
        options=(("envoy", "Envoy's program, if it is not beside this Python"),),
        compiled=True,
    ),
    Benchmark(
        "longprompt",
        "CPU of one router for prompts of 8, 64 and 450 KB, with LBGR and live directory events, and by round robin",
        quick_budget=60,
        quick_omits="three of five rounds; measurements of 1.5 seconds instead of 4",
        compiled=True,
    ),
    Benchmark(
        "hostile-bodies",
        "how long hostile request bodies of 16 MB, and many of 450 KB, delay small requests through a router",
        quick_budget=60,
        quick_omits="two of three rounds; measurements of 3 seconds instead of 10",
        compiled=True,
    ),
    Benchmark(
        "quota",
        "how exactly three routers keep a tenant's quota of requests and of tokens together",
        quick_budget=320,
        quick_omits="three of five minutes with the directory",
    ),
    Benchmark(
        "overload",
        "requests that meet their objective of the time to first token while a pool gets up to three times its load",
        quick_budget=300,
        quick_omits="three of five loads, three of five pairs, most of the seconds of each",
        options=(("pairs", "pairs of runs, five"),),
    ),
    Benchmark(
        "sloscore",
        "requests that meet their objective when a queue orders by cached prefix, time left and cost, not by arrival",
        quick_budget=300,
        quick_omits="two of three loads, 12 of the 30 seconds of each",
        options=(("pairs", "pairs of runs, five"),),
    ),
    Benchmark(
        "fairness",
        "what tenants and classes get of a pool that they overload together, with the router's queue and without",
        quick_budget=240,
        quick_omits="three of five pairs, 25 of the 40 seconds of each",
        options=(("pairs", "pairs of runs, five"),),
    ),
    Benchmark(
        "scale",
        "the time to simulate 10,000 multi-turn requests to 30 replicas, and that a seed repeats them",
        quick_budget=30,
        quick_omits="the second run with the first of three seeds, which must repeat the first",
        options=(
            ("requests", "this many in total instead of 10,000; 300000 is 10,000 for each replica (half an hour)"),
        ),
    ),
    Benchmark(
        "autoscale",
        "a pool and its autoscaler in virtual time: up and down by each metric, by hit ratio where the curve says yes",
        quick_budget=60,
        quick_omits="two fifths of each phase of the load",
    ),
    Benchmark(
        "victim",
        "hit ratio right after a replica is deleted: the one with the coldest cache against a random one, in pairs",
        quick_budget=60,
        quick_omits="10 of 20 pairs of each fleet, two fifths of the time in which caches warm",
    ),
    Benchmark(
        "operator-scale",
        "the operator with 1,000 pools of 10 pods that are objects only: converging, idle, restarted, memory",
        quick_budget=180,
        quick_omits="nine of ten pools, four of five idle minutes",
        options=(
            ("pools", "this many instead of 1,000, at most 1,500"),
            ("children", "1: also all children created without an operator, a third cluster (minutes)"),
        ),
    ),
    Benchmark(
        "agents",
        "agents: what changing early bytes costs and sorting tools repairs; what hints and pre-caching gain",
        quick_budget=480,
        quick_omits="half of the agents and of their turns, the smaller cache, half of the hints",
        options=(
            ("pairs", "pairs of runs, five"),
            ("parts", "breakers or hints, instead of both"),
            ("contenders", "these hints, by the names of their gains, with ; between them"),
        ),
    ),
    Benchmark(
        "storm",
        "a local pool under kills, stops, removed files and mutated requests: crashes, lost requests, unnamed errors",
        quick_budget=480,
        quick_omits="nine of ten mutated requests, nine of ten faults",
        options=(
            ("mutated", "this many mutated requests instead of 1,000,000"),
            ("faults", "this many faults instead of 1,000"),
            ("routers", "this many routers instead of 3"),
        ),
    ),
    Benchmark(
        "soak",
        "half an hour of aborts, reconnects and restarts on a local pool: memory by slope, sockets and tasks left over",
        quick_budget=260,
        quick_omits="27.5 of 30 minutes, and filling the stores: growth of a tenth or more is found",
        options=(("minutes", "this many of load instead of 30"),),
    ),
    Benchmark(
        "vllm-eviction",
        "hit ratio of eviction policies on real vLLM's block pool, and their cost for each allocated block",
        quick_budget=240,
        quick_omits="18 of 20 seeds, every other size of the GSP curve, 16 of 24 pairs of the cost",
        needs_vllm=True,
        compiled=True,
    ),
    Benchmark(
        "fidelity",
        "the simulator against real vLLM on the virtual GPU: hit ratio, TTFT, throughput of the same traces",
        quick_budget=120,
        quick_omits="3 of 4 traces, 2 of 3 seeds",
        needs_vllm=True,
    ),
    Benchmark(
        "vllm-overhead",
        "CPU time a request in vLLM's engine core as a pool has it, beside stock, at 2,000 and 20,000 queued requests",
        quick_budget=180,
        quick_omits="15 of 20 rounds of each load",
        needs_vllm=True,
        compiled=True,
    ),
    Benchmark(
        "vllm-steps",
        "CPU time of real vLLM's steps by tokens, context and batch: the table of the simulator's measured device",
        quick_budget=120,
        quick_omits="prompts above 128 tokens, contexts above 1k, batches above 4",
        needs_vllm=True,
    ),
    Benchmark(
        "vllm-pressure",
        "the adaptive limit of running requests against static batches, contexts of 2k, 8k and 32k tokens",
        quick_budget=120,
        quick_omits="the loads with vLLM's gate for whole prompts, four of five seeds",
        needs_vllm=True,
    ),
    Benchmark(
        "vllm-hostmem",
        "the host tier in real vLLM: bytes and hits of selective offloading; device hits of promotion by hotness "
        "alone, and of the queue's lookahead",
        quick_budget=240,
        quick_omits="two of four suites, three quarters of the questions, four of five seeds, extra contenders",
        options=(
            ("seeds", "this many instead of five"),
            ("suites", "these only, as in 'mmlu;hellaswag'"),
            ("kinds", "the kinds to run: copies; even; zipf; half; even, beside; zipf, beside"),
            ("copies", "this many questions instead of 4,096 for that kind (BBH and a quick run: a quarter each)"),
        ),
        needs_vllm=True,
    ),
    Benchmark(
        "hostmem-global",
        "host memory of four replicas in real vLLM, ranked by the pool's hotness and by each replica's own",
        quick_budget=180,
        quick_omits="two of four suites, half of the questions, four of six seeds, one of three by prefix",
        options=(("seeds", "this many instead of six, by prefix half as many"),),
        needs_vllm=True,
    ),
    Benchmark(
        "truth",
        "hit tokens predicted by the router against those that vLLM finds, 2,000 requests of ten kinds, real processes",
        quick_budget=180,
        quick_omits="nine of ten requests",
        needs_vllm=True,
    ),
    Benchmark(
        "attention-premise",
        "decode attention of a batch over one shared prefix against separate ones, as FEATHER assumes",
        quick_budget=60,
        quick_omits="prefixes of 2,048 and 8,192 tokens, 15 of 20 pairs",
        needs_torch=True,
        on_device=True,
    ),
    Benchmark(
        "vllm-feather",
        "FEATHER in real vLLM, end to end, part by part: FCFS, sorted batch, the tree's order, STOP; 8 layers",
        quick_budget=240,
        quick_omits="all but two cells of short answers, a pair, eighteen of no sharing's, most requests, "
        "ceilings and noise",
        options=(
            (
                "cells",
                "names of cells, separated by semicolons, instead of those that count: 8 × 2k, two levels, …",
            ),
            ("pairs", "rounds in which each policy serves the load, three; where nothing is shared 20 at least"),
            (
                "policies",
                "labels of policies, separated by semicolons, beside FCFS and the order; else FEATHER's parts: bandit "
                "printed, Q-learning, Q-learning printed, …",
            ),
            ("model", "shape of the model: m8 (CPU), llama-3-8b (GPU) or qwen2.5-0.5b; all but m8 load random weights"),
            ("resume", "1: go on with a run that was ended, from the cells that it left beside the report"),
        ),
        needs_vllm=True,
        on_device=True,
    ),
    Benchmark(
        "vllm-order",
        "which group is next and when to switch, in real vLLM: the default manifest against known groups",
        quick_budget=480,
        quick_omits="seven of nine contenders, one of six cells, half of the prefix, the batch and the answers, and so "
        "the ageing bound, which a run of seconds hardly reaches",
        options=(
            ("cells", "names of cells, separated by semicolons: three levels, unequal answers, step, cold groups, …"),
            ("pairs", "rounds in which each contender serves the load; five"),
            ("resume", "1: go on with a run that was ended, from the cells that it left beside the report"),
        ),
        needs_vllm=True,
    ),
    Benchmark(
        "vllm-hotprefix",
        "eviction and host memory in real vLLM: requests a second and time to first token against LRU and offloading",
        quick_budget=240,
        quick_omits="three of five pairs, two questions in three, long prefixes, the parts E, A+P and E+A+P, the noise",
        options=(
            ("suite", "of few-shot questions: mmlu, bbh, hellaswag or ceval"),
            ("contenders", "some of them, separated by semicolons; LRU always runs"),
            ("pairs", "rounds that count, five"),
            ("questions", "of a round, 192"),
            ("zipf", "exponent of the subjects' popularity: 0 (all alike), 0.5 or 1"),
            ("room", "per cent of the prefixes that the KV cache has room for: 25, 50 or 80"),
            ("model", "shape of the model: m8 (CPU), llama-3-8b (GPU) or qwen2.5-0.5b"),
            ("modelled", "1: in virtual time on the virtual GPU, Llama 3 8B and 70B with three links each"),
            ("disk", "1: the same with half of the host memory and disks of four rates below it, at one link"),
        ),
        needs_vllm=True,
        on_device=True,
    ),
    Benchmark(
        "vllm-parity",
        "greedy answers of real vLLM with the plugin against its own: preemptions, aborts, asynchronous, host tier",
        quick_budget=120,
        quick_omits="1,800 of 2,000 requests, each policy by itself, parts of the plugin, 6 of 8 host tiers",
        needs_vllm=True,
        on_device=True,
    ),
)
BENCHMARKS: Mapping[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
NAMES = tuple(BENCHMARKS)


def describe(name: str) -> Benchmark:
    """The entry of the benchmark `name`. ConfigurationError names the known ones."""
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, NAMES, n=1)
        guess = f"did you mean {near[0]}? There are" if near else "there are"
        raise ConfigurationError(f"no benchmark named {name!r}; {guess}: {', '.join(NAMES)}")
    return BENCHMARKS[name]


def load(name: str) -> Callable[[Context], Report]:
    """Its code: the function `run` of the module of `benches` with the same name, with underscores for hyphens."""
    module = describe(name).name.replace("-", "_")
    run: Callable[[Context], Report] = importlib.import_module(f"plumage_bench.benches.{module}").run
    return run
