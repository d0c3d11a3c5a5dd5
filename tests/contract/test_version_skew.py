"""Components one minor version apart: unknown fields of a newer one are ignored, missing fields of an older one have
defaults.

test_previous_release.py covers what an older release writes and reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fleets import agent, router
from support.operator_world import CONFIG, World, pool_object

from plumage.api.v1alpha1 import parse_manifest
from plumage.errors import ManifestError
from plumage.fleet_report import read_agent_report, read_router_report
from plumage.membership import parse_members
from plumage.settings.agent_config import AgentConfig
from plumage.settings.router_config import RouterConfig
from plumage_operator.controller.actions import WriteStatus
from plumage_operator.controller.gateway_plan import plan_gateway_status
from plumage_operator.observed import AttachedPool, Observed, ObservedGateway
from plumage_operator.resources.context import read_pool
from plumage_router.config import load_config
from plumage_router.process.config_watch import ConfigWatch

NEWER: dict[str, Any] = {"novelty": {"deep": [1]}}


def newer_pool() -> dict[str, Any]:
    """A pool as the definition of the next version would fill it in."""
    pool = pool_object()
    spec = pool["spec"]
    spec |= {**NEWER, "router": {"limits": dict(NEWER)}, "rollout": {"drainTimeoutSeconds": 7, **NEWER}}
    spec["engine"] |= {**NEWER, "tolerations": [{"key": "gpu", "operator": "Exists", **NEWER}]}
    pool["status"] = {**NEWER, "conditions": [{"type": "Novel", "status": "True", "reason": "Novel", **NEWER}]}
    return pool


def test_operator_ignores_fields_of_newer_definitions() -> None:
    read = read_pool(newer_pool())
    assert read.spec.rollout.drain_timeout_seconds == 7
    assert read.spec.engine.tolerations[0].key == "gpu"
    world = World(newer_pool())
    world.converge()
    assert world.reasons()["Accepted"] == ("True", "Valid")
    with pytest.raises(ManifestError, match="there is no such field"):
        parse_manifest({**newer_pool(), "status": {}}, "validate")  # a manifest is strict, because people mistype


def test_value_of_a_newer_version_is_reported() -> None:
    pool = newer_pool()
    pool["spec"]["router"]["policy"] = "Novel"
    with pytest.raises(ManifestError) as caught:
        read_pool(pool)
    (mistake,) = caught.value.mistakes
    assert mistake.startswith("spec.router.policy: must be")


def test_gateway_of_newer_definitions_is_read() -> None:
    spec = {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}, **NEWER}]}], **NEWER}
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferenceGateway"}
    gateway = {**kind, "metadata": {"name": "front", "namespace": "default"}, "spec": spec}
    pool = newer_pool()
    pool["spec"]["router"] = {"gatewayRef": {"name": "front"}, **NEWER}
    observed = ObservedGateway(Observed(gateway, {}), (AttachedPool(pool),), frozenset({"chat"}))
    *_, written = plan_gateway_status(observed, CONFIG, 0.0)
    assert isinstance(written, WriteStatus)
    assert {one["type"]: one["reason"] for one in written.status["conditions"]}["Accepted"] == "Valid"
    assert written.status["pools"] == ["chat"]


def test_reports_of_newer_and_older_agents_and_routers_are_read() -> None:
    whole_agent, whole_router = msgspec.to_builtins(agent("e0", 5.0, 7)), msgspec.to_builtins(router(5.0))
    assert read_agent_report(json.dumps({**whole_agent, **NEWER}).encode()) == agent("e0", 5.0, 7)
    assert read_router_report(json.dumps({**whole_router, **NEWER}).encode()) == router(5.0)
    whole_agent.pop("hotness", None)
    whole_router.pop("wanting", None)
    assert read_agent_report(json.dumps(whole_agent).encode()).hotness == 0.0
    assert read_router_report(json.dumps(whole_router).encode()).wanting == 0


def test_membership_file_of_a_newer_writer_is_read() -> None:
    replica = {"id": "chat-0", "url": "http://127.0.0.1:1", "state": "Ready", **NEWER}
    (member,) = parse_members(json.dumps({"pool": "chat", "replicas": [replica], **NEWER}).encode(), "chat")
    assert member.id == "chat-0"


def test_running_router_keeps_its_settings_on_an_unknown_field_in_a_persons_file(tmp_path: Path) -> None:
    file, applied = tmp_path / "router.json", []
    settings = {"pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"}, "membershipFile": "/m"}
    file.write_text(json.dumps(settings))
    watch = ConfigWatch(file, load_config(file), applied.append)
    file.write_text(json.dumps({**settings, "policy": {"name": "RoundRobin"}, **NEWER}))
    watch.check()
    assert applied == []
    assert "novelty" in (watch.error or "")
    file.write_text(json.dumps({**settings, "policy": {"name": "RoundRobin"}}))
    watch.check()
    (config,) = applied
    assert isinstance(config, RouterConfig)
    assert watch.error is None


def test_agents_and_operators_one_version_apart_agree_on_callers(tmp_path: Path) -> None:
    """An older agent knows only `callers` and must let the operator in. An older operator writes only `callers`."""
    world = World(pool_object())
    world.converge()
    written = json.loads(world.objects["ConfigMap", "chat-engine"]["data"]["agent.json"])
    operator = f"system:serviceaccount:{CONFIG.namespace}:{CONFIG.service_account}"
    assert written["callers"] == ["system:serviceaccount:default:chat-engine", operator]
    assert written["figuresOnly"] == [operator]
    del written["figuresOnly"]
    config = AgentConfig.parse({**written, "replica": "chat-0"}, "agent.json")
    assert (config.callers, config.figures_only) == (tuple(written["callers"]), ())
