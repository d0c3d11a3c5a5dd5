"""What FEATHER is compared with: SGLang's orders, batches by known groups, a limit by latency, a plain radix tree."""

from __future__ import annotations

from typing import Any, Final

from plumage import batching
from plumage.batching import BatchQueue
from plumage.batching.interface import Uniform

__all__ = ["BASELINE_NAMES", "POLICY_NAMES", "make_queue", "path"]

_HERE: Final = __name__
_PATHS: Final = {
    "Lpm": f"{_HERE}.sorted_queue:Lpm",
    "DfsWeight": f"{_HERE}.sorted_queue:DfsWeight",
    "Oracle": f"{_HERE}.oracle:Oracle",
    "Dynamic": f"{_HERE}.dynamic:DynamicBatching",
    "Radix": f"{_HERE}.radix:RadixQueue",
}
BASELINE_NAMES: Final = tuple(_PATHS)
POLICY_NAMES: Final = (*batching.POLICIES, *_PATHS)
"""The product's and the baselines'."""


def path(name: str) -> str:
    """What settings say for the policy called `name`: the product's names as they are, a baseline's import path."""
    return _PATHS.get(name, name)


def make_queue(name: str, *, rng: Uniform, max_wait: float | None = None, **options: Any) -> BatchQueue:
    """The queue called `name`, of the product or a baseline, made by the product's own function."""
    return batching.make_queue(path(name), rng=rng, max_wait=max_wait, **options)
