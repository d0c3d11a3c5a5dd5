"""Why pods are not ready, and what to do about it, from what the cluster reports. Pure.

The cause may be in a container's state, in the pod's `PodScheduled` condition, or in a Deployment's `ReplicaFailure`.
For volumes and a pod's network it is only in Warning events. The worst cause is reported: one that needs a person comes
before one that may pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plumage.api.v1alpha1.gpus import is_gpu
from plumage.lost_pods import is_lost
from plumage_operator.observed import Object, WarningEvent, condition_of, meta
from plumage_operator.status.conditions import Reason, seconds_of
from plumage_operator.status.remedies import (
    ContainerRef,
    container_of,
    give_memory,
    lower_requests,
    make_image_available,
    set_limits,
)

__all__ = ["Cause", "diagnose", "is_ready", "pods_to_explain", "replica_failure", "stuck_pods"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why pods are not ready. message: the cluster's text, and a remedy. transient: it may pass without a person."""

    reason: Reason
    message: str
    transient: bool = False


_PULL: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)

_NOT_FOUND = re.compile(r'(secret|configmap|persistentvolumeclaim) "(?:[^"/]*/)?([^"]+)" not found', re.IGNORECASE)

_NO_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (?:[^/\s]*/)?(\S+)")

_KEY_GONE = re.compile(r"references non-existent (secret|config) key: (\S+)")

_INSUFFICIENT = re.compile(r"Insufficient (\S*\w)")  # a resource's name ends in a letter or digit; a period follows

_QUOTA = re.compile(r"exceeded quota: (\S+),")

_NO_LIMITS = re.compile(r"failed quota: ([^\s:]+): must specify (.*)")

_REPLICA_SET = re.compile(r'replica ?set "([^"]+)"', re.IGNORECASE)

_REFUSED_POD = re.compile(r'pods "([^"]+)" is forbidden')

_OF_CONTAINERS = re.compile(r" for: ([^;]+)")  # "limits.memory for: agent,tokenizer; requests.cpu for: tokenizer"

_MISSING: Final = {
    "secret": Reason.MISSING_SECRET,
    "configmap": Reason.MISSING_CONFIG_MAP,
    "persistentvolumeclaim": Reason.MISSING_VOLUME_CLAIM,
}

_NOT_SCHEDULED: Final = "FailedScheduling"  # the event stays for an hour after the pod was scheduled

_NO_VOLUME: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})

_NO_SANDBOX: Final = frozenset({"FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady"})

_LONGEST = 600  # characters of another program's text

_NORMAL_START: Final = 5.0  # seconds from scheduling to the first container in a normal start

_FIRST, _LAST = 200, 400  # characters of a program's last output: the start, and the end, which usually has the cause


def diagnose(
    pods: Sequence[Object], deployment: Object | None, warnings: Sequence[WarningEvent], component: str = "engine"
) -> Cause | None:
    """The worst cause among a component's pods that are not ready, and what their Deployment can't do.

    Causes that need a person come first, then lost nodes, then the others. A lost node is added to a worse cause,
    because it may be the reason for that one. For example, no other node has a GPU. Returns None where all pods are
    ready, or starting normally.
    """
    lost = [_lost(pod) for pod in pods if is_lost(pod)]
    waiting = [pod for pod in pods if not is_ready(pod) and not is_lost(pod) and "deletionTimestamp" not in meta(pod)]
    found = [cause for pod in waiting for cause in _causes(pod, warnings)]
    if (failure := replica_failure(deployment, component)) is not None:
        found.append(failure)
    hard = next((cause for cause in found if not cause.transient), None)
    if hard is not None and lost:
        return Cause(hard.reason, f"{hard.message} {lost[0].message}")
    return hard or next(iter([*lost, *found]), None) or _late(deployment, component)


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is True."""
    return condition_of(pod, "Ready").get("status") == "True"


def _lost(pod: Object) -> Cause:
    name, node = str(meta(pod).get("name")), (pod.get("spec") or {}).get("nodeName", "")
    what_next = (
        "A replacement is being started; the pod itself is removed once the node reports again or is deleted."
        if "deletionTimestamp" in meta(pod)
        else "Kubernetes replaces the pod when its tolerations of the taints unreachable and not-ready end, after five "
        f"minutes by default. At once, if the node is known to be off: kubectl delete pod {name} --force."
    )
    return Cause(
        Reason.NODE_LOST,
        f"{name} is lost: its node {node} stopped reporting (kubectl get node {node}). {what_next}",
        True,
    )


def stuck_pods(pods: Iterable[Object]) -> list[Object]:
    """Scheduled pods of which no container has started: only events can explain them."""
    return [pod for pod in pods if not is_ready(pod) and _is_stuck(pod)]


def pods_to_explain(stuck: Iterable[Object], now: float) -> list[str]:
    """Names of the pods that are stuck for longer than a normal start takes. now: seconds since 1970."""
    return [str(meta(pod).get("name")) for pod in stuck if _is_late(pod, now)]


def _is_late(pod: Object, now: float) -> bool:
    """A clock that is behind the cluster's makes all of them late, rather than none."""
    since = seconds_of(str(condition_of(pod, "PodScheduled").get("lastTransitionTime") or ""))
    return since is None or not 0 <= now - since < _NORMAL_START


def _is_stuck(pod: Object) -> bool:
    waiting = [_waiting(status).get("reason") for status in _containers(pod)]
    scheduled = condition_of(pod, "PodScheduled").get("status") == "True"
    return scheduled and (not waiting or all(reason in ("ContainerCreating", "PodInitializing") for reason in waiting))


def _causes(pod: Object, warnings: Sequence[WarningEvent]) -> Iterator[Cause]:
    name = str(meta(pod).get("name", "a pod"))
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield _unscheduled(name, str(scheduled.get("message", "")), container_of(pod))
    for status in _containers(pod):
        container_ref = container_of(pod, str(status.get("name", "")))
        if (cause := _container(name, status, container_ref)) is not None:
            yield cause
    if _is_stuck(pod):
        yield from (_before_containers(one) for one in warnings if one.name == name and one.reason != _NOT_SCHEDULED)
    if pod.get("status", {}).get("reason") == "Evicted":
        yield _evicted(name, _short(str(pod["status"].get("message", ""))))


def _evicted(pod: str, text: str) -> Cause:
    """A node ran out of memory, disk or process ids, and its kubelet evicted the pod."""
    message = f"{pod} was evicted from its node: {text.rstrip('.')}"
    if "memory" in text:
        return Cause(
            Reason.OUT_OF_MEMORY, f"{message}. Raise the memory requests of the container that it names.", True
        )
    return Cause(Reason.EVICTED, f"{message}. Free or add the resource that its node lacks.", True)


def _containers(pod: Object) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _container(pod: str, status: Mapping[str, Any], container_ref: ContainerRef) -> Cause | None:
    waiting, container = _waiting(status), str(status.get("name", ""))
    reason, text = waiting.get("reason", ""), _short(str(waiting.get("message", "")))
    if reason in _PULL:
        return Cause(
            Reason.IMAGE_PULL_FAILED,
            f"{pod} can't pull image {status.get('image', '')} of container {container} ({reason}): "
            f"{text.rstrip('.')}. {make_image_available(container_ref)}",
        )
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return _missing(pod, text) or Cause(
            Reason.CONTAINER_REFUSED, f"{pod}: container {container} can't start ({reason}): {text}"
        )
    return _ended(pod, status, reason, container_ref)


def _ended(pod: str, status: Mapping[str, Any], reason: str, container_ref: ContainerRef) -> Cause | None:
    container = str(status.get("name", ""))
    last = (status.get("lastState") or {}).get("terminated") or (status.get("state") or {}).get("terminated") or {}
    if status.get("ready") or not last or last.get("exitCode") == 0:
        return None
    if last.get("reason") == "OOMKilled":
        message = f"{pod}: container {container} was killed because it ran out of memory"
        return Cause(Reason.OUT_OF_MEMORY, f"{message}. {give_memory(container_ref)}")
    if last.get("reason") == "ContainerStatusUnknown":
        message = f"{pod}: container {container} was lost when its node or kubelet restarted; it is started again"
        return Cause(Reason.NODE_LOST, message, transient=True)
    output = _ends(str(last.get("message", ""))).rstrip(".") or "its log says why"
    message = f"{pod}: container {container} ended with exit code {last.get('exitCode')}: {output}"
    look = f" (kubectl logs {pod} -c {container} --previous)"
    if container_ref.container in ("tokenizer", "weights"):
        whose = "the pool's " if container_ref.component == "gateway" else ""
        remedy = f"Correct {whose}spec.model.uri, give it {whose}spec.model.tokenRef, or let pods reach its place"
        return Cause(Reason.MODEL_FAILED, f"{message}. {remedy}{look}.")
    if reason == "CrashLoopBackOff" or int(status.get("restartCount", 0)) >= 2:
        return Cause(Reason.CRASH_LOOP, f"{message}{look}.")
    return Cause(Reason.CRASH_LOOP, f"{message}; it is started again{look}.", transient=True)


def _unscheduled(pod: str, message: str, container_ref: ContainerRef) -> Cause:
    text = _short(message)
    if (missing := _missing(pod, text)) is not None:
        return missing
    if (gpu := next(filter(is_gpu, _INSUFFICIENT.findall(message)), None)) is not None:
        return Cause(
            Reason.NO_GPU,
            f"{pod} has no node: {text} Add nodes that have {gpu} free, or ask for fewer per replica by "
            "spec.engine.tensorParallelSize and spec.engine.resources.limits.",
        )
    return Cause(Reason.UNSCHEDULABLE, f"{pod} has no node: {text} {lower_requests(container_ref)}")


def _missing(pod: str, text: str) -> Cause | None:
    """A Secret, ConfigMap or claim that does not exist or lacks a key, by the text of the kubelet or the scheduler."""
    if (found := _NOT_FOUND.search(text)) is not None:
        kind, name = found[1].lower(), found[2]
        missing = {"secret": "Secret", "configmap": "ConfigMap"}.get(kind, "PersistentVolumeClaim")
        return Cause(_MISSING[kind], f"{pod} waits for {missing} {name}, which does not exist here: create it.")
    if (found := _NO_KEY.search(text)) is not None:
        return Cause(_MISSING[found[2].lower()], f"{pod}: {found[2]} {found[3]} has no key {found[1]}: add it.")
    if (found := _KEY_GONE.search(text)) is not None:
        reason = Reason.MISSING_SECRET if found[1] == "secret" else Reason.MISSING_CONFIG_MAP
        return Cause(reason, f"{pod}: a volume wants key {found[2]}, which is not there: add it. ({text})")
    return None


def _before_containers(warning: WarningEvent) -> Cause:
    """Why a scheduled pod does not start its first container."""
    text = _short(warning.message)
    if (missing := _missing(warning.name, text)) is not None:
        return missing
    details = f"({warning.reason}): {text}"
    if warning.reason in _NO_VOLUME:
        return Cause(Reason.VOLUME_FAILED, f"{warning.name} can't mount its volumes {details}", transient=True)
    if warning.reason in _NO_SANDBOX:
        remedy = "Check its node's network plugin and container runtime."
        return Cause(
            Reason.SANDBOX_FAILED, f"{warning.name} gets no sandbox or no network {details}. {remedy}", transient=True
        )
    return Cause(Reason.CONTAINER_REFUSED, f"{warning.name} can't start {details}", transient=True)


def replica_failure(deployment: Object | None, component: str = "engine") -> Cause | None:
    """Pods of the present template that the API server refused to create."""
    failure = condition_of(deployment or {}, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    message = str(failure.get("message", ""))
    if _of_an_older_template(message, condition_of(deployment or {}, "Progressing")):
        return None
    text = _short(message)
    if (quota := _QUOTA.search(message)) is not None:
        return Cause(
            Reason.QUOTA_EXCEEDED,
            f"the namespace's quota {quota[1]} refuses pods: {text}. Raise the quota, or lower replicas or resources.",
        )
    if (quota := _NO_LIMITS.search(message)) is not None:
        containers = [one for container_ref in _OF_CONTAINERS.findall(quota[2]) for one in container_ref.split(",")]
        remedy = set_limits(component, list(dict.fromkeys(containers)))
        message = f"the namespace's quota {quota[1]} refuses pods whose containers lack requests or limits"
        return Cause(Reason.QUOTA_EXCEEDED, f"{message}: {text}. {remedy}")
    return Cause(Reason.PODS_REFUSED, f"the API server refuses the pods: {text}")


def _of_an_older_template(message: str, progressing: Mapping[str, Any]) -> bool:
    """Whether the message is about a ReplicaSet of an earlier spec.

    A Deployment repeats the message while the old ReplicaSet retries, also after the spec was corrected. Its condition
    Progressing names the present ReplicaSet, and a pod's name starts with its ReplicaSet's.
    """
    present, refused = _REPLICA_SET.search(str(progressing.get("message", ""))), _REFUSED_POD.search(message)
    return bool(present and refused and not refused[1].startswith(f"{present[1]}-"))


def _late(deployment: Object | None, component: str) -> Cause | None:
    """No cause is visible, but the pods took too long."""
    if condition_of(deployment or {}, "Progressing").get("reason") != "ProgressDeadlineExceeded":
        return None
    longer = "; a large model may need a longer spec.engine.startupTimeoutSeconds" if component == "engine" else ""
    return Cause(Reason.NOT_READY_IN_TIME, f"pods run and are not ready in time: check their logs{longer}.")


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (status.get("state") or {}).get("waiting") or {}
    return found


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LONGEST else one_line[:_LONGEST] + "…"


def _ends(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LONGEST else f"{one_line[:_FIRST]} … {one_line[-_LAST:]}"
