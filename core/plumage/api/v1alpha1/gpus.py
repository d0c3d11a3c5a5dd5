"""Which resources of a container are GPUs, and the default resource of a replica."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["GPU", "is_gpu", "names_gpu"]

GPU: Final = "nvidia.com/gpu"
"""The resource that tensorParallelSize asks for if resources name no GPU. The amount 0 means no GPU."""

# Device plugins have their own names for slices, shares and models of a GPU: nvidia.com/mig-1g.5gb,
# nvidia.com/gpu.shared, amd.com/cpx_nps4, gpu.intel.com/xe. The last three patterns are other devices that run vLLM.
_GPUS: Final = re.compile(
    r"(nvidia\.com|amd\.com|gpu\.intel\.com)/.+|.+/v?gpu(\W.+)?"
    r"|habana\.ai/gaudi|google\.com/tpu|aws\.amazon\.com/neuron(core|device)?"
)


def is_gpu(resource: str) -> bool:
    """Whether a resource of that name is a GPU of any vendor, a part of one, or another device that runs vLLM."""
    return _GPUS.fullmatch(resource) is not None


def names_gpu(resources: Iterable[str]) -> bool:
    """Whether a GPU is among the resources, so that tensorParallelSize adds none."""
    return any(map(is_gpu, resources))
