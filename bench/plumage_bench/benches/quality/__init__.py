"""`quality`: how well routers choose. Real routers in turn before the same simulated engines, in real time.

For each workload of the routing benchmarks, four simulators serve the same chats at the same arrival times. (The next
round of a conversation follows its answer.) Ours, made from the default manifest, has its directory and agents. The
peers are those of `make setup-peers` that know caches, with the settings of their manuals. Round robin is the floor, in
the first pair. Each contender begins as a new process before empty caches. All use the same engines, with the default
manifest's eviction.

`rank` of a workload: P95 of the time to first token, the best peer's ÷ ours, from the arrival time to the first event.
It is taken at a fixed rate near the knee: a search for the highest rate, as in virtual time, takes hours in real time.
The best peer has the least geometric mean over the pairs, so it is also the luckiest. `rank_min` is the least over the
workloads. Requests of the first fifth fill the caches and do not count.

Simulators must be what takes time. So their devices' time is scaled (`cases`), and all processes run at real-time
priority where that is allowed. A run is late if P99 of the delay of sending exceeds a tenth of its P95; `late_runs`
counts them. `cpu_most` is the most CPU that a run used, as a share of all cores. A router that uses nearly a whole core
is itself what takes time: the tables have each one's cores.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from plumage.errors import ConfigurationError
from plumage_bench.benches.quality.cases import CASES, Case
from plumage_bench.benches.quality.fleet import Fleet, Router
from plumage_bench.benches.quality.load import play
from plumage_bench.benches.quality.report import OURS, ROUND_ROBIN, Found, Served, make_report, sum_up
from plumage_bench.benches.quality.texts import Texts
from plumage_bench.benches.router.peers import ENVOY, PEERS, Peer, installed
from plumage_bench.harness import Context, Report
from plumage_bench.pairs import LEAST_PAIRS

__all__ = ["run", "serve"]

ENGINES: Final = 4
PAIRS, PAIRS_QUICK = LEAST_PAIRS, 1
_LIMIT = 60.0  # modelled seconds until a request counts as failed

Start = Callable[[Fleet], AbstractContextManager[Router]]


def run(context: Context) -> Report:
    """Options: pairs, peers, workloads. ConfigurationError without a peer."""
    folder = Path(context.options.get("peers", ".venv-peers/bin")).absolute()
    peers = [one for one in installed(folder) if one.name != ENVOY]
    if not peers:
        raise ConfigurationError(f"no other router is in {folder}: run make setup-peers, or give peers=FOLDER")
    missing = [one.name for one in PEERS if one not in peers and one.name != ENVOY]
    names = context.some("workloads", tuple(CASES))
    pairs = context.count("pairs", PAIRS_QUICK if context.quick else PAIRS)
    contenders = _contenders(peers, folder)
    orders = [_order(list(contenders), pair, floor=not context.quick and pair == 0) for pair in range(pairs)]
    found: Found = {}
    with _preferred() as real_time, context.progress("quality", len(names) * sum(map(len, orders))) as advance:
        for name in names:
            case = CASES[name]
            with _fleet(case, context.seed) as fleet:
                for pair, order in enumerate(orders):
                    for who in order:
                        found[name, who, pair] = serve(fleet, contenders[who], case, context.seed + pair)
                        advance(1)
    return make_report(found, names, missing, real_time=real_time)


@contextmanager
def _fleet(case: Case, seed: int) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(prefix="plm-") as runtime,
        Fleet(case.ours(), ENGINES, Path(runtime), seed) as made,
    ):
        yield made


def serve(fleet: Fleet, start: Start, case: Case, seed: int) -> Served:
    """One run: a new router before empty caches, and all requests of the workload."""
    texts = Texts(case.block_size, case.message_blocks)
    with start(fleet) as router:
        before, of_router, began = _cpu(os.getpid()), _cpu(router.process.pid), time.monotonic()
        sent = asyncio.run(play(router.port, case.arrivals(seed), case.scale, texts.body, _LIMIT))
        seconds = time.monotonic() - began
        cores, of_router = (_cpu(os.getpid()) - before) / seconds, (_cpu(router.process.pid) - of_router) / seconds
    return sum_up(sent, _LIMIT, cpu=cores / (os.cpu_count() or 1), router_cores=of_router)


def _contenders(peers: list[Peer], folder: Path) -> dict[str, Start]:
    def of(peer: Peer) -> Start:
        return lambda fleet: fleet.peer(peer, folder)

    return {OURS: Fleet.ours, **{peer.name: of(peer) for peer in peers}, ROUND_ROBIN: Fleet.round_robin}


def _order(names: list[str], pair: int, *, floor: bool) -> list[str]:
    """In each pair another one begins, so that what changes with time affects all alike."""
    names = [name for name in names if floor or name != ROUND_ROBIN]
    first = pair % len(names)
    return names[first:] + names[:first]


@contextmanager
def _preferred() -> Iterator[bool]:
    """This process and those that it starts run at real-time priority, so that other work of the machine does not delay
    them. False where that is not allowed. Niceness would not do: Linux weighs it within a session only (autogroup)."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):  # not Linux, or not allowed
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _cpu(pid: int) -> float:
    """CPU seconds so far of a process and of those that it started."""
    total, parent = 0.0, psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
