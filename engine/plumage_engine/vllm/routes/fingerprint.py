"""The fingerprint of a learned table, 16 hexadecimal digits: engines with an equal one can share tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from plumage.settings.plugin_config import PluginSettings
from plumage_engine.vllm.settings import SECTION

__all__ = ["fingerprint"]

_NOT_THE_MODEL = ("_name_or_path", "transformers_version")


def fingerprint(config: Any, settings: PluginSettings) -> str:
    """Covers the model and device themselves, not their paths, and how batches are made.

    config: vLLM's VllmConfig.
    """
    model, parallel, scheduler = config.model_config, config.parallel_config, config.scheduler_config
    architecture = {name: value for name, value in model.hf_config.to_dict().items() if name not in _NOT_THE_MODEL}
    parts = {
        "model": repr(sorted(architecture.items(), key=lambda item: item[0])),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "device": _device(parallel),
        "workers": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size],
        "others": _others(getattr(config, "additional_config", None)),
        "feather": settings.feather.model_dump(mode="json") if settings.feather is not None else None,
        "batch_limit": settings.batch_limit,
        "block_size": config.cache_config.block_size,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_batched_tokens": scheduler.max_num_batched_tokens,
        "async": bool(scheduler.async_scheduling),
    }
    return xxh3_64_hexdigest(msgspec.json.encode(parts, order="sorted"))


def _others(additional_config: object) -> str:
    """Other plugins' settings: a backend that replaces a device has its settings there."""
    if not isinstance(additional_config, Mapping):
        return repr(type(additional_config))
    return repr(sorted((str(name), value) for name, value in additional_config.items() if name != SECTION))


def _device(parallel: Any) -> str:
    """The platform's name of its device, and the executor: a custom backend that replaces a device counts too."""
    from plumage_engine.vllm.compat.platform import device_name

    return f"{device_name()} {parallel.distributed_executor_backend}"
