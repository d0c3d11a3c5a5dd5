"""Miss-ratio curves from a sample of the accesses. They predict how much a larger cache would help."""

from __future__ import annotations

from plumage.mrc.curve import MissRatioCurve
from plumage.mrc.sampler import ReuseSampler

__all__ = ["MissRatioCurve", "ReuseSampler"]
