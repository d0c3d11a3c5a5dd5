"""A pool under load, and the faults and changes that a test can cause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cluster.lifecycle import Cluster
from support.kube_access import Access, until
from support.kube_install import OPERATOR_NAMESPACE, Pool
from support.kube_turnover import COST, Followed, follow

__all__ = ["BUSY", "Fleet", "busy_pool"]

BUSY: Mapping[str, Any] = {
    "model": "tiny-chat",
    "groups": 48,
    "prefix_words": 300,  # 870 tokens
    "turns": 1,
    "workers": 8,
    "pace_s": 0.8,
    "answer_tokens": 16,
}
"""The load on `busy_pool`. Its prefixes fit into the caches of two engines together, but not into one."""


def busy_pool(name: str) -> dict[str, Any]:
    """Two engines, one on each node, without warm-up and with round-robin routing, and two routers. The key in Secret
    NAME-admin permits explanations. An engine's cache has room for 38,400 tokens."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"inference.plumage.dev/pool": name, "app.kubernetes.io/component": "engine"}},
        "matchLabelKeys": ["pod-template-hash"],
    }
    spec = {
        "model": {"uri": "builtin://tiny-chat"},
        "replicas": 2,
        "engine": {
            "runtime": "Simulator",
            "simulator": {"device": {"preset": "GPU"}, "cacheBlocks": 2400},
            "tolerations": [{"key": "plumage-test/engines", "operator": "Exists", "effect": "NoSchedule"}],
            "topologySpreadConstraints": [spread],
        },
        "directory": {"warmup": {"enabled": False}},
        "router": {
            "replicas": 2,
            "policy": "RoundRobin",
            "auth": {"adminKeyRef": {"name": f"{name}-admin", "key": "key"}},
        },
        "rollout": {"drainTimeoutSeconds": 30},
    }
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class Fleet:
    """All pods of `pool`, on a test cluster. Each method returns when its action is done. `until_whole` waits for the
    recovery."""

    access: Access
    cluster: Cluster
    pool: Pool

    def pods(self, component: str) -> list[str]:
        """Pods of one part that do not terminate, oldest first."""
        chosen = f"inference.plumage.dev/pool={self.pool.name},app.kubernetes.io/component={component}"
        return [pod["metadata"]["name"] for pod in self._pods(self.pool.namespace, chosen)]

    def until_whole(self) -> None:
        """Waits until every part has exactly its number of pods, and all are Ready and of its last change."""
        until(self._is_whole, f"{self.pool.name} is whole")

    def scale(self, replicas: int) -> None:
        self._kubectl("scale", f"ppool/{self.pool.name}", f"--replicas={replicas}")
        until(lambda: self._deployment("engine")["spec"]["replicas"] == replicas, "the operator scales the engines")

    def scale_by_hand(self, replicas: int) -> None:
        """Scales behind the operator's back. The operator reverts it unless the pool is paused."""
        self._kubectl("scale", f"deployment/{self.pool.name}-engine", f"--replicas={replicas}")

    def make_cheap(self, pod: str, cost: int) -> None:
        """Sets Kubernetes' pod deletion cost. A scale-down deletes the pods with the lowest cost first."""
        self._kubectl("annotate", "pod", pod, "--overwrite", f"{COST}={cost}")

    def pause(self, on: bool) -> None:
        """Sets whether the operator leaves the pool as it is."""
        name = f"ppool/{self.pool.name}"
        self._kubectl("annotate", name, "--overwrite", f"inference.plumage.dev/paused={str(on).lower()}")
        words = ("wait", f"--for=condition=Paused={on}", name, "--timeout=120s")
        self._kubectl(*words)

    def roll(self, change: Mapping[str, Any]) -> None:
        """Changes the pool's spec so that its engines are replaced."""
        before = self._deployment("engine")["metadata"]["generation"]
        self.access.api.patch("inferencepools", self.pool.name, self.pool.namespace, {"spec": change})
        until(lambda: self._deployment("engine")["metadata"]["generation"] > before, "the operator rolls the engines")

    def following(self, component: str) -> AbstractContextManager[Followed]:
        """Records in which order pods of one part appear and end."""
        chosen = f"inference.plumage.dev/pool={self.pool.name},app.kubernetes.io/component={component}"
        return follow(self.access, self.pool.namespace, chosen, self.pods(component))

    def route(self, policy: str) -> None:
        """Changes the pool's spec so that nothing is replaced: routers read their file again."""
        change = {"spec": {"router": {"policy": policy}}}
        self.access.api.patch("inferencepools", self.pool.name, self.pool.namespace, change)

    def delete(self, pod: str) -> None:
        """Deletes a pod gracefully, as a person or the eviction of a drained node does."""
        self._kubectl("delete", "pod", pod, "--wait=false")
        until(lambda: not self.access.api.get("pods", pod, self.pool.namespace), f"{pod} has ended")

    def lose(self, pod: str) -> None:
        """Deletes a pod at once. Another one replaces it."""
        before = self._uids()
        self._kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        until(lambda: bool(self._uids() - before), f"a pod comes in place of {pod}")

    def kill(self, pod: str, container: str) -> None:
        """Kills a container's process with SIGKILL. The kubelet starts it again."""
        before = self._restarts(pod, container)
        self.cluster.kill_container(f"{self.pool.namespace}/{pod}", container)
        until(lambda: self._restarts(pod, container) > before, f"{container} of {pod} is started again")

    def kill_operator(self) -> None:
        found = self._pods(OPERATOR_NAMESPACE, "app.kubernetes.io/component=operator")
        names = [pod["metadata"]["name"] for pod in found]
        assert names, "the operator has a pod"
        self.access.kubectl("-n", OPERATOR_NAMESPACE, "delete", "pod", *names, "--grace-period=0", "--force")
        self.access.kubectl(
            "-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/plumage-operator", "--timeout=300s"
        )

    def freeze(self, node: int, seconds: float) -> None:
        """Freezes a node that has an engine of the pool, for a while."""
        self._has_engine(node)
        self.cluster.freeze(node)
        try:
            time.sleep(seconds)
        finally:
            self.cluster.thaw(node)
        self.access.kubectl("wait", "--for=condition=Ready", f"node/node-{node}", "--timeout=300s")

    def drain(self, node: int) -> None:
        """Drains a node that has an engine of the pool, as docs/how-to/drain.md describes, and uncordons it."""
        self._has_engine(node)
        try:
            words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
            self.access.kubectl("drain", f"node-{node}", *words)
            assert not self._engines_on(node), f"node-{node} is not empty"
        finally:
            self.access.kubectl("uncordon", f"node-{node}")

    def _has_engine(self, node: int) -> None:
        assert self._engines_on(node), f"node-{node} has no engine"

    def _engines_on(self, node: int) -> list[str]:
        chosen = f"inference.plumage.dev/pool={self.pool.name},app.kubernetes.io/component=engine"
        where = f"--field-selector=spec.nodeName=node-{node}"
        return self._kubectl("get", "pods", "-l", chosen, where, "-o", "name").split()

    def _is_whole(self) -> bool:
        """Reads the pods themselves: the status of a Deployment may not show the loss of a pod yet."""
        chosen = f"inference.plumage.dev/pool={self.pool.name}"
        deployments = self.access.api.listed("deployments", self.pool.namespace, chosen)
        pods = self._pods(self.pool.namespace, chosen)
        wanted = sum(one["spec"]["replicas"] for one in deployments)
        settled = len(deployments) == 3 and all(_is_settled(one) for one in deployments)
        return settled and len(pods) == wanted and all(_is_ready(pod) for pod in pods)

    def _uids(self) -> set[str]:
        chosen = f"inference.plumage.dev/pool={self.pool.name}"
        return {pod["metadata"]["uid"] for pod in self._pods(self.pool.namespace, chosen)}

    def _deployment(self, part: str) -> dict[str, Any]:
        return self.access.api.get("deployments", f"{self.pool.name}-{part}", self.pool.namespace)

    def _restarts(self, pod: str, container: str) -> int:
        status = self.access.api.get("pods", pod, self.pool.namespace)["status"]
        statuses = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        return sum(one["restartCount"] for one in statuses if one["name"] == container)

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        found = self.access.api.listed("pods", namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def _kubectl(self, *args: str) -> str:
        return self.access.kubectl("-n", self.pool.namespace, *args)


def _is_settled(deployment: Mapping[str, Any]) -> bool:
    """Whether all expected pods are Ready and of its last change."""
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    counts = (status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"))
    seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return seen and all(count == wanted for count in counts)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
