"""Which of a container's resources are GPUs, and what a replica asks for where its manifest names none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["GPU", "is_gpu", "names_gpu"]

GPU: Final = "nvidia.com/gpu"
"""What tensorParallelSize asks for where resources name no GPU; 0 of them says that there shall be none."""

# Device plugins give slices, shares and models of a GPU names of their own: nvidia.com/mig-1g.5gb,
# nvidia.com/gpu.shared, amd.com/cpx_nps4, gpu.intel.com/xe. The last three are no GPUs in name, and run vLLM instead.
_GPUS: Final = re.compile(
    r"(nvidia\.com|amd\.com|gpu\.intel\.com)/.+|.+/v?gpu(\W.+)?"
    r"|habana\.ai/gaudi|google\.com/tpu|aws\.amazon\.com/neuron(core|device)?"
)


def is_gpu(resource: str) -> bool:
    """Whether a resource of that name is a GPU, a part of one, or what vLLM runs on instead; of any vendor."""
    return _GPUS.fullmatch(resource) is not None


def names_gpu(resources: Iterable[str]) -> bool:
    """Whether a GPU is among them, so that tensorParallelSize asks for none besides."""
    return any(map(is_gpu, resources))
