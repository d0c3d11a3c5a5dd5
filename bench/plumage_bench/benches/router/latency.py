"""The latency that a router adds, separated from the machine's noise.

Requests go in rounds: one to the mock, another one to the mock, one through the router. Each round has a random order
and takes ten milliseconds. So all three run under equal conditions, and the two to the mock differ only by noise. The
interval of a difference of percentiles is a bootstrap over blocks of rounds. Delays come in clusters, so a bootstrap
over single requests would underestimate their effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["DIRECT", "LIMIT", "ROUTED", "TARGETS", "Difference", "Rounds"]

TARGETS = ("mock", "mock", "router")  # the columns of a round
DIRECT, ROUTED = (0, 1), (2,)
LIMIT = 1000.0  # the target: µs added at P99
BLOCK = 25  # rounds: a quarter of a second
RESAMPLES = 1000
INTERVAL = (2.5, 97.5)

Micros = Any  # numpy array of µs, rounds x targets


@dataclass(frozen=True, slots=True)
class Difference:
    """µs; with 95 % confidence it lies between `low` and `high`."""

    value: float
    low: float
    high: float

    def document(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}

    def shown(self) -> str:
        return f"{self.value:.0f} ({self.low:.0f} to {self.high:.0f})"

    def verdict(self, limit: float = LIMIT) -> str:
        """Whether the added latency is below the limit, or can not be measured on this machine."""
        if self.high <= limit:
            return f"shown: at most {limit / 1000:g} ms"
        return f"not met: above {limit / 1000:g} ms" if self.low > limit else "not shown: the noise is too large"


class Rounds:
    """The latencies of whole rounds."""

    def __init__(self, micros: Micros) -> None:
        self.micros = micros

    @classmethod
    def read(cls, runs: Sequence[bytes]) -> Rounds:
        """From the load generator's sample files (native/load.c), one for each run."""
        return cls(np.concatenate([_matrix(run) for run in runs]))

    def __len__(self) -> int:
        return len(self.micros)

    def percentile(self, share: float, columns: Sequence[int]) -> float:
        return float(np.percentile(self.micros[:, columns], share))

    def added(self, share: float, seed: int) -> Difference:
        """The latency that the router adds to a percentile."""
        return self._difference(share, ROUTED, DIRECT, seed)

    def noise(self, share: float, seed: int) -> Difference:
        """The same figure for two equal targets: the mock against itself."""
        return self._difference(share, DIRECT[1:], DIRECT[:1], seed)

    def _difference(self, share: float, of: Sequence[int], to: Sequence[int], seed: int) -> Difference:
        def difference(micros: Micros) -> float:
            return float(np.percentile(micros[:, of], share) - np.percentile(micros[:, to], share))

        rng = np.random.default_rng(seed)
        size = min(BLOCK, len(self))
        blocks = self.micros[: len(self) // size * size].reshape(-1, size, len(TARGETS))
        drawn = rng.integers(len(blocks), size=(RESAMPLES, len(blocks)))
        found = [difference(blocks[sample].reshape(-1, len(TARGETS))) for sample in drawn]
        low, high = np.percentile(found, INTERVAL)
        return Difference(difference(self.micros), float(low), float(high))


def _matrix(run: bytes) -> Micros:
    """Rounds x targets in the order of the rounds. Rounds without all answers at the end of a run are left out."""
    samples = np.frombuffer(run, "<u4").reshape(-1, 3).astype(np.int64)
    latencies = np.full((samples[:, 1].max(initial=-1) + 1, len(TARGETS)), np.nan)
    latencies[samples[:, 1], samples[:, 0]] = samples[:, 2]
    return latencies[~np.isnan(latencies).any(axis=1)]
