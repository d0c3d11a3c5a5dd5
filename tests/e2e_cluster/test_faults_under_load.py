"""Whatever happens to a pool under load, no request is lost whose first byte was not sent, and its caches come back.

One load runs from the first to the last fault, from inside the cluster; its client counts every request. Engines may
run on node 2, routers and directory not, so that a frozen node takes an engine and nothing else: what a router holds
when its machine stops is lost with it, wherever it runs. PLUMAGE_E2E_REPORT names a folder for the table as JSON.

One replica's cache has no room for all prefixes, two have: routed by prefix nearly all hit, until a replica is lost.
What a newcomer's cache is worth shows where it is asked as often as others: in its first minute all are, in turn.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import lifecycle
from support.kube_access import Access, until
from support.kube_fleet import Fleet, busy_pool
from support.kube_install import apply_pool, remove_pool
from support.kube_load import WINDOW_S, Load, Run
from support.kube_report import Fault, Minute, first_minute, table

pytestmark = pytest.mark.timeout(1800)  # a story of a dozen faults, each waited for as long as a busy machine takes
_NAMESPACE, _NAME, _KEY = "busy", "busy", "opens-the-explanations"
_TAINT = "plumage-test/engines=:NoSchedule"
_LOAD = {
    "model": "tiny-chat",
    "groups": 48,
    "prefix_words": 300,  # 870 tokens
    "turns": 1,
    "workers": 6,
    "pace_s": 1.2,
    "answer_tokens": 32,
}
_BY_PREFIX, _IN_TURN = "Lbgr", "RoundRobin"
_BACK_S = 60.0  # what is asked: hit ratio at 90 % of what it was, within a minute
_BACK, _WARM = 0.9, 0.8
_MINUTE_S = 60.0
_UNWARMED = "unwarmed"
_SEEN_S = 5.0  # after a fault, so that its end is followed by something
_FROZEN_S = 20.0  # the control plane calls the node NotReady after 12


class Story:
    """The faults so far, in their order."""

    def __init__(self, fleet: Fleet, load: Load) -> None:
        self.fleet = fleet
        self.load = load
        self.policy = _IN_TURN
        self.whole = 0.0
        self.faults: list[Fault] = []
        self.minutes: list[Minute] = []

    def suffer(self, name: str, act: Callable[[], None]) -> None:
        """Does something to the pool, and waits until it is whole and its hit ratio is back, at most the minute that is
        asked for. What came of it is read at the end, when all requests are over."""
        before, began = self.load.hit_ratio(), time.time()
        assert before is not None, f"before {name} nothing was answered for {WINDOW_S:.0f} s"
        act()
        self.fleet.until_whole()
        self.whole = time.time()
        self._until_back(before, self.whole + _BACK_S)
        time.sleep(_SEEN_S)
        self.faults.append(Fault(name, self.policy, began, self.whole - began, time.time(), before))
        print(f"{name}: {time.time() - began:.0f} s")

    def route(self, policy: str) -> None:
        """By another policy from now on; the engines stay, and no request is lost for it."""
        engines = self.fleet.pods("engine")
        self.fleet.route(policy)
        self.policy = policy
        until(self._is_routed, f"routers choose by {policy}")
        time.sleep(WINDOW_S)  # the hit ratio is this policy's then
        assert self.fleet.pods("engine") == engines

    def _is_routed(self) -> bool:
        rows = self.load.run(f"--since={_SEEN_S:.0f}s").rows
        return bool(rows) and {row.policy for row in rows} == {self.policy}

    def _until_back(self, before: float, end: float) -> None:
        while time.time() < end:
            ratio = self.load.hit_ratio()
            if ratio is not None and ratio >= _BACK * before:
                return
            time.sleep(1)

    def watch_newcomers(self, name: str, old: set[str], since: float) -> None:
        """Waits for the rest of the minute that began when replicas beside `old` were there."""
        time.sleep(max(0.0, since + _MINUTE_S - time.time()))
        new = set(self.fleet.pods("engine")) - old
        self.minutes.append(first_minute(name, self.load.run(), new, old, _MINUTE_S))


@pytest.fixture(scope="module")
def fleet(own: lifecycle.Cluster, access: Access, installed: None) -> Iterator[Fleet]:
    access.kubectl("taint", "node", "node-2", _TAINT, "--overwrite")
    access.namespace(_NAMESPACE)
    access.kubectl("-n", _NAMESPACE, "create", "secret", "generic", "busy-admin", f"--from-literal=key={_KEY}")
    pool = apply_pool(access, _NAMESPACE, _NAME, json.dumps(busy_pool(_NAME)))
    yield Fleet(access, own, pool)
    remove_pool(access, pool)
    access.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")
    access.kubectl("taint", "node", "node-2", f"{_TAINT}-")


@pytest.fixture(scope="module")
def story(fleet: Fleet) -> tuple[Story, Run]:
    """All of it, told once; the tests read what came of it."""
    load = Load.start(fleet.access, fleet.pool, port=8000, key=_KEY, **_LOAD)
    try:
        until(lambda: _is_warm(load), "the load finds its prefixes cached")
        story = Story(fleet, load)
        _tell(story)
        run = load.settled(time.time())
    finally:
        load.stop()
    story.faults = [fault.read(run, _BACK) for fault in story.faults]
    told = table(story.faults, story.minutes)
    print(f"\n{told}")
    if folder := os.environ.get("PLUMAGE_E2E_REPORT"):
        document = {
            "load": _LOAD,
            "requests": len(run.rows),
            "faults": [fault.document() for fault in story.faults],
            "firstMinutes": [minute.document() for minute in story.minutes],
        }
        Path(folder, "cluster-faults.json").write_text(json.dumps(document, indent=1) + "\n")
    return story, run


def _is_warm(load: Load) -> bool:
    """About as warm as caches get that hold three quarters of what is asked of them."""
    ratio = load.hit_ratio()
    return ratio is not None and ratio > 0.55


def _tell(story: Story) -> None:
    """Newcomers are unwarmed at first; the upgrade switches warming on. What no cache is lost by happens while the
    minute runs that newcomers are watched for."""
    fleet = story.fleet
    old = set(fleet.pods("engine"))
    story.suffer(f"scale 2 → 4, {_UNWARMED}", lambda: fleet.scale(4))
    since = story.whole
    story.suffer("operator killed", fleet.kill_operator)
    story.suffer("router pod deleted", lambda: fleet.delete(fleet.pods("router")[0]))
    story.watch_newcomers(_UNWARMED, old, since)
    story.route(_BY_PREFIX)
    story.suffer("scale 4 → 2", lambda: fleet.scale(2))
    story.suffer("rolling upgrade", lambda: fleet.roll({"directory": {"warmup": {"enabled": True}}}))
    story.suffer("directory restarted empty", lambda: fleet.lose(fleet.pods("directory")[0]))
    story.suffer("agent killed", lambda: fleet.kill(fleet.pods("engine")[0], "agent"))
    story.suffer("engine process killed", lambda: fleet.kill(fleet.pods("engine")[0], "engine"))
    story.suffer("engine pod killed", lambda: fleet.lose(fleet.pods("engine")[0]))
    story.suffer("node frozen", lambda: fleet.freeze(2, _FROZEN_S))
    story.route(_IN_TURN)
    old = set(fleet.pods("engine"))
    story.suffer("scale 2 → 4, warmed", lambda: fleet.scale(4))
    story.watch_newcomers("warmed", old, story.whole)


def test_no_request_is_lost(story: tuple[Story, Run]) -> None:
    _, run = story
    assert [row for row in run.rows if row.outcome == "lost"] == []


def test_requests_came_all_the_time(story: tuple[Story, Run]) -> None:
    assert [fault.name for fault in story[0].faults if not fault.requests] == []


def test_the_hit_ratio_comes_back_within_a_minute(story: tuple[Story, Run]) -> None:
    by_prefix = [fault for fault in story[0].faults if fault.policy == _BY_PREFIX]
    assert [fault for fault in by_prefix if fault.late_s > _BACK_S] == []


def test_a_cache_that_is_lost_shows_in_the_hit_ratio(story: tuple[Story, Run]) -> None:
    """Else the test above could not fail."""
    assert any(fault.back_s > 0 for fault in story[0].faults if fault.policy == _BY_PREFIX)


def test_a_warmed_replica_hits_nearly_as_often_as_its_peers(story: tuple[Story, Run]) -> None:
    unwarmed, warmed = story[0].minutes
    assert unwarmed.ratio is not None, (
        "the unwarmed replicas were sent nothing: they are the measure of the warmed ones"
    )
    assert warmed.ratio is not None, "the warmed replicas were sent nothing"
    assert warmed.peers is not None
    assert warmed.ratio >= _WARM * warmed.peers
    assert warmed.ratio > unwarmed.ratio
