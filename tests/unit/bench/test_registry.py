"""The help text of a benchmark, known without importing it, agrees with the benchmark."""

from __future__ import annotations

import inspect

import pytest

from plumage_bench.benches import adapters, decision, hotspot, longdoc, mrc, routers, trace, vllm_parity
from plumage_bench.benches.trace import libcache
from plumage_bench.pairs import LEAST_PAIRS
from plumage_bench.registry import BENCHMARKS, NAMES, load
from plumage_bench.routing.contenders import BASELINES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_code_and_a_description(name: str) -> None:
    assert list(inspect.signature(load(name)).parameters) == ["context"]
    described = BENCHMARKS[name]
    assert described.name == name
    assert described.summary
    assert described.quick_omits
    # Real vLLM computes each token, and an engine's start alone takes seconds; a fleet rests for a minute. The routing
    # benches have five pairs of seeds, so that a verdict is not luck; the trace's fleets have two evictions. A storm's
    # faults need room between them, and agents wait for their answers. A quota's window is a minute of the clock.
    # A queue needs seconds to fill. kvmetrics has five seeds of each context length and limit, and routers and hotspot
    # have five of each fleet; so have adapters and flood, and drift of each load and setting. quality lets each real
    # router serve each workload in real time.
    slow = described.needs_vllm or name in ("operator-scale", "trace")
    longer = {"gsp": 600, "multiturn": 600, "longdoc": 600, "fewshot": 600, "storm": 480, "agents": 480, "quota": 320,
              "soak": 260, "overload": 300, "fairness": 240, "sloscore": 300, "kvmetrics": 480, "routers": 480,
              "hotspot": 480, "adapters": 300, "flood": 600, "quality": 360,
              "drift": 480, "vllm-order": 480}  # fmt: skip
    most = longer.get(name, 240 if slow else 60)
    assert 0 < described.quick_budget <= most


def test_quick_omissions_in_the_help_equal_those_of_the_code() -> None:
    def omits(name: str) -> str:
        return BENCHMARKS[name].quick_omits

    left_out = decision.REQUESTS - decision.QUICK_REQUESTS
    assert f"{left_out:,} of {decision.REQUESTS:,} decisions of each case and seed" in omits("decision")
    fewer = longdoc._DOCUMENTS - longdoc._DOCUMENTS_QUICK
    assert f"{fewer} of {longdoc._DOCUMENTS} documents" in omits("longdoc")
    assert "documents" not in omits("gsp")
    assert f"{mrc.SEEDS - mrc.QUICK_SEEDS} of {mrc.SEEDS} seeds" in omits("mrc")
    fewer = vllm_parity.REQUESTS - vllm_parity.REQUESTS_QUICK
    assert f"{fewer:,} of {vllm_parity.REQUESTS:,} requests" in omits("vllm-parity")
    assert f"{routers.SEEDS - LEAST_PAIRS} of {routers.SEEDS} seeds" in omits("routers")
    fewer = len(hotspot.contenders(quick=False)) - len(hotspot.contenders(quick=True))
    assert f"{hotspot.SEEDS - LEAST_PAIRS} of {hotspot.SEEDS} seeds, {fewer} of {len(BASELINES)}" in omits("hotspot")
    assert f"{adapters.SEEDS - LEAST_PAIRS} of {adapters.SEEDS} seeds" in omits("adapters")
    policies = len(libcache.NAMES)
    for phrase in (
        f"{policies - len(libcache.LEADERS)} of libCacheSim's {policies} policies",
        f"{trace._NAMINGS - trace._NAMINGS_QUICK} of {trace._NAMINGS} seeds of the block names",
        f"all but the first {trace._ROUTED_QUICK:,} requests",
        f"{trace._SEEDS - trace._SEEDS_QUICK} of {trace._SEEDS} seeds of the fleet",
    ):
        assert phrase in omits("trace")
    assert trace._SYNTHETIC_QUICK * 2 == trace._SYNTHETIC_REQUESTS
