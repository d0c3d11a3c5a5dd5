"""When an old pod ended too early (tests/e2e_cluster/test_faults_under_load.py)."""

from __future__ import annotations

from collections.abc import Sequence

from support.kube_load import Row, Run
from support.kube_report import first_asked
from support.kube_turnover import Seen, Turnover

_OLD = ("old-1", "old-2")


def early(*seen: tuple[str, str]) -> Sequence[str]:
    """(pod, reason) of each pod that ended too early."""
    return Turnover(_OLD, [Seen(name, how == "ready", how == "ending") for name, how in seen]).too_early()


def test_pod_that_ends_after_its_successor_is_ready_is_in_time() -> None:
    order = [("new-1", "ready"), ("old-1", "ending"), ("new-2", "ready"), ("old-1", "ending"), ("old-2", "ending")]
    assert early(*order) == []


def test_pod_that_ends_before_its_successor_is_ready_is_early() -> None:
    assert early(("new-1", "starting"), ("old-1", "ending"), ("new-1", "ready"), ("new-2", "ready")) == ["old-1"]
    assert early(("new-1", "ready"), ("old-1", "ending"), ("old-2", "ending"), ("new-2", "ready")) == ["old-2"]


def test_readiness_of_an_old_pod_replaces_none() -> None:
    assert early(("old-2", "ready"), ("old-1", "ending")) == ["old-1"]


def test_deleted_pod_has_ended() -> None:
    metadata = {"name": "old-1"}
    assert Seen.of({"type": "DELETED", "object": {"metadata": metadata}}) == Seen("old-1", False, True)
    deleted = {"metadata": {**metadata, "deletionTimestamp": "2027-01-01T00:00:00Z"}}
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert Seen.of({"type": "MODIFIED", "object": {**deleted, **ready}}) == Seen("old-1", True, True)


def test_first_requests_are_one_for_each_group_and_new_pod() -> None:
    rows = [
        Row("late", 3, 4, "ended", "new-1", group=1),
        Row("first", 2, 5, "ended", "new-1", group=1),
        Row("other group", 3, 4, "ended", "new-1", group=2),
        Row("other new one", 3, 4, "ended", "new-2", group=1),
        Row("old", 1, 2, "ended", "old-1", group=1),
        Row("over", 9, 9, "ended", "new-2", group=2),
    ]
    found = first_asked(Run(rows, []), {"new-1", "new-2"}, 0, 9)
    assert {row.id for row in found} == {"first", "other group", "other new one"}
