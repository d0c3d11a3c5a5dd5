"""An eviction policy of your own: least recently used first, but each earlier use counts as some seconds."""

from __future__ import annotations

from plumage.blocks.run import Run
from plumage.eviction.base import ScoredPolicy


class UsesAreSeconds(ScoredPolicy):
    """seconds: by how much each earlier use puts off the end; most: uses that count."""

    def __init__(self, seconds: float = 30.0, most: int = 20) -> None:
        super().__init__()
        self._seconds, self._most = seconds, most

    def score(self, run: Run) -> float:
        """Of a run of cached blocks that nobody uses; the lowest is evicted first."""
        return run.used + self._seconds * min(run.uses, self._most)
