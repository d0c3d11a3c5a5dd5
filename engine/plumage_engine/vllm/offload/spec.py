"""The spec that vLLM loads for its OffloadingConnector:

--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
  "spec_name": "HostTierSpec", "spec_module_path": "plumage_engine.vllm.offload.spec", "cpu_bytes_to_use": 8589934592}}'

`disk_path` and `disk_bytes_to_use` beside them add a disk below host memory. The plugin's own settings (`hostTier`)
choose the policies.

vLLM imports this module at its start, and a missing name would end that. So the tier's parts are imported behind
`fallback.GUARD`. Without them host memory is vLLM's own; where that does not run, it stores nothing.
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
    """Our spec; with `guard` off vLLM's own, or the one that stores nothing."""
    found = attempt(guard, _ours)
    return found or attempt(Guard("hostTier", Counters()), stock_spec) or fallback.IdleSpec


HostTierSpec = choose(fallback.GUARD)
