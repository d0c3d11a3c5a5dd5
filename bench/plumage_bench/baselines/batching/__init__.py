"""Baselines for FEATHER: SGLang's orders, batches by known groups, a limit by latency, a plain radix tree, and
a stop by the marginal value theorem."""

from __future__ import annotations

from typing import Any, Final

from plumage import batching
from plumage.batching import BatchQueue
from plumage.randomness import Randomness
from plumage_bench.baselines.named import NamedBaselines

__all__ = ["POLICY_NAMES", "make_queue", "path"]

_BASELINES: Final = NamedBaselines(
    __name__,
    {
        "Lpm": "sorted_queue:Lpm",
        "DfsWeight": "sorted_queue:DfsWeight",
        "Oracle": "oracle:Oracle",
        "Dynamic": "dynamic:DynamicBatching",
        "Radix": "radix:RadixQueue",
        "Marginal": "marginal:Marginal",
    },
)
POLICY_NAMES: Final = (*batching.POLICIES, *_BASELINES.names)
"""Names of the product's policies and the baselines."""
path: Final = _BASELINES.path


def make_queue(name: str, *, rng: Randomness, max_wait: float | None = None, **options: Any) -> BatchQueue:
    """The queue `name` of the product or of a baseline, made by the product's own function."""
    return batching.make_queue(path(name), rng=rng, max_wait=max_wait, **options)
