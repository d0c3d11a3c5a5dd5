"""The plot of `bench eviction`: hit ratio by cache size for the worst order, and gains over leaf-LRU for other
loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["draw"]


def draw(figure: Any, sizes: Sequence[float], curves: Mapping[str, Sequence[float]], gains: Mapping[str, Any]) -> None:
    """curves: hit ratio by policy at each of `sizes` (share of the loop). gains: workload → policy → ratio to LRU."""
    left, right = figure.subplots(1, 2)
    for name, values in curves.items():
        left.plot([100 * size for size in sizes], values, marker=".", label=name)
    left.set_xlabel("cache, % of the loop")
    left.set_ylabel("hit ratio")
    left.set_title("GSP, worst order")
    left.legend(fontsize="small")
    policies = list(next(iter(gains.values())))
    width = 0.8 / len(policies)
    for index, policy in enumerate(policies):
        places = [place + index * width for place in range(len(gains))]
        right.bar(places, [row[policy] for row in gains.values()], width, label=policy)
    right.axhline(1.0, color="grey", linewidth=0.8)
    right.set_xticks([place + 0.4 for place in range(len(gains))], list(gains), rotation=20)
    right.set_ylim(bottom=0.6)
    right.set_title("hit ratio ÷ leaf-LRU's")
    right.legend(fontsize="small")
