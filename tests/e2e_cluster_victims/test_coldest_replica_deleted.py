"""A pool scales down: its hit ratio is higher after the deletion of its coldest replica than of a random one.

Ten pairs under one load, whose prefixes fit into the caches of two replicas but not of one. Each trial begins with two
replicas. A third one starts with an empty cache, as for a short peak, and then one of the three is deleted. Either the
operator chooses it, or the test draws it: it pauses the pool, gives that pod the lowest deletion cost and scales the
Deployment by hand. Both drain alike. The coldest replica is the youngest here, which a ReplicaSet deletes anyway; the
pod's cost shows that the operator chose it. tests/e2e_cluster/test_autoscaling.py shows the deletion of a colder but
older replica. PLUMAGE_E2E_REPORT names a folder for the trials as JSON.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import pytest
from cluster import lifecycle
from support.kube_access import Access, until
from support.kube_fleet import BUSY, Fleet, busy_pool
from support.kube_hotness import hotness
from support.kube_install import apply_pool, remove_pool
from support.kube_load import Load, hit_ratio

from plumage_bench.pairs import PairedRatio, paired_ratio

pytestmark = pytest.mark.timeout(3600)
_NAMESPACE, _NAME, _KEY = "victims", "victims", "opens-the-explanations"
_PAIRS = 10
_SERVED_S = 20.0  # by the third replica
_AFTER_S = 30.0
_WARM = 0.93  # hit ratio: 0.948 in a steady state, 0.90 at most right after a deletion
_CHEAPEST = -(2**31) + 1


@dataclass(frozen=True)
class Trial:
    """One deletion. who: coldest | random. hotness: by replica, before it. victim: the deleted pod, with its `cost`.

    before, after: hit ratios while three replicas served, and in the half minute after the deletion began.
    """

    pair: int
    who: str
    hotness: dict[str, float]
    victim: str
    cost: int | None
    before: float
    after: float

    @property
    def coldest(self) -> str:
        return min(self.hotness, key=lambda name: self.hotness[name])


class Trials:
    """All trials, under one load."""

    def __init__(self, fleet: Fleet, load: Load, rng: random.Random) -> None:
        self._fleet = fleet
        self._load = load
        self._rng = rng
        self.done: list[Trial] = []

    def run(self, pair: int) -> None:
        """Both trials of a pair, in a random order."""
        ways = [("coldest", self._by_the_operator), ("random", self._drawn)]
        self._rng.shuffle(ways)
        for who, shrink in ways:
            self.done.append(self._trial(pair, who, shrink))
            print(self.done[-1], flush=True)

    def _trial(self, pair: int, who: str, shrink: Callable[[], float]) -> Trial:
        fleet = self._fleet
        until(self._is_warm, "the fleet of two hits as before")
        fleet.scale(3)
        fleet.until_whole()
        since = time.time()
        time.sleep(_SERVED_S)
        found = hotness(fleet.access, fleet.pool)
        with fleet.following("engine") as followed:
            ended = shrink()
            (victim,) = set(found) - set(fleet.pods("engine"))
            followed.until_ending({victim})
            cost = next(one.cost for one in followed.seen() if one.name == victim and one.ending)
        time.sleep(max(0.0, ended + _AFTER_S - time.time()))
        run = self._load.settled(ended + _AFTER_S)
        before, after = (hit_ratio(run.sent(*when)) for when in ((since, ended), (ended, ended + _AFTER_S)))
        assert before is not None, "nothing was answered before"
        assert after is not None, "nothing was answered after"
        assert [row for row in run.sent(since, ended + _AFTER_S) if row.outcome != "ended"] == []
        fleet.until_whole()
        return Trial(pair, who, found, victim, cost, before, after)

    def _by_the_operator(self) -> float:
        self._fleet.scale(2)
        return self._until_two()

    def _drawn(self) -> float:
        fleet = self._fleet
        victim = self._rng.choice(fleet.pods("engine"))
        fleet.pause(True)
        fleet.make_cheap(victim, _CHEAPEST)
        fleet.scale_by_hand(2)
        ended = self._until_two()
        assert victim not in fleet.pods("engine")
        fleet.scale(2)
        fleet.pause(False)
        return ended

    def _until_two(self) -> float:
        """The time at which the Deployment had two pods, in seconds since the epoch."""
        until(lambda: len(self._fleet.pods("engine")) == 2, "one of three is being deleted")
        return time.time()

    def _is_warm(self) -> bool:
        ratio = self._load.hit_ratio()
        return ratio is not None and ratio > _WARM


@pytest.fixture(scope="module")
def trials(own: lifecycle.Cluster, access: Access, installed: None) -> Iterator[list[Trial]]:
    access.namespace(_NAMESPACE)
    access.kubectl("-n", _NAMESPACE, "create", "secret", "generic", f"{_NAME}-admin", f"--from-literal=key={_KEY}")
    manifest = busy_pool(_NAME)
    manifest["spec"]["router"]["policy"] = "Lbgr"
    del manifest["spec"]["engine"]["topologySpreadConstraints"]  # three replicas, two nodes
    pool = apply_pool(access, _NAMESPACE, _NAME, json.dumps(manifest))
    load = Load.start(access, pool, port=8000, key=_KEY, **BUSY)
    trials = Trials(Fleet(access, own, pool), load, random.Random(1))
    try:
        for pair in range(_PAIRS):
            trials.run(pair)
        yield trials.done
    finally:
        load.stop()
        _keep(trials.done)
        remove_pool(access, pool)


@pytest.fixture(scope="module")
def gain(trials: list[Trial]) -> PairedRatio:
    """The hit ratio after the coldest was deleted, divided by that after a random one was."""
    after = {who: [one.after for one in trials if one.who == who] for who in ("coldest", "random")}
    found = paired_ratio(after["coldest"], after["random"])
    print(f"\nhit ratio after: { {who: fmean(each) for who, each in after.items()} }; coldest ÷ random {found}")
    return found


def _keep(trials: list[Trial]) -> None:
    """Writes the trials so far, also after a failure."""
    if folder := os.environ.get("PLUMAGE_E2E_REPORT"):
        document = {"load": BUSY, "trials": [asdict(one) for one in trials]}
        Path(folder, "cluster-victims.json").write_text(json.dumps(document, indent=1) + "\n")


def test_operator_deletes_the_coldest_replica(trials: list[Trial]) -> None:
    chosen = [one for one in trials if one.who == "coldest"]
    assert len(chosen) == _PAIRS
    assert [one for one in chosen if one.victim != one.coldest] == []
    assert [one for one in chosen if one.cost is None or one.cost >= 0] == []


def test_hit_ratio_is_higher_without_the_coldest_than_without_a_random_replica(gain: PairedRatio) -> None:
    assert gain.pairs == _PAIRS
    assert gain.low > 1.0, str(gain)
