"""What vLLM is told to load for its OffloadingConnector:

--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
  "spec_name": "HostTierSpec", "spec_module_path": "plumage_engine.vllm.offload.spec", "cpu_bytes_to_use": 8589934592}}'

With `disk_path` and `disk_bytes_to_use` beside them there is a disk below host memory. Settings come with the plugin's
own (`hostTier`).

vLLM imports this module while it starts, and a name that is gone would end that. So what the tier is made of is
imported behind `fallback.GUARD`. Without it host memory is vLLM's own; where that does not run, it takes nothing.
"""

from __future__ import annotations

from plumage_engine.vllm.compat.offload_base import OffloadingSpec, stock_spec
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.offload import fallback

__all__ = ["HostTierSpec", "choose"]


def _ours() -> type[OffloadingSpec]:
    from plumage_engine.vllm.offload.selective_spec import SelectiveSpec

    return SelectiveSpec


def choose(guard: Guard) -> type[OffloadingSpec]:
    """Ours; with `guard` off vLLM's own, or the one that takes nothing."""
    found = attempt(guard, _ours)
    return found or attempt(Guard("hostTier", Counters()), stock_spec) or fallback.IdleSpec


HostTierSpec = choose(fallback.GUARD)
