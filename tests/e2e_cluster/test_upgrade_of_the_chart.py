"""`helm upgrade` and `helm rollback` change operators, under a pool that serves and does not notice."""

from __future__ import annotations

import json
from typing import Any

from support.kube_access import Access, until
from support.kube_chat import chatting
from support.kube_install import OPERATOR_NAMESPACE, RELEASE, ROOT, Pool

_LEASE = "plumage-operator"
_WAIT = ("--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "5m")


def test_a_second_operator_comes_and_goes_and_no_engine_with_it(access: Access, pool: Pool) -> None:
    installed, engines = _revision(access), _uids(access, pool)
    assert len(engines) == 2
    with chatting(access, pool) as chats:
        values = ("--reuse-values", "--set", "operator.replicas=2")
        access.helm("upgrade", RELEASE, str(ROOT / "charts" / "plumage"), *values, *_WAIT)
        _is_looked_after(access, pool, operators=2)
        chats.go_on()
        assert _uids(access, pool) == engines
        access.helm("rollback", RELEASE, installed, *_WAIT)
        _is_looked_after(access, pool, operators=1)
        chats.go_on()
        assert _uids(access, pool) == engines


def _is_looked_after(access: Access, pool: Pool, operators: int) -> None:
    """By one of so many: it holds the Lease and repairs the pool, and the others say that they wait for it."""
    until(lambda: len(_operators(access)) == operators, f"operators: {operators}")
    until(lambda: _holder(access) in _operators(access), "one of them holds the Lease")
    _is_repaired(access, pool)
    holder = _holder(access)
    waiting = [name for name in _operators(access) if name != holder]
    assert len(waiting) == operators - 1
    until(lambda: all(f"waiting: {holder} is active" in _log(access, name) for name in waiting), "the others stand by")


def _is_repaired(access: Access, pool: Pool) -> None:
    """An object of the pool that somebody deletes is there again."""
    words, name = ("poddisruptionbudget", f"{pool.name}-engine"), f"{pool.name}-engine"
    old = access.get("poddisruptionbudget", name, pool.namespace)["metadata"]["uid"]
    access.kubectl("-n", pool.namespace, "delete", *words)

    def is_there() -> bool:
        found = access.get("poddisruptionbudget", name, pool.namespace)
        return bool(found) and found["metadata"]["uid"] != old

    until(is_there, f"the active operator makes {name} again")


def _revision(access: Access) -> str:
    told = access.helm("history", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--output", "json")
    return str(json.loads(told)[-1]["revision"])


def _holder(access: Access) -> str:
    return str(access.get("lease", _LEASE, OPERATOR_NAMESPACE)["spec"].get("holderIdentity"))


def _log(access: Access, pod: str) -> str:
    return access.kubectl("-n", OPERATOR_NAMESPACE, "logs", pod)


def _operators(access: Access) -> list[str]:
    """Pods' names, which are their names as operators, too; those that end are there until they have ended."""
    found = _pods(access, OPERATOR_NAMESPACE, "app.kubernetes.io/component=operator")
    return [pod["metadata"]["name"] for pod in found]


def _uids(access: Access, pool: Pool) -> set[str]:
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component=engine"
    return {pod["metadata"]["uid"] for pod in _pods(access, pool.namespace, chosen)}


def _pods(access: Access, namespace: str, selector: str) -> list[dict[str, Any]]:
    told = access.kubectl("-n", namespace, "get", "pods", "-l", selector, "-o", "json")
    found: list[dict[str, Any]] = json.loads(told)["items"]
    return found
