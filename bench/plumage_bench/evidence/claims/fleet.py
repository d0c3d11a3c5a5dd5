"""The hot path, the directory, the operator, and a fleet under faults."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim, at_least, at_most, exactly
from plumage_bench.evidence.derived import fault_total, victims
from plumage_bench.evidence.figures import Computed, Key, Minus

__all__ = ["CLUSTER", "HOT_PATH", "SIZING"]

_FAULTS = "PLUMAGE_E2E_REPORT=DIR pytest tests/e2e_cluster/test_faults_under_load.py"
_ROUTER = "plumage bench router peers=1"
_AGENTS = "plumage bench agents --quick"
_OVERLOAD = "plumage bench overload"
_SLOSCORE = "plumage bench sloscore --quick"
_SOAK = "plumage bench soak"
_VICTIMS = "PLUMAGE_E2E_REPORT=DIR make e2e-victims"

HOT_PATH = (
    Claim("Defaults: a benchmark's settings that differ from the manifest's unnamed (`drift`)", "defaults",
          Key("drift"), exactly(0), "", "plumage bench defaults"),
    Claim("… fields of the API that nothing reads (`unread`)", "defaults", Key("unread"), exactly(0), "",
          "plumage bench defaults"),
    Claim("… options whose default is not the manifest's (`copies`)", "defaults", Key("copies"), exactly(0), "",
          "plumage bench defaults"),
    Claim("Routing decision, 4 replicas: mean µs", "decision", Key("mean_us_4"), at_most(35)),
    Claim("… 99th percentile, µs", "decision", Key("p99_us_4"), at_most(60)),
    Claim("… 1,000 replicas: 99th percentile, µs", "decision", Key("p99_us_1000"), at_most(120)),
    Claim("Directory: event to router, 99th percentile, ms", "directory", Key("lag_p99_ms"), at_most(50)),
    Claim("… bytes an entry in the server", "directory", Key("redis_bytes"), at_most(40)),
    Claim("… bytes an entry in the router", "directory", Key("router_bytes"), at_most(130)),
    Claim("… cold start with 1,000,000 entries, s", "directory", Key("cold_s"), at_most(5)),
    Claim("… agent's process, µs of CPU a block event at 5,000 a second", "directory", Key("agent_process_us"),
          at_most(15)),
    Claim("Router with keys, quotas and tracing, one core, 8k prompts that do not stream: requests a second", "router",
          Key("rps_8k"),
          at_least(6000), "", _ROUTER),
    Claim("… 99th percentile that it adds, ms", "router", Key("added_p99_ms"), at_most(1), "", _ROUTER),
    Claim("… the same by the interval's upper end, ms", "router", Key("added_p99_high_ms"), at_most(1), "", _ROUTER),
    Claim("… CPU µs of a stream of 16 events, 8 KB (`stream_us`)", "router", Key("stream_us"), at_most(200), "",
          _ROUTER),
    Claim("… requests a second ÷ the best of three other routers that know caches, 8 KB", "router",
          Key("over_best_peer_8k"), at_least(1.1), "", _ROUTER),
    Claim("… the same, 64 KB", "router", Key("over_best_peer_65k"), at_least(1.1), "", _ROUTER),
    Claim("… the same, 450 KB", "router", Key("over_best_peer_450k"), at_least(1.1), "", _ROUTER),
    Claim("… ÷ Envoy by round robin, 8 KB", "router", Key("over_envoy"), at_least(0.35), "", _ROUTER),
    Claim("Envoy and the endpoint picker, with keys, quotas and tracing, one core, 8k prompts: requests a second",
          "extproc", Key("rps_8k"), at_least(8000), "", "plumage bench extproc"),
    Claim("Router, 450 KB prompts (100,000 tokens): CPU of its process a request, ms", "longprompt", Key("cpu_ms"),
          at_most(1.5), "", "plumage bench longprompt"),
    Claim("… of the decision path, without sockets and background work, ms", "longprompt", Key("path_ms"),
          at_most(1.5), "", "plumage bench longprompt"),
    Claim("… 99th percentile of small requests beside 80 such prompts a second, ms", "longprompt", Key("small_p99_ms"),
          at_most(2), "", "plumage bench longprompt"),
    Claim("Hostile bodies of 16 MB, the worst of 14 kinds: 99th percentile of what they add to a small request, ms",
          "hostile-bodies", Key("worst_delay_p99_ms"), at_most(20), "", "plumage bench hostile-bodies --quick"),
    Claim("… share of small requests left out, because the kernel kept the router from its core, the most of a kind",
          "hostile-bodies", Key("left_out_share"), at_most(0.15), "", "plumage bench hostile-bodies"),
    Claim("Quotas over three routers, twice the load: the largest error of five minutes (`error`)", "quota",
          Key("error"), at_most(0.02), "", "plumage bench quota"),
    Claim("… a minute without the directory: what is used beyond the limit", "quota", Key("over_away"), at_most(0.02),
          "", "plumage bench quota"),
    Claim("… the same minute: the least share of a limit that is used, with uneven load", "quota", Key("least_away"),
          command="plumage bench quota"),
    Claim("… other answers than 200 and 429", "quota", Key("other"), exactly(0), "", "plumage bench quota"),
    Claim("Queue at three times a pool's load: requests that meet 2 s to the first token ÷ the best policy and load "
          "(`goodput`)", "overload", Key("goodput"), at_least(0.95), "", _OVERLOAD),
    Claim("… without the queue: what meets it ÷ what the pool serves", "overload", Key("none_over_rate"),
          command=_OVERLOAD),
    Claim("… with a limit of requests in flight that fits the pool", "overload", Key("limit_over_rate"),
          command=_OVERLOAD),
    Claim("… with the queue", "overload", Key("queue_over_rate"), command=_OVERLOAD),
    Claim("Queue by score at 2.5 times a pool's load, shared documents: requests that meet 4 s to the first token ÷ "
          "those by arrival (`over_fcfs`)", "sloscore", Key("over_fcfs"), at_least(1.2), "", _SLOSCORE),
    Claim("… P99 to first token ÷ that by arrival", "sloscore", Key("p99_ratio"), at_most(1.0), "", _SLOSCORE),
    Claim("… µs of one choice among 1,000 waiting requests, with 1,000 entries in the directory", "sloscore",
          Key("choice_us_1000"), command=_SLOSCORE),
    Claim("… with 1,000,000 entries", "sloscore", Key("choice_us_1000000"), command=_SLOSCORE),
    Claim("Tenants with equal shares of an overloaded pool: the largest difference of their service, of five windows "
          "(`service_gap`)", "fairness", Key("service_gap"), at_most(0.05), "", "plumage bench fairness"),
    Claim("… without the queue", "fairness", Key("default_service_gap"), command="plumage bench fairness"),
    Claim("… P95 to first token of a tenant that sends little, default ÷ queue", "fairness", Key("few_ttft"),
          at_least(1.0), "", "plumage bench fairness"),
    Claim("Storm of faults: crashes", "storm", Key("crashes"), exactly(0), "", "plumage bench storm"),
    Claim("… answers of 5xx without an error code", "storm", Key("unnamed_5xx"), exactly(0), "",
          "plumage bench storm"),
    Claim("… requests lost before their first byte, but by a router's kill", "storm", Key("lost_otherwise"),
          exactly(0), "", "plumage bench storm"),
    Claim("… requests that a killed router had accepted, lost before their first byte", "storm",
          Key("lost_by_router_kill"), exactly(0), "", "plumage bench storm"),
    Claim("… connections refused while the router restarts", "storm", Key("refused_connections"), exactly(0), "",
          "plumage bench storm"),
    Claim("Half an hour of aborts, reconnects and restarts: processes of seven whose memory grows (`rss_grown`)",
          "soak", Key("rss_grown"), exactly(0), "", _SOAK),
    Claim("… slope of the router's memory over the last 13 minutes, MB an hour", "soak", Key("rss_slope_router"),
          command=_SOAK),
    Claim("… sockets above the level before the load", "soak", Key("sockets_left"), exactly(0), "", _SOAK),
    Claim("… descriptors", "soak", Key("files_left"), exactly(0), "", _SOAK),
    Claim("… tasks", "soak", Key("tasks_left"), exactly(0), "", _SOAK),
    Claim("… entries of requests, connections and bodies", "soak", Key("entries_left"), exactly(0), "", _SOAK),
    Claim("… processes that ended without a signal, and tracebacks", "soak", Key("crashes"), exactly(0), "", _SOAK),
    Claim("Agents that send tools in changing order: prompt tokens computed, `sortTools` off ÷ on", "agents",
          Key("breaker_gain", low="breaker_gain_low"), at_least(1, by_bound=True), "", _AGENTS),
    Claim("… mean time to the first token, off ÷ on", "agents", Key("ttft_gain", low="ttft_gain_low"),
          at_least(1, by_bound=True), "", _AGENTS),
    Claim("… share of the turns after another in which the router named the cause", "agents", Key("named_order"),
          command=_AGENTS),
    Claim("… causes named where nothing changed", "agents", Key("false_breaks"), exactly(0), "", _AGENTS),
    Claim("… a time of day in the system prompt: prompt tokens computed ÷ those without it", "agents",
          Key("cost_of_date", low="cost_of_date_low"), command=_AGENTS),
    Claim("Virtual time: 30 replicas, 10,000 requests in all, seconds", "scale", Key("wall_s"), at_most(60)),
    Claim("… different outcomes of one seed", "scale", Key("distinct_outcomes"), exactly(1)),
)  # fmt: skip
SIZING = (
    Claim("Autoscaler: cases of seven that end as they should", "autoscale", Key("right"), exactly(7)),
    Claim("A pool that just grew loses a replica: hit ratio, coldest ÷ drawn", "victim",
          Key("grown_ratio", low="grown_low"),
          at_least(1, by_bound=True)),
    Claim("… a pool that LBGR has served since the beginning", "victim", Key("steady_ratio", low="steady_low"),
          at_least(1, by_bound=True)),
    Claim("… on a cluster, grown 20 s before", "cluster-victims", Computed(victims), at_least(1, by_bound=True), "",
          _VICTIMS),
)  # fmt: skip
CLUSTER = (
    Claim("Twelve faults under load on a cluster: requests lost", "cluster-faults", fault_total("lost"), exactly(0),
          "", _FAULTS),
    Claim("… answers cut after their first byte", "cluster-faults", fault_total("cut"), command=_FAULTS),
    Claim("… seconds until the hit ratio was back at 90 %, the longest", "cluster-faults",
          fault_total("back_s", max), at_most(60), "", _FAULTS),
    Claim("… slowest first byte, s", "cluster-faults", fault_total("slowest_s", max), command=_FAULTS),
    Claim("Operator, 1,000 pools of 10 pods: seconds until Ready, beyond what bare Deployments take", "operator-scale",
          Minus(Key("converge_s"), Key("bare_s")), at_most(60)),
    Claim("… writes in five minutes at rest", "operator-scale", Key("idle_writes"), exactly(0)),
    Claim("… restart, s", "operator-scale", Key("restart_s"), at_most(20)),
    Claim("… resident memory, MB", "operator-scale", Key("rss_mb"), at_most(450)),
)  # fmt: skip
