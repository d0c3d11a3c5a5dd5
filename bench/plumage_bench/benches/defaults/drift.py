"""In which settings a benchmark's contender differs from what the default manifest deploys.

An experiment names overrides of the manifest, each with a reason (`reasons.py`). A difference that is not named, or has
no reason, is a mistake.

Each benchmark with such a contender returns the objects that it measures: settings of an engine, settings of vLLM's
plugin, a router's policy. They are compared with what its manifest makes (`ours.py`). `WITHOUT` lists the benchmarks
that measure nothing that a manifest configures, with the reason.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from plumage.defaults import EVICTION_POLICY
from plumage.errors import ManifestError
from plumage.eviction import make_policy
from plumage.settings.addresses import EngineSockets
from plumage.settings.engine_policies import HostTierConfig
from plumage.settings.simulator_config import SimulatorConfig
from plumage_bench.benches.defaults.reasons import REASONS
from plumage_bench.benches.defaults.state import state_of
from plumage_bench.ours import Ours
from plumage_engine.simulator.engine.settings import EngineSettings, engine_settings

__all__ = ["MEASURED", "WITHOUT", "Made", "Override", "differences", "drift", "named", "overrides", "unnamed"]


_SOCKETS: Final = EngineSockets("ipc:///unused/events", "ipc:///unused/replay", "/unused", "/unused")


class Made(NamedTuple):
    """The name of an object, the object in the benchmark, the same object from its manifest, and the overrides of that
    manifest."""

    what: str
    ours: Any
    wanted: Any
    overrides: Mapping[str, Any] = {}


WITHOUT: Final[Mapping[str, str]] = {
    "defaults": "it is this one",
    "cht": "it measures the tree, which has no settings but its order",
    "mrc": "it measures sampling, which no manifest sets",
    "directory": "it measures agents' and routers' traffic, whose rates no manifest sets",
    "vllm-steps": "it measures stock vLLM's steps, which no setting of a pool changes",
    "hostile-bodies": "its router has a router's own defaults, and its engines answer at once",
    "storm": "its pool is a manifest, which plumage up reads",
    "soak": "its pool is a manifest, which plumage up reads",
    "overload": "its pools are manifests, which plumage up reads",
    "sloscore": "its pools are manifests, which plumage up reads",
    "fairness": "its pools are manifests, which plumage up reads",
    "operator-scale": "its pools are manifests, which the operator reads",
    "attention-premise": "it measures attention in torch",
}


class Override(NamedTuple):
    """A named difference. path: under spec. reason: "" for none."""

    benchmark: str
    path: str
    value: Any
    reason: str


def named() -> list[Override]:
    """All overrides of all benchmarks."""
    return [
        Override(name, path, value, REASONS.get(name, {}).get(path, ""))
        for name in MEASURED
        for path, value in overrides(name).items()
    ]


def unnamed() -> list[str]:
    """`BENCHMARK: what and where`, one line for each difference that is not named or has no reason."""
    found = [f"{name}: {line}" for name, made in MEASURED.items() for line in differences(made())]
    return found + [f"{one.benchmark}: {one.path} has no reason" for one in named() if not one.reason]


def drift() -> list[str]:
    """Likewise, for all differences."""
    return [f"{one.benchmark}: {one.path} = {one.value}" for one in named() if one.reason] + unnamed()


def overrides(name: str) -> dict[str, Any]:
    """What a benchmark's experiment changes, by the manifest's path; {} if it measures no manifest."""
    made = MEASURED[name]() if name in MEASURED else ()
    return {path: value for one in made for path, value in one.overrides.items() if _changes(one.overrides, path)}


def _changes(overrides: Mapping[str, Any], path: str) -> bool:
    """Whether the manifest is another one without this override. A manifest that is then invalid needs it."""
    without = {name: value for name, value in overrides.items() if name != path}
    try:
        return Ours(overrides).pool().model_dump() != Ours(without).pool().model_dump()
    except ManifestError:
        return True


def differences(made: Iterator[Made]) -> Iterator[str]:
    """Values that differ from those of the manifest."""
    for one in made:
        yield from (f"{one.what}{path}" for path in _unlike(state_of(one.ours), state_of(one.wanted)))


def _unlike(ours: Any, wanted: Any, path: str = "") -> Iterator[str]:
    if isinstance(ours, list) and isinstance(wanted, list) and len(ours) == len(wanted):
        for number, (one, other) in enumerate(zip(ours, wanted, strict=True)):
            yield from _unlike(one, other, path if isinstance(one, str | tuple) else f"{path}[{number}]")
    elif isinstance(ours, tuple) and isinstance(wanted, tuple) and len(ours) == len(wanted) == 2:
        yield from _unlike(ours[1], wanted[1], f"{path}.{ours[0]}")
    elif ours != wanted:
        yield path


def _router(block: int = 16) -> Made:
    from plumage_bench.routing.contenders import OURS

    return Made("router", OURS.make(1, block), Ours().routing_policy(random.Random(1)))


def _routed_fleet() -> Iterator[Made]:
    from plumage_bench.routing.contenders import OURS
    from plumage_bench.routing.scenario import Scenario
    from plumage_bench.workloads import GspShape

    scenario, plain = Scenario(GspShape(), 1.0), Ours().engine()
    engine, ours = scenario.engines(OURS.eviction)[0], scenario.ours(plain.eviction)
    yield Made("engine", engine, ours.engine(engine.device), ours.overrides)
    yield _router()


def _trace() -> Iterator[Made]:
    from plumage_bench.benches.trace import onecache, routed
    from plumage_bench.routing.contenders import OURS

    plain = Ours().engine()
    yield Made("one cache", onecache.hotness(64), _eviction(plain))
    ours = routed.worker(plain.eviction)
    yield Made("engine", routed.worker(OURS.eviction).engine(), ours.engine(), ours.overrides)
    yield _router(512)


def _kvmetrics() -> Iterator[Made]:
    from plumage_bench.benches.kvmetrics import batches, fleets

    ours = fleets.OURS.ours()
    yield Made("engine", ours.engine(), Ours(ours.overrides).engine(), ours.overrides)
    ours = batches.ours(batches.ADAPTIVE, fleets.OURS.eviction)
    yield Made("saturated engine", ours.engine(), Ours(ours.overrides).engine(), ours.overrides)
    yield Made("router", ours.routing_policy(random.Random(1)), Ours().routing_policy(random.Random(1)))


def _elastic() -> Iterator[Made]:
    from plumage_bench.benches import autoscale

    ours = autoscale.REPLICA
    yield Made("engine", autoscale.engine(), Ours(ours.overrides).engine(autoscale.DEVICE), ours.overrides)
    yield _router()


def _decision() -> Iterator[Made]:
    from plumage_bench.benches.decision import Fleet

    yield Made("router", Fleet.of(2, 1).decider.policy, Ours().routing_policy(random.Random(1)))


def _cache() -> Iterator[Made]:
    from plumage_bench.benches.eviction.replay import policy_for
    from plumage_bench.benches.eviction.workloads import few_shot

    work, plain = few_shot(1, "bbh", 0.8), Ours().engine()
    yield Made("eviction", policy_for(plain.eviction, work, 1), _eviction(plain, work.capacity))


def _eviction(engine: EngineSettings, capacity: int = 64) -> Any:
    return make_policy(engine.eviction, capacity=capacity, rng=random.Random(1), **engine.eviction_options)


def _feather() -> Iterator[Made]:
    from plumage_bench.benches.vllm_feather.contenders import PRODUCT

    yield Made("plugin", PRODUCT.settings(), Ours(runtime="VLLM").plugin())


def _order() -> Iterator[Made]:
    from plumage_bench.benches.vllm_order.loads import PRODUCT

    yield Made("plugin", PRODUCT.settings(), Ours(runtime="VLLM").plugin())


def _plugin(module: str) -> Callable[[], Iterator[Made]]:
    """For benchmarks in real vLLM whose plugin settings come from a manifest."""

    def made() -> Iterator[Made]:
        ours = importlib.import_module(f"plumage_bench.benches.{module}").OURS
        yield Made("plugin", ours.plugin(), Ours(ours.overrides, "VLLM").plugin(), ours.overrides)

    return made


def _batching() -> Iterator[Made]:
    from plumage_bench.benches.batching import engine as batching

    load, product = batching.LOADS[0], next(one for one in batching.CONTENDERS if one.ages)
    ours = batching.ours_of(load, product)
    settings = batching.settings_of(load, product)
    yield Made("engine", settings, Ours(ours.overrides).engine(settings.device), ours.overrides)


def _fidelity() -> Iterator[Made]:
    from plumage_bench.benches.fidelity import CELLS

    cell = next(one for one in CELLS if "the product" in one.label)
    yield Made("plugin", cell.plumage(0), Ours({"engine.batchLimit": "Static"}, "VLLM").plugin(), cell.overrides)


def _block_pool() -> Iterator[Made]:
    from plumage_bench.benches.vllm_eviction.pool import order_of

    yield Made("eviction", order_of(EVICTION_POLICY), Ours(runtime="VLLM").plugin()["eviction"])


def _host_tier() -> Iterator[Made]:
    from plumage_bench.benches.vllm_hostmem import CONTENDERS, OURS

    product, deployed = CONTENDERS["E+A+lookahead"], OURS.plugin()
    yield Made("tier", product.tier, Ours({"engine.hostMemory.capacity": "1Gi"}, "VLLM").plugin()["hostTier"])
    yield Made("eviction", product.eviction, deployed["eviction"]["policy"], OURS.overrides)


def _hotprefix() -> Iterator[Made]:
    from plumage_bench.benches.vllm_hotprefix import DISK_CONTENDERS, PRODUCT

    deployed = Ours({"engine.hostMemory.capacity": "1Gi"}, "VLLM").plugin()
    for contender in (PRODUCT, *(one for one in DISK_CONTENDERS if one.disk)):
        ours = contender.ours(1 << 30)
        yield Made(contender.label, ours.plugin(), deployed, ours.overrides)


def _pool_hotness() -> Iterator[Made]:
    from plumage_bench.benches.hostmem_global import OURS, tier_of

    wanted = HostTierConfig.model_validate(Ours({"engine.hostMemory.capacity": "1Gi"}, "VLLM").plugin()["hostTier"])
    yield Made("tier", tier_of("global").model_dump(), wanted.model_dump(), OURS.overrides)


def _flood() -> Iterator[Made]:
    from plumage_bench.benches.flood import CONTENDERS

    for one in (one for one in CONTENDERS if one.eviction is None):
        ours = one.ours()
        yield Made(f"engine, {one.label}", ours.engine(), Ours(ours.overrides).engine(), ours.overrides)


def _drift() -> Iterator[Made]:
    from plumage_bench.benches.drift.engine import POOLS

    for pool in POOLS:
        ours = pool.ours.ours()
        yield Made(f"engine, {pool.label}", pool.ours.engine(), Ours(ours.overrides).engine(), ours.overrides)


def _agents() -> Iterator[Made]:
    from plumage_bench.benches.agents.hints import CACHES, CONTENDERS, engine, ours

    for one in CONTENDERS:
        if not one.hints.expects and not one.loads_free:
            pool = ours(CACHES[-1], one.host * CACHES[-1])
            yield Made(f"engine, {one.key}", engine(one, CACHES[-1]), Ours(pool.overrides).engine(), pool.overrides)


def _router_process() -> Iterator[Made]:
    from plumage_bench.benches.router.rig import OURS

    yield Made("router", OURS.router("", None, 0), Ours().router("", None, 0), OURS.overrides)


def _quality() -> Iterator[Made]:
    from plumage_bench.benches.quality.cases import CASES
    from plumage_bench.benches.quality.fleet import simulator_file

    for name, case in CASES.items():
        ours = case.ours()
        written = SimulatorConfig.model_validate(simulator_file(ours, _SOCKETS, 0, 0))
        yield Made(
            f"engine, {name}", engine_settings(written), Ours(ours.overrides).engine(report_tokens=True), ours.overrides
        )
        yield Made("router", ours.router("", None, 0), Ours(ours.overrides).router("", None, 0), ours.overrides)


def _quota() -> Iterator[Made]:
    from plumage_bench.benches.quota import OURS

    yield Made("router", OURS.router("", None, 0), Ours(OURS.overrides).router("", None, 0), OURS.overrides)


def _truth() -> Iterator[Made]:
    from plumage_bench.benches.truth.fleet import OURS

    yield Made("plugin", OURS.plugin(), Ours(runtime="VLLM").plugin(), OURS.overrides)
    yield Made("router", OURS.router("", None, 0), Ours(runtime="VLLM").router("", None, 0))


MEASURED: Final[Mapping[str, Callable[[], Iterator[Made]]]] = {
    **dict.fromkeys(
        ("gsp", "multiturn", "longdoc", "fewshot", "scale", "routers", "hotspot", "adapters"), _routed_fleet
    ),
    "trace": _trace,
    "kvmetrics": _kvmetrics,
    "flood": _flood,
    "drift": _drift,
    "agents": _agents,
    "autoscale": _elastic,
    "victim": _elastic,
    "decision": _decision,
    "eviction": _cache,
    "vllm-feather": _feather,
    "vllm-order": _order,
    "vllm-overhead": _plugin("vllm_overhead"),
    "vllm-pressure": _plugin("vllm_pressure"),
    "vllm-parity": _plugin("vllm_parity"),
    "batching": _batching,
    "fidelity": _fidelity,
    "vllm-eviction": _block_pool,
    "vllm-hostmem": _host_tier,
    "vllm-hotprefix": _hotprefix,
    "hostmem-global": _pool_hotness,
    **dict.fromkeys(("router", "longprompt", "extproc"), _router_process),
    "quota": _quota,
    "quality": _quality,
    "truth": _truth,
}
"""By benchmark: the objects of its contender."""
