"""All claims, by section of the page."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim
from plumage_bench.evidence.claims import caches, earlier, fleet, gpu, routing, vllm
from plumage_bench.evidence.claims.elsewhere import NOT_HERE, NOT_KEPT

__all__ = ["NOT_KEPT", "SECTIONS"]

SECTIONS: tuple[tuple[str, tuple[Claim, ...]], ...] = (
    ("Data structures and caches", caches.CLAIMS),
    ("Routing (virtual time)", routing.CLAIMS),
    ("Autoscaling", fleet.SIZING),
    ("The hot path and the directory", fleet.HOT_PATH),
    ("A cluster", fleet.CLUSTER),
    ("Beside an earlier commit, in pairs (above 1 is better)", earlier.CLAIMS),
    ("Real vLLM on a CPU", vllm.CLAIMS),
    ("Real vLLM on a GPU", gpu.CLAIMS),
    ("Not measurable here", NOT_HERE),
)
