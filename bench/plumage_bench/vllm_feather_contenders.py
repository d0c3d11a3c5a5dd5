"""Who serves the loads of `vllm-feather`: vLLM as it is, the tree's order, the learned policies and the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plumage.batching.base import MAX_WAIT

__all__ = ["ALWAYS", "CEILINGS", "CONTENDERS", "FCFS", "LEARNED", "OFF", "PRODUCT", "TREE", "Contender"]

OFF = {"feather": None, "eviction": None, "batchLimit": "Static"}
_AGEING = 120.0  # seconds; a bound that a loaded machine of two cores does not reach by being slow


@dataclass(frozen=True, slots=True)
class Contender:
    """policy: of the plugin's `feather`; None is vLLM without it. homogeneous: its requests are all of one group.
    learns: the first round of it is not counted. only: cells in which it is served; () for all. ageing: seconds."""

    label: str
    policy: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    homogeneous: bool = False
    learns: bool = False
    only: tuple[str, ...] = ()
    ageing: float = _AGEING

    def settings(self) -> dict[str, Any]:
        if self.policy is None:
            return dict(OFF)
        asked = {"policy": self.policy, "options": dict(self.options), "maxWaitSeconds": self.ageing}
        return {**OFF, "feather": asked}


_MAIN = ("8 × 4k", "8 × 4k, open")
FCFS, TREE = Contender("FCFS", None), Contender("tree", "ChtOrder")
LEARNED = Contender("bandit", "Bandit", learns=True)
_ALONE = Contender("one group", "ChtOrder", homogeneous=True, only=_MAIN)
CEILINGS = (
    _ALONE,
    replace(_ALONE, label="one group, FCFS", policy=None, only=("8 × 4k",)),
    replace(_ALONE, label="one group, bandit", policy="Bandit", learns=True, only=("8 × 4k",)),
)
"""One group alone, in the three orders that this cell's ratios compare: the best of them is the ceiling."""
AGAIN = (
    Contender("FCFS again", None, only=("8 × 4k", "no sharing, 1k")),
    Contender("tree again", "ChtOrder", only=("8 × 4k",)),
)
PRODUCT = Contender("bandit, 10 s", "Bandit", learns=True, only=_MAIN, ageing=MAX_WAIT)
ALWAYS = (FCFS, TREE, LEARNED, *CEILINGS, *AGAIN, PRODUCT)
CONTENDERS = (
    *ALWAYS,
    Contender("Q-learning", "QLearning", learns=True),
    Contender("heuristic", "Heuristic"),
    Contender("LPM", "Lpm"),
    Contender("DFS-W", "DfsWeight"),
    Contender("oracle", "Oracle"),
)
