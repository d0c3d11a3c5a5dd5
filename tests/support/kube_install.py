"""Installs Plumage in a cluster as its README does, and lists what the cluster contains."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from support.kube_access import Access, until

__all__ = [
    "OPERATOR_NAMESPACE",
    "RELEASE",
    "ROOT",
    "Pool",
    "apply_pool",
    "children",
    "install",
    "is_installed",
    "listing",
    "made_by_users",
    "remove_pool",
    "revision",
    "rollback",
    "uninstall",
    "until_gone",
    "upgrade",
    "upgrade_words",
]

ROOT = Path(__file__).parents[2]
RELEASE, OPERATOR_NAMESPACE = "plumage", "plumage-system"
_READY_S = 300  # the longest wait of a test; a test sets what an idle machine must reach
_WAIT = ("--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "5m")


@dataclass(frozen=True)
class Pool:
    """A pool that became Ready, `ready_s` seconds after it was applied."""

    name: str
    namespace: str
    ready_s: float

    @property
    def host(self) -> str:
        """The name by which clients in the cluster reach its routers."""
        return f"{self.name}-router.{self.namespace}.svc.cluster.local"


def install(access: Access, *values: str) -> None:
    """Installs the chart of this repository with the image under test. `values` are further arguments of helm."""
    repository, _, tag = access.image.rpartition(":")
    access.namespace(OPERATOR_NAMESPACE)
    image = ["--set-string", f"image.repository={repository},image.tag={tag}"]
    access.helm("install", RELEASE, str(ROOT / "charts" / "plumage"), *image, *values, *_WAIT)


def upgrade(access: Access, *values: str) -> None:
    """Upgrades to the same chart with further values. Returns when its operator is ready."""
    access.helm(*upgrade_words(*values))


def upgrade_words(*values: str) -> tuple[str, ...]:
    """Helm's arguments for an upgrade that may be refused."""
    return ("upgrade", RELEASE, str(ROOT / "charts" / "plumage"), "--reset-then-reuse-values", *values, *_WAIT)


def revision(access: Access) -> str:
    """The release's last revision."""
    return str(max(_revisions(access)))


def rollback(access: Access, to: str) -> None:
    """Rolls back to a revision."""
    access.helm("rollback", RELEASE, to, *_WAIT)


def is_installed(access: Access) -> bool:
    return bool(_revisions(access))


def _revisions(access: Access) -> list[int]:
    """Helm keeps each revision in a Secret; an uninstall removes all."""
    kept = access.api.heads("secrets", OPERATOR_NAMESPACE, f"owner=helm,name={RELEASE}")
    return [int(one["labels"]["version"]) for one in kept]


def uninstall(access: Access) -> None:
    access.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "2m")


def apply_pool(access: Access, namespace: str, name: str, manifest: str) -> Pool:
    """Applies a pool's manifest, YAML or JSON, and waits until the pool is Ready."""
    access.namespace(namespace)
    began = time.monotonic()
    access.kubectl("-n", namespace, "apply", "-f", "-", stdin=manifest)
    access.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"ppool/{name}", f"--timeout={_READY_S}s")
    return Pool(name, namespace, time.monotonic() - began)


def remove_pool(access: Access, pool: Pool) -> None:
    """Deletes a pool if it exists, and waits until garbage collection has removed its children."""
    words = ("delete", f"ppool/{pool.name}", "--ignore-not-found", "--timeout=60s")
    access.kubectl("-n", pool.namespace, *words)
    until(lambda: not children(access, pool), f"garbage collection removed the children of {pool.name}")


def children(access: Access, pool: Pool) -> list[str]:
    kinds = "deployments services configmaps networkpolicies poddisruptionbudgets rolebindings pods"
    selected = f"app.kubernetes.io/name=plumage,app.kubernetes.io/instance={pool.name}"
    found = ((kind, access.api.names(kind, pool.namespace, selected)) for kind in kinds.split())
    return [f"{kind}/{name}" for kind, names in found for name in names]


def listing(access: Access) -> frozenset[str]:
    """Every object in the cluster, each as `KIND GROUP/VERSION NAMESPACE NAME`. It leaves out Events, which expire, and
    the nodes' own Leases, which kubelets make at any time."""
    left_out = ("Event", "ComponentStatus")
    found = [one for one in access.api.everything() if one[0] not in left_out]
    lines = (" ".join(part or "<none>" for part in one) for one in found)
    return frozenset(line for line in lines if not (line.startswith("Lease ") and " kube-node-lease " in line))


def made_by_users(namespaces: Collection[str]) -> frozenset[str]:
    """Of a listing, the namespaces, which users make and remove, and the two objects that Kubernetes adds to each."""
    return frozenset(
        line
        for name in namespaces
        for line in (
            f"Namespace v1 <none> {name}",
            f"ServiceAccount v1 {name} default",
            f"ConfigMap v1 {name} kube-root-ca.crt",
        )
    )


def until_gone(look: Callable[[], Collection[str]], within_s: float = 240.0) -> None:
    """Waits until nothing is left: pods drain, and deletion runs in the background. The failure names what stays."""
    left: list[str] = []

    def clean() -> bool:
        left[:] = sorted(look())
        return not left

    try:
        until(clean, "all is gone", within_s)
    except AssertionError:
        assert left == []
