"""Miss-ratio curves from a sample of the accesses: would more cache help, and how much?"""

from __future__ import annotations

from plumage.mrc.curve import MissRatioCurve
from plumage.mrc.sampler import ReuseSampler

__all__ = ["MissRatioCurve", "ReuseSampler"]
