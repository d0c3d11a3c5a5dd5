"""A pool's conditions for every state of its cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.operator_world import CONFIG, NOW, World, pod_object, pool_object

from plumage_operator.controller.actions import EmitEvent, WriteStatus
from plumage_operator.controller.plan import plan_status
from plumage_operator.observed import Refusal, ScalingDecision, WarningEvent
from plumage_operator.status.conditions import Condition, Reason, Type, set_condition
from plumage_operator.status.diagnosis import diagnose, pods_to_explain, stuck_pods


def waiting(reason: str, message: str = "", container: str = "engine", **more: Any) -> dict[str, Any]:
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    return {"containerStatuses": [{"name": container, "image": "engine:1", "ready": False, **state, **more}]}


def ended(code: int, reason: str = "Error", restarts: int = 3, message: str = "") -> dict[str, Any]:
    last = {"lastState": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}
    return waiting("CrashLoopBackOff", "back-off", restartCount=restarts, **last)


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [{"type": "Ready", "status": "False"}, condition]}


CAUSES: list[tuple[dict[str, Any], Reason, str]] = [
    (waiting("ImagePullBackOff", "Back-off pulling image"), Reason.IMAGE_PULL_FAILED, "imagePullSecrets"),
    (waiting("ErrImagePull", "manifest unknown"), Reason.IMAGE_PULL_FAILED, "manifest unknown"),
    (waiting("InvalidImageName", "couldn't parse"), Reason.IMAGE_PULL_FAILED, "engine:1"),
    (waiting("CreateContainerConfigError", 'secret "hub" not found'), Reason.MISSING_SECRET, "Secret hub"),
    (waiting("CreateContainerConfigError", "couldn't find key a in Secret ns/hub"), Reason.MISSING_SECRET, "key a"),
    (waiting("CreateContainerConfigError", 'configmap "env" not found'), Reason.MISSING_CONFIG_MAP, "ConfigMap env"),
    (waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
     Reason.CONTAINER_REFUSED, "runAsNonRoot"),
    (ended(137, "OOMKilled"), Reason.OUT_OF_MEMORY, "limits.memory"),
    (ended(1, message="no such model"), Reason.CRASH_LOOP, "no such model"),
    (ended(1), Reason.CRASH_LOOP, "kubectl logs chat-engine-0 -c engine --previous"),
    (unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."), Reason.NO_GPU, "nvidia.com/gpu"),
    *((unscheduled(f"0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient {gpu}. preemption: 0/3 nodes are "
                   "available: 3 No preemption victims found for incoming pod."), Reason.NO_GPU, f"have {gpu} free")
      for gpu in ("amd.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "gpu.intel.com/xe",
                  "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuroncore")),
    (unscheduled("0/2 nodes are available: 1 Insufficient nvidia.com/mig-3g.40gb, 2 Insufficient memory."),
     Reason.NO_GPU, "have nvidia.com/mig-3g.40gb free"),
    (unscheduled("0/2 nodes are available: 2 Insufficient cpu."), Reason.UNSCHEDULABLE, "Insufficient cpu"),
    (unscheduled("0/2 nodes are available: 2 Insufficient rdma/hca."), Reason.UNSCHEDULABLE, "rdma/hca"),
    (unscheduled('persistentvolumeclaim "models" not found.'), Reason.MISSING_VOLUME_CLAIM, "VolumeClaim models"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "reason", "message"), CAUSES, ids=[f"{reason}-{message}" for _, reason, message in CAUSES]
)
def test_condition_names_cause_and_remedy(status: dict[str, Any], reason: Reason, message: str) -> None:
    cause = diagnose([pod_object(**status)], None, [])
    assert cause is not None
    assert cause.reason is reason
    assert message in cause.message
    assert not cause.transient


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ('MountVolume.SetUp failed for volume "keys" : secret "keys" not found', Reason.MISSING_SECRET, "Secret keys"),
        ('configmap "plan" not found', Reason.MISSING_CONFIG_MAP, "ConfigMap plan"),
        ("references non-existent secret key: token", Reason.MISSING_SECRET, "token"),
        ("timed out waiting for the condition", Reason.VOLUME_FAILED, "timed out"),
    ],
)
def test_stuck_pods_are_explained_by_events(message: str, reason: Reason, text: str) -> None:
    pod = pod_object(**waiting("ContainerCreating"))
    assert pods_to_explain(stuck_pods([pod]), 0.0) == ["chat-engine-0"]
    cause = diagnose([pod], None, [WarningEvent("chat-engine-0", "FailedMount", message)])
    assert cause is not None
    assert cause.reason is reason
    assert text in cause.message


@pytest.mark.parametrize(
    ("event", "message", "reason", "text"),
    [
        ("FailedCreatePodSandBox", 'plugin type="calico" failed (add): no IP left', Reason.SANDBOX_FAILED, "network"),
        ("NetworkNotReady", "cni plugin not initialized", Reason.SANDBOX_FAILED, "cni plugin not initialized"),
        ("FailedAttachVolume", "Multi-Attach error", Reason.VOLUME_FAILED, "Multi-Attach"),
        ("FailedPreStartHook", "something else", Reason.CONTAINER_REFUSED, "FailedPreStartHook"),
    ],
)
def test_each_event_has_its_reason(event: str, message: str, reason: Reason, text: str) -> None:
    cause = diagnose(
        [pod_object(**waiting("ContainerCreating"))], None, [WarningEvent("chat-engine-0", event, message)]
    )
    assert cause is not None
    assert (cause.reason, cause.transient) == (reason, True)
    assert text in cause.message
    assert ("volume" in cause.message) is (reason is Reason.VOLUME_FAILED)


def test_scheduling_event_is_ignored_after_scheduling() -> None:
    """The event stays for an hour."""
    pod = pod_object(**waiting("ContainerCreating"))
    message = "0/4 nodes are available: 2 Insufficient nvidia.com/gpu."
    assert diagnose([pod], None, [WarningEvent("chat-engine-0", "FailedScheduling", message)]) is None


def test_starting_pod_has_no_cause() -> None:
    assert diagnose([pod_object(**waiting("PodInitializing"))], None, []) is None
    assert diagnose([pod_object(**waiting("ContainerCreating"))], None, []) is None


def test_first_failed_fetch_names_the_model() -> None:
    status = {"initContainerStatuses": ended(1, message="401")["containerStatuses"]}
    status["initContainerStatuses"][0]["name"] = "tokenizer"
    cause = diagnose([pod_object(**status)], None, [])
    assert cause is not None
    assert cause.reason is Reason.MODEL_FAILED
    assert "tokenRef" in cause.message


def test_long_traceback_keeps_its_last_line() -> None:
    traceback = (
        "INFO the engine starts\n" + 60 * '  File "engine.py", line 1, in load\n' + "ValueError: no such quantization"
    )
    cause = diagnose([pod_object(**ended(1, message=traceback))], None, [])
    assert cause is not None
    assert "exit code 1: INFO the engine starts" in cause.message
    assert "ValueError: no such quantization (kubectl logs" in cause.message
    assert len(cause.message) < 800


def test_quota_and_admission_come_from_the_deployment() -> None:
    def failure(message: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}

    quota = diagnose([], failure('pods "x" is forbidden: exceeded quota: small, requested: pods=1'), [])
    assert quota is not None
    assert quota.reason is Reason.QUOTA_EXCEEDED
    assert "small" in quota.message
    refused = diagnose([], failure('violates PodSecurity "restricted:latest"'), [])
    assert refused is not None
    assert refused.reason is Reason.PODS_REFUSED


def test_refusal_of_an_older_replica_set_is_ignored() -> None:
    def deployment(present: str) -> dict[str, Any]:
        refused = 'pods "chat-engine-6b9f7d5c4-" is forbidden: exceeded quota: small, requested: pods=1'
        conditions = [
            {"type": "ReplicaFailure", "status": "True", "message": refused},
            {"type": "Progressing", "status": "True", "message": present},
        ]
        return {"status": {"conditions": conditions}}

    for present in (
        'Created new replica set "chat-engine-6b9f7d5c4"',
        'ReplicaSet "chat-engine-6b9f7d5c4" is progressing.',
    ):
        found = diagnose([], deployment(present), [])
        assert found is not None
        assert found.reason is Reason.QUOTA_EXCEEDED
    for present in ('Created new replica set "chat-engine-6b9f7d5c"', 'ReplicaSet "chat-engine-79c8d" is progressing.'):
        assert diagnose([], deployment(present), []) is None


def test_new_pool_that_cannot_start_names_the_cause_instead_of_a_halted_rollout() -> None:
    world = World()
    world.do(world.plan())
    deployment = world.objects["Deployment", "chat-engine"]
    deployment["status"] = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 0}
    for name in ("chat-engine-1", "chat-engine-2"):
        world.add_pod(name, deployment["spec"]["template"], ready=False)
        world.pods[name]["status"] = unscheduled('persistentvolumeclaim "models" not found.')
    world.do(world.plan())
    found = world.condition("Progressing")
    assert (found["status"], found["reason"]) == ("False", "MissingVolumeClaim")
    assert found["message"].startswith("0 of 2 replicas are ready")
    assert "PersistentVolumeClaim models" in found["message"]
    assert "RolloutHalted" not in {one.reason for one in world.events}


def test_permanent_causes_come_before_transient_ones() -> None:
    first_crash = pod_object(name="a", **ended(1, restarts=1) | {"containerStatuses": [
        {"name": "engine", "ready": False, "restartCount": 1, "state": {"running": {}},
         "lastState": {"terminated": {"exitCode": 1}}}]})  # fmt: skip
    no_image = pod_object(name="b", **waiting("ErrImagePull", "gone"))
    cause = diagnose([first_crash, no_image], None, [])
    assert cause is not None
    assert cause.reason is Reason.IMAGE_PULL_FAILED


def test_new_pool_starts_and_then_serves() -> None:
    world = World()
    world.do(world.plan())
    assert world.reasons()["Ready"] == ("False", "Starting")
    assert world.reasons()["Progressing"] == ("True", "RollingOut")
    world.converge()
    assert world.reasons() == {
        "Ready": ("True", "Serving"),
        "Accepted": ("True", "Valid"),
        "EngineReady": ("True", "Serving"),
        "RouterReady": ("True", "Serving"),
        "DirectoryReady": ("True", "Serving"),
        "Progressing": ("False", "Settled"),
        "Scaling": ("False", "Manual"),
        "Paused": ("False", "NotPaused"),
    }
    status = world.pool["status"]
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (2, 2, 2)
    assert status["selector"] == "app.kubernetes.io/component=engine,inference.plumage.dev/pool=chat"
    assert status["address"] == "http://chat-router.default.svc:8000"


def test_bad_image_halts_the_rollout_and_the_old_replicas_serve_on() -> None:
    world = World()
    world.converge()
    world.pool["spec"]["engine"]["image"] = "nowhere:1"
    world.pool["metadata"]["generation"] = 2
    world.do(world.plan())
    deployment = world.objects["Deployment", "chat-engine"]
    deployment["status"] = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 2}
    deployment["metadata"]["generation"] = 2
    world.add_pod("chat-engine-9", deployment["spec"]["template"], ready=False)
    world.pods["chat-engine-9"]["status"] |= waiting("ErrImagePull", "not found")
    world.do(world.plan())
    assert world.reasons()["Ready"] == ("True", "Serving")
    halted = world.condition("Progressing")
    assert (halted["status"], halted["reason"]) == ("False", "RolloutHalted")
    assert "the 2 previous replicas still serve" in halted["message"]
    assert "nowhere" in deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert ("Warning", "RolloutHalted") in [(one.type, one.reason) for one in world.events]


def lose(world: World, *names: str, **status: Any) -> None:
    """These replicas are not ready any more."""
    for name in names:
        world.pods[name]["status"] = pod_object(**status)["status"]
    engine = world.objects["Deployment", "chat-engine"]["status"]
    engine["readyReplicas"] = engine["replicas"] - len(names)


def large(rollout: dict[str, Any] | None = None) -> World:
    """Four replicas that serve."""
    world = World(pool_object({**pool_object()["spec"], "replicas": 4, **({"rollout": rollout} if rollout else {})}))
    world.converge()
    return world


def test_pool_with_three_of_four_replicas_is_ready_and_degraded() -> None:
    world = large()
    lose(world, "chat-engine-1", **ended(137, "OOMKilled"))
    world.do(world.plan())
    for name in ("Ready", "EngineReady"):
        assert world.reasons()[name] == ("True", "Degraded")
        assert (
            "3 of 4 replicas are ready. chat-engine-1: container engine was killed" in world.condition(name)["message"]
        )
    assert ("Warning", "Degraded") in [(one.type, one.reason) for one in world.events]
    assert world.plan() == ()
    world.converge()
    assert world.reasons()["Ready"] == ("True", "Serving")


def test_replica_that_fails_after_the_rollout_halts_none() -> None:
    world = large()
    lose(world, "chat-engine-1", **ended(1))
    deployment = world.objects["Deployment", "chat-engine"]
    deployment["status"]["conditions"] = [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]
    world.do(world.plan())
    progressing = world.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "Degraded")
    assert progressing["message"].startswith("3 of 4 replicas are ready, all as the spec says. chat-engine-1: ")


def test_restarting_replica_is_no_warning() -> None:
    world = large()
    lose(world, "chat-engine-1", **waiting("PodInitializing"))
    before = len(world.events)
    world.do(world.plan())
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert world.condition("Ready")["message"] == "3 of 4 replicas are ready; the others are starting"
    assert "Warning" not in [one.type for one in world.events[before:]]


@pytest.mark.parametrize(
    ("rollout", "ready"),
    [
        ({}, "False"),
        ({"maxUnavailable": 2}, "True"),
        ({"maxUnavailable": "50%"}, "True"),
        ({"maxUnavailable": "25%"}, "False"),
    ],
)
def test_rollout_strategy_decides_how_many_may_be_missing(rollout: dict[str, Any], ready: str) -> None:
    world = large(rollout)
    lose(world, "chat-engine-1", "chat-engine-2", **ended(1))
    world.do(world.plan())
    assert world.reasons()["Ready"] == (ready, "Degraded" if ready == "True" else "CrashLoop")


def test_pool_without_its_only_replica_is_not_ready() -> None:
    world = World(pool_object({**pool_object()["spec"], "replicas": 1, "rollout": {"maxUnavailable": 1}}))
    world.converge()
    lose(world, "chat-engine-0", **ended(1))
    world.do(world.plan())
    assert world.reasons()["Ready"] == ("False", "CrashLoop")


def test_pool_that_never_served_is_ready_once_all_its_replicas_are() -> None:
    """Waiting for Ready after `kubectl apply` means waiting for the requested pool."""
    world = World(pool_object({**pool_object()["spec"], "replicas": 4}))
    world.do(world.plan())
    world.run_controllers()
    lose(world, "chat-engine-3", **waiting("PodInitializing"))
    world.do(world.plan())
    assert world.reasons()["Ready"] == ("False", "Starting")


def test_warming_replicas_are_reported() -> None:
    world = World()
    world.do(world.plan())
    world.run_controllers(ready=False)
    for pod in world.engine_pods():
        pod["status"]["containerStatuses"] = [{"name": "engine", "ready": True, "state": {"running": {}}}]
    world.do(world.plan())
    assert world.reasons()["EngineReady"] == ("False", "Warming")


def test_pool_of_no_replicas_is_ready() -> None:
    world = World(pool_object({**pool_object()["spec"], "replicas": 0}))
    world.converge()
    assert world.reasons()["EngineReady"] == ("True", "ScaledToZero")
    assert world.reasons()["Ready"] == ("True", "ScaledToZero")


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Refusal("Service", "chat-router", Reason.NAME_TAKEN, "Service chat-router exists"), "NameTaken"),
        (Refusal("Deployment", "chat-engine", Reason.NAMESPACE_ENDS, "is being deleted"), "NamespaceTerminating"),
        (Refusal("ConfigMap", "chat-engine", Reason.QUOTA_EXCEEDED, "quota"), "QuotaExceeded"),
    ],
)
def test_refusal_is_reported_as_condition(refusal: Refusal, reason: str) -> None:
    world = World()
    world.converge()
    world.do(plan_status(world.observed(refusals=(refusal,)), CONFIG, NOW))
    assert world.reasons()["Accepted"] == ("False", reason)
    assert world.condition("Ready")["message"] == refusal.message


def test_spec_of_an_older_schema_changes_nothing() -> None:
    world = World()
    world.converge()
    world.pool["spec"]["engine"]["tensorParallelSize"] = 0
    world.pool["metadata"]["generation"] = 2
    actions = world.plan()
    assert {type(action) for action in actions} == {EmitEvent, WriteStatus}
    world.do(actions)
    assert world.reasons()["Accepted"] == ("False", "InvalidSpec")
    assert "tensorParallelSize" in world.condition("Accepted")["message"]
    assert world.pool["status"]["readyReplicas"] == 2  # the figures stay
    assert world.plan() == ()


def test_model_without_tokenizer_is_an_invalid_spec() -> None:
    world = World(pool_object({"model": {"uri": "s3://bucket/model"}}))
    world.do(world.plan())
    assert world.reasons()["Ready"] == ("False", "InvalidSpec")
    assert "spec.model.tokenizer" in world.condition("Ready")["message"]
    assert not world.objects


def test_transition_time_changes_only_with_the_status() -> None:
    (first,) = set_condition((), Condition(Type.READY, "False", "Starting"), 1, NOW)
    (same,) = set_condition([first], Condition(Type.READY, "False", "Warming"), 2, NOW + 60)
    (other,) = set_condition([same], Condition(Type.READY, "True", "Serving"), 2, NOW + 60)
    assert first["lastTransitionTime"] == same["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert same["reason"] == "Warming"
    assert other["lastTransitionTime"] == "2027-01-15T08:01:00Z"


def test_small_change_of_the_hit_ratio_is_not_written() -> None:
    world = World()
    world.scaling = ScalingDecision(2, "False", "Manual", "", fields={"hitRatioPercent": 80})
    world.converge()
    world.scaling = ScalingDecision(2, "False", "Manual", "", fields={"hitRatioPercent": 82})
    assert world.plan() == ()
    world.scaling = ScalingDecision(2, "False", "Manual", "", fields={"hitRatioPercent": 70})
    (written,) = world.plan()
    assert isinstance(written, WriteStatus)
    assert written.status["hitRatioPercent"] == 70


def test_every_reason_is_camel_case() -> None:
    assert all(reason.value.isalpha() and reason.value[0].isupper() for reason in Reason)
    assert json.dumps([str(reason) for reason in Reason])  # they are published as plain text


@pytest.mark.parametrize(
    ("runtime", "tier", "reason"),
    [
        ("VLLM", {}, "InvalidSpec"),
        ("VLLM", {"capacity": "8Gi"}, "Valid"),
        ("VLLM", None, "Valid"),
        ("Simulator", {}, "Valid"),
    ],
)
def test_host_tier_beyond_the_memory_of_vllm_is_refused(runtime: str, tier: dict[str, str] | None, reason: str) -> None:
    engine = {"runtime": runtime, **({} if tier is None else {"hostMemory": tier})}
    uri = "hf://org/name" if runtime == "VLLM" else "builtin://tiny-chat"
    world = World(pool_object({"model": {"uri": uri}, "engine": engine, "replicas": 1}))
    world.converge()
    accepted = world.condition("Accepted")
    assert accepted["reason"] == reason
    assert ("hostMemory.capacity: must be set" in accepted["message"]) is (reason == "InvalidSpec")


def test_long_last_applied_annotation_is_accepted() -> None:
    kept = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 200_000}
    world = World(pool_object(annotations=kept))
    world.converge()
    assert world.condition("Accepted")["status"] == "True"
