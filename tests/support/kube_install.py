"""Plumage in a cluster as its README installs it, and what is there beside it."""

from __future__ import annotations

import time
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
    "remove_pool",
    "uninstall",
]

ROOT = Path(__file__).parents[2]
RELEASE, OPERATOR_NAMESPACE = "plumage", "plumage-system"
_READY_S = 300  # what a test waits at most; what is required of an idle machine is a test's to say


@dataclass(frozen=True)
class Pool:
    """One that is Ready, `ready_s` seconds after it was applied."""

    name: str
    namespace: str
    ready_s: float

    @property
    def host(self) -> str:
        """By this name clients in the cluster reach its routers."""
        return f"{self.name}-router.{self.namespace}.svc.cluster.local"


def install(access: Access, *values: str) -> None:
    """The chart of the tree with the image that is tested; `values` are further arguments of helm."""
    repository, _, tag = access.image.rpartition(":")
    access.namespace(OPERATOR_NAMESPACE)
    image = ["--set-string", f"image.repository={repository},image.tag={tag}"]
    words = ["install", RELEASE, str(ROOT / "charts" / "plumage"), "--namespace", OPERATOR_NAMESPACE, *image, *values]
    access.helm(*words, "--wait", "--timeout", "5m")


def is_installed(access: Access) -> bool:
    return RELEASE in access.helm("list", "--namespace", OPERATOR_NAMESPACE, "--short").split()


def uninstall(access: Access) -> None:
    access.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "2m")


def apply_pool(access: Access, namespace: str, name: str, manifest: str) -> Pool:
    """Applies the manifest of one, YAML or JSON, and waits until it is Ready."""
    access.namespace(namespace)
    began = time.monotonic()
    access.kubectl("-n", namespace, "apply", "-f", "-", stdin=manifest)
    access.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"inferencepool/{name}", f"--timeout={_READY_S}s")
    return Pool(name, namespace, time.monotonic() - began)


def remove_pool(access: Access, pool: Pool) -> None:
    """Deletes one, if it is there, and waits until garbage collection has removed its children."""
    words = ("delete", f"inferencepool/{pool.name}", "--ignore-not-found", "--timeout=60s")
    access.kubectl("-n", pool.namespace, *words)
    until(lambda: not children(access, pool), f"garbage collection removed the children of {pool.name}")


def children(access: Access, pool: Pool) -> list[str]:
    kinds = "deployments,services,configmaps,networkpolicies,poddisruptionbudgets,rolebindings,pods"
    selected = f"app.kubernetes.io/name=plumage,app.kubernetes.io/instance={pool.name}"
    return access.kubectl("-n", pool.namespace, "get", kinds, "-l", selected, "-o", "name").split()


def listing(access: Access) -> frozenset[str]:
    """Everything that is in the cluster, each as `KIND GROUP/VERSION NAMESPACE NAME`, but Events, which expire, and the
    nodes' own Leases, which come when a kubelet gets to it."""
    kinds = access.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    asked = ",".join(kind for kind in kinds if not kind.startswith(("events", "componentstatuses")))
    columns = "custom-columns=:.kind,:.apiVersion,:.metadata.namespace,:.metadata.name"
    told = access.kubectl("get", asked, "--all-namespaces", "--ignore-not-found", "--no-headers", "-o", columns)
    lines = (" ".join(line.split()) for line in told.splitlines() if line.strip())
    return frozenset(line for line in lines if not (line.startswith("Lease ") and " kube-node-lease " in line))
