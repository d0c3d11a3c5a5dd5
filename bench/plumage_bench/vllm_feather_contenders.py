"""Who serves the loads of `vllm-feather`: vLLM as it is, the parts of FEATHER one by one, the product, the baselines.

Each is made of a manifest (`ours.py`), but for what no manifest can say: vLLM's order with a sorted batch, and the
policies of the lab. One engine serves all, so its order of eviction and its limit of running requests are vLLM's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plumage.batching.base import MAX_WAIT
from plumage_bench.baselines.batching import path
from plumage_bench.ours import Ours

__all__ = ["AGAIN", "ALWAYS", "CEILINGS", "CONTENDERS", "FCFS", "LEARNED", "OFF", "ORDER", "PRODUCT", "Contender"]

ENGINE = {"engine.eviction.policy": "Lru", "engine.batchLimit": "Static"}
"""What the experiment sets of every contender."""
_AGEING = 120  # seconds; a bound that a loaded machine of two cores does not reach by being slow


@dataclass(frozen=True, slots=True)
class Contender:
    """overrides: of the manifest, beside `ENGINE`. lab: a `feather` of the plugin that no manifest can say, instead.
    homogeneous: its requests are all of one group. learns: the first round of it is not counted. only: cells in which
    it is served; () for all."""

    label: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    lab: Mapping[str, Any] | None = None
    homogeneous: bool = False
    learns: bool = False
    only: tuple[str, ...] = ()

    @property
    def ours(self) -> Ours:
        """Its manifest."""
        return Ours({**ENGINE, **self.overrides}, "VLLM")

    def settings(self) -> dict[str, Any]:
        """Of the plugin, as in JSON."""
        settings = self.ours.plugin()
        return settings if self.lab is None else {**settings, "feather": dict(self.lab)}

    @property
    def orders(self) -> bool:
        """Whether FEATHER is on."""
        return self.settings()["feather"] is not None

    @property
    def sorts(self) -> bool:
        """Whether the running batch is sorted."""
        feather = self.settings()["feather"]
        return feather is not None and bool(feather.get("orderBatch"))


def _waits(policy: str, **more: Any) -> dict[str, Any]:
    """A policy of the manifest with the ageing limit that is out of reach; more: further fields of `engine.feather`."""
    fields = {"policy": policy, "maxWaitSeconds": _AGEING, **more}
    return {f"engine.feather.{name}": value for name, value in fields.items()}


def _lab(policy: str, **more: Any) -> dict[str, Any]:
    """A `feather` of the plugin; policy: of the product or a baseline, by its short name."""
    return {"policy": path(policy), "maxWaitSeconds": _AGEING, **more}


_MAIN = ("8 × 4k", "8 × 4k, open")
FCFS = Contender("FCFS", {"engine.feather.policy": "Fcfs"})
OFF = FCFS.settings()
ORDER = Contender("order", _waits("ChtOrder"))
LEARNED = Contender("bandit", _waits("Bandit"), learns=True)
SORTED = (
    Contender("FCFS sorted", FCFS.overrides, lab=_lab("Fcfs", orderBatch=True), only=_MAIN),
    Contender("order sorted", _waits("ChtOrder", orderBatch=True), only=_MAIN),
)
PRODUCT = Contender("product", only=(*_MAIN, "no sharing, 1k"))
"""What the default manifest deploys."""
_ALONE = replace(ORDER, label="one group", homogeneous=True, only=_MAIN)
CEILINGS = (
    _ALONE,
    replace(_ALONE, label="one group, FCFS", overrides=FCFS.overrides, only=("8 × 4k",)),
    replace(_ALONE, label="one group, bandit", overrides=LEARNED.overrides, learns=True, only=("8 × 4k",)),
)
"""One group alone, in the three orders that this cell's ratios compare: the best of them is the ceiling."""
AGAIN = (
    replace(FCFS, label="FCFS again", only=("8 × 4k", "no sharing, 1k")),
    replace(ORDER, label="order again", only=("8 × 4k",)),
)
BOUNDED = Contender(
    f"bandit, {MAX_WAIT:.0f} s", {"engine.feather.policy": "Bandit"}, learns=True, only=_MAIN
)  # fmt: skip
"""The bandit as a pool gets it that asks for it."""
ALWAYS = (FCFS, ORDER, *SORTED, PRODUCT, LEARNED, BOUNDED, *CEILINGS, *AGAIN)
CONTENDERS = (
    *ALWAYS,
    Contender("Q-learning", _waits("QLearning"), learns=True),
    Contender("heuristic", _waits("Heuristic")),
    Contender("LPM", lab=_lab("Lpm")),
    Contender("DFS-W", lab=_lab("DfsWeight")),
    Contender("oracle", lab=_lab("Oracle")),
)
