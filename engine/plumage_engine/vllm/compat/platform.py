"""The name of the device, from vLLM's platform."""

from __future__ import annotations

from vllm.platforms import current_platform

__all__ = ["device_name"]


def device_name() -> str:
    """The device's name; its type where the platform has no name. The checker's `reads` lists what is read of it."""
    try:
        return str(current_platform.get_device_name())
    except Exception:
        return str(current_platform.device_type)
