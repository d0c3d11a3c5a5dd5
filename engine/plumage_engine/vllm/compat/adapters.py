"""vLLM's own loading of LoRA adapters in the API server."""

from __future__ import annotations

from typing import Any

from vllm.config import ParallelConfig
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from plumage_engine.vllm.compat.checks import Live, Read, Surface, missing, missing_live

__all__ = ["LIVE", "READ", "SURFACE", "load", "problems", "unload"]

SURFACE: Surface = {AsyncLLM: ("add_lora(lora_request)",)}
LIVE: Live = {OpenAIServingModels: ("engine_client", "lora_id_counter", "lora_requests")}
READ: Read = {LoRARequest: ("lora_int_id", "lora_path"), ParallelConfig: ("_api_process_count",)}


def problems(models: Any) -> list[str]:
    """What loading needs and this API server does not have."""
    if not isinstance(models, OpenAIServingModels):
        return [f"its list of models is a {type(models).__name__}, not vLLM's OpenAIServingModels"]
    return missing(SURFACE) + missing_live(LIVE, models)


async def load(models: Any, name: str, folder: str, *, before: Any) -> str:
    """Load an adapter from a folder, and then list it. Returns vLLM's message if it refuses it, else "".

    before: vLLM's earlier request for an adapter of this name, whose id and place it takes. None: it gets a new id.

    The engine gets the request itself, not vLLM's `load_lora_adapter`. That one takes a known id only from the list, so
    the adapter would be served with its earlier weights until the load ends. It also keeps `load_inplace` in the list,
    and would load the adapter again for every batch.
    """
    number = models.lora_id_counter.inc(1) if before is None else before.lora_int_id
    try:
        await models.engine_client.add_lora(LoRARequest(name, number, folder, load_inplace=before is not None))
    except Exception as error:  # whatever vLLM's worker raises for wrong files
        return str(error) or type(error).__name__
    models.lora_requests[name] = LoRARequest(name, number, folder)
    return ""


def unload(models: Any, name: str) -> Any:
    """Take the adapter out of the list of models, and return its request. vLLM itself frees its memory when another one
    needs it."""
    return models.lora_requests.pop(name)
