"""Why a benchmark's ours differs from the default manifest: a reason for each override, by benchmark and manifest path.

An override without a reason here counts as `unnamed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["REASONS"]

_SMALL: Final = {
    "engine.simulator.cacheBlocks": "a cache that a short load fills",
    "engine.simulator.maxNumSeqs": "replicas so small that a short load makes a pool grow and shrink",
}
_TIER: Final = {
    "engine.hostMemory.capacity": "it measures host memory, which the default manifest has not",
    "engine.feather.policy": "only the memories differ between contenders",
    "engine.batchLimit": "only the memories differ between contenders",
}

REASONS: Final[Mapping[str, Mapping[str, str]]] = {
    "trace": {
        "engine.simulator.blockSize": "the trace names blocks of 512 tokens",
        "engine.simulator.cacheBlocks": "512,000 tokens a worker, a part of the trace",
    },
    "quality": {
        "engine.simulator.cacheBlocks": "a cache for the size of the workloads",
        "engine.simulator.device.timeScalePercent": "so that two cores serve its requests a second easily",
    },
    "autoscale": _SMALL,
    "victim": _SMALL,
    "kvmetrics": {
        "engine.simulator.maxNumSeqs": "more than its cache holds, so that the adaptive limit has an effect",
    },
    "drift": {
        "engine.simulator.hostBlocks": "of its second pool, which has host memory",
        "engine.hostMemory.admission": "of its second pool: a manifest without host memory must not set it",
    },
    "agents": {
        "engine.simulator.cacheBlocks": "caches that hold a part of the sessions",
        "engine.hostMemory": "of the pool with host memory",
        "engine.simulator.hostBlocks": "of the pool with host memory",
    },
    "vllm-pressure": {
        "engine.feather.policy": "it measures the batch limit alone",
        "engine.eviction.policy": "it measures the batch limit alone",
    },
    "batching": {
        "engine.simulator.cacheBlocks": "so large that nothing is evicted",
        "engine.simulator.maxNumSeqs": "FEATHER's batch",
        "engine.simulator.maxBatchedTokens": "FEATHER's budget of a step",
    },
    "fidelity": {"engine.batchLimit": "the simulator is compared with vLLM at one batch limit"},
    "vllm-hostmem": _TIER,
    "vllm-hotprefix": {**_TIER, "engine.hostMemory.disk.capacity": "it measures a disk below host memory"},
    "hostmem-global": _TIER,
    "quota": {
        "router.auth": "a quota needs keys",
        "quotas": "it measures quotas, which the default manifest has not",
    },
}
"""By benchmark and path under spec."""
