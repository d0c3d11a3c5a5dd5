"""vLLM's platform: what it calls the device that it runs on."""

from __future__ import annotations

from vllm.platforms import current_platform

__all__ = ["device_name"]


def device_name() -> str:
    """Of a platform that knows none, or raises, its type. What is read of it stands in the checker's `reads`."""
    try:
        return str(current_platform.get_device_name())
    except Exception:
        return str(current_platform.device_type)
