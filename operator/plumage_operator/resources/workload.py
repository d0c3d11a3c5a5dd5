"""What every component of a pool has: account, Deployment, disruption budget, pod security, placement, resources. Pure.

Every container has requests and a memory limit. No default limits CPU, because a throttled router or engine answers
late for no gain. Each container has a field of the manifest that sets all of them, so a pool fits any ResourceQuota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from plumage.api.v1alpha1 import Quantity
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.router import RouterLimits
from plumage.api.v1alpha1.scheduling import Placement, as_written
from plumage.cluster import AUDIENCE, CONFIG_FOLDER, TOKEN_FOLDER, Component
from plumage.settings.router_config import ROUTER_MEMORY
from plumage_operator.observed import digest
from plumage_operator.resources.context import CONFIG_HASH, Child, ChildOwner

__all__ = [
    "AGENT",
    "API_MOUNT",
    "CONFIG_MOUNT",
    "FETCH",
    "IDENTITY_MOUNT",
    "MIB",
    "POD_NAME",
    "SIMULATOR",
    "TERMINATION_MESSAGE",
    "TMP_MOUNT",
    "USER",
    "MountedSecret",
    "ResourceDefaults",
    "api_volume",
    "build_account",
    "build_budget",
    "build_router_binding",
    "config_volume",
    "container_security",
    "deployment",
    "http_probe",
    "identity_volume",
    "memory_volume",
    "placement_fields",
    "pod_security",
    "router_defaults",
    "scratch_volume",
    "secret_volume",
    "with_defaults",
]

USER: Final = 10001
"""A number, because `runAsNonRoot` can't resolve a name."""

_API_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

_TOKEN_SECONDS = 3600  # the kubelet renews it after four fifths of this

CONFIG_MOUNT: Final = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}

IDENTITY_MOUNT: Final = {"name": "identity", "mountPath": TOKEN_FOLDER, "readOnly": True}

API_MOUNT: Final = {"name": "api", "mountPath": _API_FOLDER, "readOnly": True}

TMP_MOUNT: Final = {"name": "tmp", "mountPath": "/tmp"}

POD_NAME: Final = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}

_NO_HOST_NAMESPACES: Final = {"hostNetwork": False, "hostPID": False, "hostIPC": False}
"""Sent so that the operator owns these fields and resets them: no NetworkPolicy applies to a pod in its node's network.

The API server stores no false value, so they are no part of a template's hash.
"""


def pod_security() -> dict[str, Any]:
    """The pod's part of the restricted pod security standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """The container's part of it."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def identity_volume() -> dict[str, Any]:
    """A token by which pods of a pool authenticate to one another. The API server does not accept it."""
    token = {"audience": AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    return {"name": "identity", "projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": token}]}}


def api_volume() -> dict[str, Any]:
    """The credentials for the API server, mounted only in the containers that use it."""
    sources = [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": "api", "projected": {"defaultMode": 0o440, "sources": sources}}


def config_volume(name: str) -> dict[str, Any]:
    return {"name": "config", "configMap": {"name": name, "defaultMode": 0o440}}


def secret_volume(volume: str, secret: str, items: Mapping[str, str]) -> dict[str, Any]:
    """items: keys of the Secret, and their file names."""
    files = [{"key": key, "path": path} for key, path in items.items()]
    return {"name": volume, "secret": {"secretName": secret, "defaultMode": 0o440, "items": files}}


class MountedSecret(NamedTuple):
    """A Secret in a folder of a pod; files: of its entries. The kubelet updates a whole folder, so a changed Secret
    reaches running containers.
    """

    volume: str
    folder: str
    secret: str
    files: Mapping[str, str]

    def as_volume(self, *, optional: bool = False) -> dict[str, Any]:
        """optional: the pod starts without the Secret."""
        made = secret_volume(self.volume, self.secret, self.files)
        return {**made, "secret": {**made["secret"], "optional": True}} if optional else made

    def as_mount(self) -> dict[str, Any]:
        return {"name": self.volume, "mountPath": self.folder, "readOnly": True}


def scratch_volume(name: str = "tmp", limit: str | None = "1Gi") -> dict[str, Any]:
    return {"name": name, "emptyDir": {} if limit is None else {"sizeLimit": limit}}


def memory_volume(name: str, limit: str) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


TERMINATION_MESSAGE: Final = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""The status of a container that ended contains its log's last lines, and the pool's condition repeats them."""


def http_probe(
    path: str, port: int, *, period: int, failures: int, timeout: int = 2, tls: bool = False
) -> dict[str, Any]:
    """period: seconds between two probes. failures: failed probes in a row. tls: kubelets verify no certificate."""
    return {
        "httpGet": {"path": path, "port": port, **({"scheme": "HTTPS"} if tls else {})},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def deployment(
    owner: ChildOwner,
    component: Component,
    pod: Mapping[str, Any],
    *,
    replicas: int,
    strategy: Mapping[str, Any],
    restarts: Sequence[Any] = (),
    deadline: int = 600,
    marks: Mapping[str, str] | None = None,
) -> Child:
    """A Deployment of one component.

    restarts: settings outside of the template that a pod reads only at its start; pods are replaced when they change.
    deadline: seconds without progress after which Kubernetes reports it.
    marks: further annotations of the pods.
    `paused` is sent so that a rollout which somebody paused continues.
    """
    annotations = {**(marks or {}), CONFIG_HASH: digest([pod, *restarts])}
    metadata = {"labels": owner.labels(component), "annotations": annotations}
    spec = {
        "paused": False,
        "replicas": replicas,
        "selector": {"matchLabels": owner.selector(component)},
        "strategy": strategy,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": deadline,
        "template": {"metadata": metadata, "spec": {**pod, **_NO_HOST_NAMESPACES}},
    }
    return owner.child("apps/v1", "Deployment", component, {"spec": spec})


def placement_fields(placement: Placement, selector: Mapping[str, str] | None) -> dict[str, Any]:
    """The scheduling fields of a pod, as the manifest has them.

    selector: of the component's pods, which are spread over nodes unless the manifest has its own constraints; None for
    a component of one pod.
    """
    spread = [as_written(one) for one in placement.topology_spread_constraints]
    if not spread and selector is not None:
        spread = [_over_nodes(selector)]
    fields = {
        "nodeSelector": dict(placement.node_selector),
        "tolerations": [_toleration(one.model_dump(exclude_none=True, by_alias=True)) for one in placement.tolerations],
        "affinity": as_written(placement.affinity) if placement.affinity is not None else None,
        "topologySpreadConstraints": spread,
        "priorityClassName": placement.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def _over_nodes(selector: Mapping[str, str]) -> dict[str, Any]:
    """A soft constraint, so that a pool larger than its cluster starts too.

    It counts only pods of the same template, because a rollout is about to delete the others.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selector)},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _toleration(written: dict[str, Any]) -> dict[str, Any]:
    """Without empty strings, which the API server does not store."""
    return {name: value for name, value in written.items() if value != ""}


MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ResourceDefaults:
    """cpu, memory: requests. memory_limit: the limit. All as Kubernetes writes them."""

    cpu: str
    memory: str
    memory_limit: str


# The agent's index grows with the engine's cache, up to a bound. Decision 0067 has its CPU.
AGENT: Final = ResourceDefaults("50m", "192Mi", "1Gi")

FETCH: Final = ResourceDefaults("50m", "256Mi", "2Gi")  # its page cache counts until it is written to the disk

SIMULATOR: Final = ResourceDefaults("100m", "192Mi", "1Gi")

_ROUTER_MOST: Final = "1Gi"


def router_defaults(limits: RouterLimits) -> ResourceDefaults:
    """The defaults of a router, by the memory that its request bodies may take.

    Without `resources`, bodies get a quarter of the router's memory. So the request is four times `limits.bodyMemory`.
    """
    request = Quantity(ROUTER_MEMORY)
    if limits.body_memory is not None and 4 * limits.body_memory.value > request.value:
        request = Quantity(4 * int(limits.body_memory))
    memory_limit = Quantity(_ROUTER_MOST)
    return ResourceDefaults("100m", str(request), str(memory_limit if request.value <= memory_limit.value else request))


def with_defaults(given: Resources, defaults: ResourceDefaults) -> dict[str, dict[str, str]]:
    """`resources` of a container: the manifest's values, and defaults for the others.

    A default request never exceeds the manifest's limit, and the default limit is never below the manifest's request. A
    pod whose request exceeds its limit is refused.
    """
    requests = {name: _least(amount, given.limits.get(name)) for name, amount in _requests(defaults).items()}
    named = given.requests.get("memory")
    memory_limit = Quantity(defaults.memory_limit)
    limits = {"memory": str(memory_limit if named is None or named.value <= memory_limit.value else named)}
    return {
        "requests": {**requests, **_written(given.requests)},
        "limits": {**limits, **_written(given.limits)},
    }


def _requests(defaults: ResourceDefaults) -> dict[str, Quantity]:
    return {"cpu": Quantity(defaults.cpu), "memory": Quantity(defaults.memory)}


def _least(amount: Quantity, limit: Quantity | None) -> str:
    return str(amount if limit is None or amount.value <= limit.value else limit)


def _written(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def build_account(owner: ChildOwner, component: Component) -> Child:
    """A service account. Its token is not mounted automatically."""
    return owner.child("v1", "ServiceAccount", component, {"automountServiceAccountToken": False})


def build_router_binding(owner: ChildOwner, component: Component) -> Child:
    """Binds routers to the chart's role: they read the EndpointSlices of their namespace."""
    subject = {"kind": "ServiceAccount", "name": owner.name(component), "namespace": owner.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": owner.config.router_role}
    body = {"roleRef": role, "subjects": [subject]}
    return owner.child("rbac.authorization.k8s.io/v1", "RoleBinding", component, body)


def build_budget(owner: ChildOwner, component: Component) -> Child:
    """Lets one pod be evicted at a time, so that a drained node waits until the next replica is warm.

    `minAvailable` would never let a single replica go. Pods that are not ready may always be evicted: otherwise a
    broken pool would block drains of its nodes for ever.
    """
    selector = {"matchLabels": owner.selector(component)}
    spec = {"maxUnavailable": 1, "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return owner.child("policy/v1", "PodDisruptionBudget", component, {"spec": spec})
