"""The contenders of `vllm-feather`: vLLM without changes, the parts of FEATHER one by one, the product, the baselines.

Each is made from a manifest (`ours.py`), except for vLLM's order with a sorted batch and the experimental policies,
which no manifest has. One engine serves all, with the default manifest's eviction and limit of running requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plumage.batching.base import MAX_WAIT
from plumage_bench.baselines.batching import path
from plumage_bench.ours import Ours

__all__ = ["AGAIN", "ALWAYS", "CEILINGS", "CONTENDERS", "FCFS", "LEARNED", "OFF", "ORDER", "PRODUCT", "Contender"]

_AGEING = 120  # seconds; so large that a loaded machine with two cores does not reach it


@dataclass(frozen=True, slots=True)
class Contender:
    """overrides: of the manifest. lab: a `feather` setting of the plugin that no manifest has,
    instead of overrides. homogeneous: all its requests are of one group. learns: its first round is not counted. only:
    cells in which it runs; () for all."""

    label: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    lab: Mapping[str, Any] | None = None
    homogeneous: bool = False
    learns: bool = False
    only: tuple[str, ...] = ()

    @property
    def ours(self) -> Ours:
        """Its manifest."""
        return Ours(self.overrides, "VLLM")

    def settings(self) -> dict[str, Any]:
        """The plugin's settings, as in JSON."""
        settings = self.ours.plugin()
        return settings if self.lab is None else {**settings, "feather": dict(self.lab)}

    @property
    def orders(self) -> bool:
        """Whether FEATHER is enabled."""
        return self.settings()["feather"] is not None

    @property
    def sorts(self) -> bool:
        """Whether the running batch is sorted."""
        feather = self.settings()["feather"]
        return feather is not None and bool(feather.get("orderBatch"))


def _waits(policy: str, **more: Any) -> dict[str, Any]:
    """A policy of the manifest with an ageing bound that is not reached. more: further fields of `engine.feather`."""
    fields = {"policy": policy, "maxWaitSeconds": _AGEING, **more}
    return {f"engine.feather.{name}": value for name, value in fields.items()}


def _lab(policy: str, **more: Any) -> dict[str, Any]:
    """A `feather` setting of the plugin. policy: of the product or a baseline, by its short name."""
    return {"policy": path(policy), "maxWaitSeconds": _AGEING, **more}


_MAIN = ("8 × 4k", "8 × 4k, open")
_PARTS = (*_MAIN, "32 × 4k")
FCFS = Contender("FCFS", {"engine.feather.policy": "Fcfs"})
OFF = FCFS.settings()
ORDER = Contender("order", _waits("ChtOrder"))
LEARNED = Contender("bandit", _waits("Bandit"), learns=True)
SORTED = (
    Contender("FCFS sorted", FCFS.overrides, lab=_lab("Fcfs", orderBatch=True), only=_PARTS),
    Contender("order sorted", _waits("ChtOrder", orderBatch=True), only=_PARTS),
)
PRODUCT = Contender("product", only=(*_MAIN, "no sharing, 1k"))
"""The default manifest."""
_ALONE = replace(ORDER, label="one group", homogeneous=True, only=_PARTS)
CEILINGS = (
    _ALONE,
    replace(_ALONE, label="one group, FCFS", overrides=FCFS.overrides, only=("8 × 4k",)),
    replace(_ALONE, label="one group, bandit", overrides=LEARNED.overrides, learns=True, only=("8 × 4k",)),
)
"""One group alone, with the three orders that this cell's ratios compare. The best of them is the ceiling."""
AGAIN = (
    replace(FCFS, label="FCFS again", only=("8 × 4k", "no sharing, 1k")),
    replace(ORDER, label="order again", only=("8 × 4k",)),
)
BOUNDED = Contender(
    f"bandit, {MAX_WAIT:.0f} s", {"engine.feather.policy": "Bandit"}, learns=True, only=_MAIN
)  # fmt: skip
"""The bandit as in a pool whose manifest selects it."""
ALWAYS = (FCFS, ORDER, *SORTED, PRODUCT, LEARNED, BOUNDED, *CEILINGS, *AGAIN)
CONTENDERS = (
    *ALWAYS,
    Contender("bandit printed", _waits("Bandit", **{"bandit.form": "Paper"}), learns=True),
    Contender("Q-learning", _waits("QLearning"), learns=True),
    Contender("Q-learning printed", _waits("QLearning", **{"qLearning.form": "Paper"}), learns=True),
    Contender("heuristic", _waits("Heuristic")),
    Contender("predictive", _waits("Predictive"), learns=True),
    Contender("LPM", lab=_lab("Lpm")),
    Contender("DFS-W", lab=_lab("DfsWeight")),
    Contender("oracle", lab=_lab("Oracle")),
    Contender("marginal", lab=_lab("Marginal"), learns=True),
)
