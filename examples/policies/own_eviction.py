"""An eviction policy of your own: least recently used first, but each earlier use counts as some seconds."""

from __future__ import annotations

from plumage.blocks.run import Run
from plumage.eviction.base import ScoredPolicy


class UsesAreSeconds(ScoredPolicy):
    """seconds: what each use adds to the time of the last use; most: the largest number of uses that counts."""

    def __init__(self, seconds: float = 30.0, most: int = 20) -> None:
        super().__init__()
        self._seconds, self._most = seconds, most

    def score(self, run: Run) -> float:
        """The score of a run of cached blocks that no request uses; the lowest is evicted first."""
        return run.used + self._seconds * min(run.uses, self._most)
