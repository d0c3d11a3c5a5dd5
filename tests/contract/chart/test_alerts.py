"""Prometheus' own checker runs the alerts over made-up series: what fires, after which time, and what does not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from support.charts import CHART, ROOT
from support.needs import missing

RULES = CHART / "files" / "alerts.yaml"
POOL = 'namespace="shop",pool="chat"'
GATEWAY = 'namespace="shop",pod="front-router-1"'
ENGINE = f'{POOL},pod="chat-engine-1"'
OBJECT = 'kind="InferencePool",object_namespace="shop",name="chat"'
READY, BREAKER, FAILED = (
    f'plumage_router_replica_{name}{{{POOL},replica="a"}}' for name in ("ready", "breaker_open", "failed_total")
)
UNSERVED = f"plumage_router_unserved_requests{{{POOL}}}"
REQUESTS = f"plumage_router_requests_total{{{POOL}}}"


def errors(labels: str, code: str) -> str:
    return f'plumage_router_errors_total{{{labels},code="{code}"}}'


def condition(type_: str, status: str, reason: str) -> str:
    labels = f'{OBJECT},condition="{type_}",status="{status}",reason="{reason}"'
    return f"plumage_operator_condition{{{labels}}}"


AT_GATEWAY = {
    f"plumage_router_requests_total{{{GATEWAY}}}": "0+1x120",  # the port's own series: only what it refused
    f'plumage_router_requests_total{{{GATEWAY},pool="chat"}}': "0+600x120",
}
FLAPPING = {
    condition("Ready", "False", "CrashLoop"): "1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1",
    condition("Ready", "False", "Starting"): "_ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _ 1 _",
}

FIRES: list[tuple[str, str, Mapping[str, str]]] = [
    ("PlumageNoReplicaReady", "a pool without pods has no series", {UNSERVED: "4x60"}),
    ("PlumageNoReplicaReady", "all replicas are unhealthy", {UNSERVED: "4x60", READY: "0x60"}),
    ("PlumageNoReplicaReady", "one request in three minutes", {UNSERVED: "1 0 0 1 0 0 1 0 0 1 0 0 1", READY: "0x60"}),
    ("PlumageBreakerOpen", "trials fail", {BREAKER: "1x60", READY: "1 0 1 0 1 0 1 0 1 0 1 0 1", FAILED: "0+1x60"}),
    ("PlumageBreakerOpen", "it cannot be reached", {BREAKER: "1x60", READY: "0x60", FAILED: "3x60"}),
    ("PlumageRequestsFail", "engines fail", {errors(POOL, "engines_failed"): "0+10x60", REQUESTS: "0+100x60"}),
    ("PlumageRequestsFail", "the queue is full", {errors(POOL, "queue_full"): "0+10x60", REQUESTS: "0+100x60"}),
    ("PlumageGatewayRequestsFail", "a pool is away", {**AT_GATEWAY, errors(GATEWAY, "pool_unavailable"): "0+60x120"}),
    ("PlumageAgentDegraded", "writes are refused", {f"plumage_agent_degraded{{{ENGINE}}}": "1x60"}),
    ("PlumageQuotasNotShared", "writes are refused", {
        f"plumage_router_quota_exchange_failures_total{{{POOL}}}": "0+9x60",
    }),
    ("PlumageKeysNotInForce", "of a gateway's port", {f"plumage_router_keys_stale{{{GATEWAY}}}": "1x60"}),
    ("PlumageRouterSettingsOld", "settings", {f"plumage_router_config_stale{{{GATEWAY}}}": "1x60"}),
    ("PlumageRouterSettingsOld", "members", {f'plumage_router_membership_stale{{{POOL},pod="r"}}': "1x60"}),
    ("PlumageFeatureOff", "one of two", {
        f'plumage_engine_feature_on{{{ENGINE},feature="feather"}}': "1x60",
        f'plumage_engine_feature_on{{{ENGINE},feature="eviction"}}': "0x60",
    }),
    ("PlumageSettingsIgnored", "by an engine", {f"plumage_engine_config_ignored_fields{{{ENGINE}}}": "2x120"}),
    ("PlumageNotReady", "for one reason", {condition("Ready", "False", "ImagePullFailed"): "1x60"}),
    ("PlumageNotReady", "reasons take turns", FLAPPING),
    ("PlumageNeedsAttention", "adapters", {condition("AdaptersReady", "False", "AdapterFailed"): "1x60"}),
    ("PlumageNeedsAttention", "a halted rollout", {condition("Progressing", "False", "RolloutHalted"): "1x60"}),
    ("PlumageNeedsAttention", "a replica is missing", {condition("Ready", "True", "Degraded"): "1x60"}),
    ("PlumageNeedsAttention", "autoscaler", {condition("Scaling", "False", "MetricMissing"): "1x60"}),
    ("PlumageWritesRefused", "a role is missing", {'plumage_operator_refusals_total{kind="Deployment"}': "0+1x120"}),
]  # fmt: skip
SILENT: list[tuple[str, str, Mapping[str, str]]] = [
    ("PlumageNoReplicaReady", "a sleeping pool", {UNSERVED: "0x60"}),
    ("PlumageNoReplicaReady", "a replica is back", {UNSERVED: "4x60", READY: "0 1x60"}),
    ("PlumageBreakerOpen", "no request for a trial", {BREAKER: "1x60", READY: "1x60", FAILED: "3x60"}),
    ("PlumageRequestsFail", "clients send no JSON", {errors(POOL, "invalid_json"): "0+90x60", REQUESTS: "0+100x60"}),
    ("PlumageRequestsFail", "a tenant's quota", {errors(POOL, "rate_limit_exceeded"): "0+90x60", REQUESTS: "0+100x60"}),
    ("PlumageRequestsFail", "a scanner, no completions", {errors(POOL, "not_found"): "0+90x60", REQUESTS: "0x60"}),
    ("PlumageRequestsFail", "no requests", {errors(POOL, "no_replica"): "5x60", REQUESTS: "9x60"}),
    ("PlumageRequestsFail", "a gateway's port", {**AT_GATEWAY, errors(GATEWAY, "model_not_found"): "0+1x120"}),
    ("PlumageGatewayRequestsFail", "unknown models", {**AT_GATEWAY, errors(GATEWAY, "model_not_found"): "0+90x120"}),
    ("PlumageGatewayRequestsFail", "few of many", {**AT_GATEWAY, errors(GATEWAY, "pool_unavailable"): "0+1x120"}),
    ("PlumageNotReady", "a pool that sleeps", {condition("Ready", "True", "ScaledToZero"): "1x60"}),
    ("PlumageNeedsAttention", "all is well", {
        condition("Progressing", "False", "Settled"): "1x60",
        condition("Scaling", "False", "Manual"): "1x60",
        condition("Paused", "False", "NotPaused"): "1x60",
    }),
    ("PlumageWritesRefused", "long ago", {'plumage_operator_refusals_total{kind="Deployment"}': "7x120"}),
]  # fmt: skip
OF_CLIENTS = """
    admin_key body_too_large chat_template class_refused connect content_encoding context_length_exceeded
    duplicate_key expectation field_not_allowed headers_too_large invalid_api_key invalid_form invalid_header
    invalid_json invalid_type malformed_http media_type media_url method_not_allowed missing_field model_not_found
    model_refused not_found not_served previous_response_not_found quarantined rate_limit_exceeded repeated_header
    request_timeout response_not_found too_many transfer_encoding
"""
ELSEWHERE = {"truncated"}
"""Counted by a metric of its own."""


def test_alerts_fire_only_where_they_should(tmp_path: Path) -> None:
    """One run of the checker: each start costs a second. A failure shows the case's name in the label `case`."""
    cases = [_case(*case, fires=1) for case in FIRES] + [_case(*case, fires=0) for case in SILENT]
    assert _checked(tmp_path, cases).endswith("SUCCESS")


def test_case_that_differs_is_found(tmp_path: Path) -> None:
    assert FIRES[0][1] in _checked(tmp_path, [_case(*FIRES[0], fires=0)])


def test_each_error_code_is_the_pools_or_the_clients() -> None:
    page = yaml.safe_load((ROOT / "docs" / "reference" / "http.yaml").read_text())
    codes = set(page["errors"])
    rules = {rule["alert"]: rule["expr"] for group in _groups() for rule in group["rules"]}
    for alert in ("PlumageRequestsFail", "PlumageGatewayRequestsFail"):
        (pattern,) = re.findall(r'code=~"([^"]*)"', rules[alert])
        ours = set(pattern.split("|"))
        clients = {*OF_CLIENTS.split()}
        assert not ours & clients
        assert ours | clients | ELSEWHERE == codes, alert


def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return groups


def _case(alert: str, name: str, series: Mapping[str, str], *, fires: int) -> dict[str, Any]:
    """fires: 1 where it must fire at some minute of two hours. series: values a minute, in promtool's notation."""
    rules = {rule["alert"] for group in _groups() for rule in group["rules"]}
    assert alert in rules
    firing = f'count(count_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[2h])) > bool 0 or vector(0)'
    check = {
        "expr": f'label_replace({firing}, "case", "{name}", "", "")',
        "eval_time": "2h",
        "exp_samples": [{"labels": f'{{case="{name}"}}', "value": fires}],
    }
    given = [{"series": one, "values": values} for one, values in series.items()]
    return {"interval": "1m", "input_series": given, "promql_expr_test": [check]}


def _checked(folder: Path, cases: list[dict[str, Any]]) -> str:
    """What the checker says of the cases."""
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool", "install Debian's package prometheus, or put promtool from Prometheus' release on PATH")
    page = folder / "test.yaml"
    page.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    command = [promtool, "test", "rules", str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return (done.stdout + done.stderr).strip()
