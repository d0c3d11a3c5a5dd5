"""vLLM's own loading of LoRA adapters in the API server."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from vllm.lora.request import LoRARequest

from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = ["LIVE", "SURFACE", "load", "problems", "unload"]

SURFACE: Surface = {OpenAIServingModels: ("load_lora_adapter(request)", "unload_lora_adapter(request)")}
LIVE: Live = {OpenAIServingModels: ("lora_requests",), LoRARequest: ("load_inplace", "lora_path")}


def problems(models: Any) -> list[str]:
    """What loading needs and this API server does not have."""
    if not isinstance(models, OpenAIServingModels):
        return [f"its list of models is a {type(models).__name__}, not vLLM's OpenAIServingModels"]
    return missing(SURFACE) + missing_live(LIVE, models)


async def load(models: Any, name: str, folder: str, *, replace: bool) -> str:
    """Load an adapter from a folder. Returns vLLM's message if it refuses it, else "".

    vLLM keeps `load_inplace` in its request for the adapter, and would load the adapter again for every batch.
    """
    request = LoadLoRAAdapterRequest(lora_name=name, lora_path=folder, load_inplace=replace)
    answer = await models.load_lora_adapter(request)
    if isinstance(answer, ErrorResponse):
        return str(answer.error.message)
    models.lora_requests[name].load_inplace = False
    return ""


async def unload(models: Any, name: str) -> None:
    """Take the adapter out of the list of models. vLLM itself frees its memory when another one needs it."""
    await models.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=name))
