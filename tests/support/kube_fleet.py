"""A pool under load, and what can be done to it."""

from __future__ import annotations

import json
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
"""`busy_pool`'s load: its prefixes fit into the caches of two engines, and into that of one they do not."""


def busy_pool(name: str) -> dict[str, Any]:
    """Two engines, one on each node, that are not warmed and asked in turn; two routers. The key in Secret NAME-admin
    opens their explanations. An engine's cache has room for 38,400 tokens."""
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
    """All pods of `pool`, on a cluster of the tests' own. What is done returns once it is done, not once it is mended:
    `until_whole` waits for that."""

    access: Access
    cluster: Cluster
    pool: Pool

    def pods(self, component: str) -> list[str]:
        """Of one part, oldest first, those that do not end."""
        chosen = f"inference.plumage.dev/pool={self.pool.name},app.kubernetes.io/component={component}"
        return [pod["metadata"]["name"] for pod in self._pods(self.pool.namespace, chosen)]

    def until_whole(self) -> None:
        """Until every part has as many pods as it should, all of its last change and Ready, and no pod more."""
        until(self._is_whole, f"{self.pool.name} is whole")

    def scale(self, replicas: int) -> None:
        self._kubectl("scale", f"ppool/{self.pool.name}", f"--replicas={replicas}")
        until(lambda: self._deployment("engine")["spec"]["replicas"] == replicas, "the operator scales the engines")

    def scale_by_hand(self, replicas: int) -> None:
        """Past the operator, which puts it back unless the pool is paused."""
        self._kubectl("scale", f"deployment/{self.pool.name}-engine", f"--replicas={replicas}")

    def make_cheap(self, pod: str, cost: int) -> None:
        """The lower, the sooner it goes where replicas become fewer (Kubernetes' pod deletion cost)."""
        self._kubectl("annotate", "pod", pod, "--overwrite", f"{COST}={cost}")

    def pause(self, on: bool) -> None:
        """Whether the operator leaves the pool as it is."""
        name = f"ppool/{self.pool.name}"
        self._kubectl("annotate", name, "--overwrite", f"inference.plumage.dev/paused={str(on).lower()}")
        words = ("wait", f"--for=condition=Paused={on}", name, "--timeout=120s")
        self._kubectl(*words)

    def roll(self, change: Mapping[str, Any]) -> None:
        """A change of the pool's spec that replaces its engines."""
        before = self._deployment("engine")["metadata"]["generation"]
        self._kubectl("patch", f"ppool/{self.pool.name}", "--type=merge", "-p", json.dumps({"spec": change}))
        until(lambda: self._deployment("engine")["metadata"]["generation"] > before, "the operator rolls the engines")

    def following(self, component: str) -> AbstractContextManager[Followed]:
        """In which order pods of one part come and go meanwhile."""
        chosen = f"inference.plumage.dev/pool={self.pool.name},app.kubernetes.io/component={component}"
        return follow(self.access, self.pool.namespace, chosen, self.pods(component))

    def route(self, policy: str) -> None:
        """A change of the pool's spec that replaces nothing: routers read their file again."""
        change = {"spec": {"router": {"policy": policy}}}
        self._kubectl("patch", f"ppool/{self.pool.name}", "--type=merge", "-p", json.dumps(change))

    def delete(self, pod: str) -> None:
        """As a person does, or the eviction of a node that is emptied: it ends in its own time."""
        self._kubectl("delete", "pod", pod, "--wait=false")
        until(lambda: not self.access.get("pod", pod, self.pool.namespace), f"{pod} has ended")

    def lose(self, pod: str) -> None:
        """At once, and another takes its place."""
        before = self._uids()
        self._kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        until(lambda: bool(self._uids() - before), f"a pod comes in place of {pod}")

    def kill(self, pod: str, container: str) -> None:
        """kill -9 of its process; the kubelet starts it again."""
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
        """A node that stands still for a while, with an engine of the pool on it."""
        self._has_engine(node)
        self.cluster.freeze(node)
        try:
            time.sleep(seconds)
        finally:
            self.cluster.thaw(node)
        self.access.kubectl("wait", "--for=condition=Ready", f"node/node-{node}", "--timeout=300s")

    def drain(self, node: int) -> None:
        """Empties a node, with an engine of the pool on it, as docs/how-to/drain.md says, and gives it back."""
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
        """By the pods' own word: what a Deployment says of them may be older than a pod's loss."""
        chosen = f"inference.plumage.dev/pool={self.pool.name}"
        deployments = json.loads(self._kubectl("get", "deployments", "-l", chosen, "-o", "json"))["items"]
        pods = self._pods(self.pool.namespace, chosen)
        wanted = sum(one["spec"]["replicas"] for one in deployments)
        settled = len(deployments) == 3 and all(_is_settled(one) for one in deployments)
        return settled and len(pods) == wanted and all(_is_ready(pod) for pod in pods)

    def _uids(self) -> set[str]:
        chosen = f"inference.plumage.dev/pool={self.pool.name}"
        return {pod["metadata"]["uid"] for pod in self._pods(self.pool.namespace, chosen)}

    def _deployment(self, part: str) -> dict[str, Any]:
        return self.access.get("deployment", f"{self.pool.name}-{part}", self.pool.namespace)

    def _restarts(self, pod: str, container: str) -> int:
        status = self.access.get("pod", pod, self.pool.namespace)["status"]
        told = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        return sum(one["restartCount"] for one in told if one["name"] == container)

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        words = ("get", "pods", "-l", selector, "--sort-by=.metadata.creationTimestamp", "-o", "json")
        found = json.loads(self.access.kubectl("-n", namespace, *words))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def _kubectl(self, *args: str) -> str:
        return self.access.kubectl("-n", self.pool.namespace, *args)


def _is_settled(deployment: Mapping[str, Any]) -> bool:
    """Every pod that it should have is of its last change, and Ready."""
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    counts = (status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"))
    seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return seen and all(count == wanted for count in counts)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
