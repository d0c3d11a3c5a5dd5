"""The operator's command line. An environment variable can set each option, because a chart sets variables."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plumage.errors import ConfigurationError
from plumage_operator.config import OperatorConfig
from plumage_operator.kinds import INTEGRATIONS
from plumage_operator.permissions import LEASE, ROUTER_ROLE

__all__ = ["AUTOSCALE_SECONDS", "WORKERS", "Options", "read_options"]

WORKERS: Final = 12
"""Reconciles at once. Each waits for one answer of the API server after another.

Four below the limit of requests in flight, so that the Lease is renewed even when every reconcile waits.
"""
AUTOSCALE_SECONDS: Final = 15
"""Between two rounds of the autoscaler. It is HorizontalPodAutoscaler's period.

It is also the maximum: a report that three periods did not renew counts as missing.
"""
_ABOUT = """Runs the fleets that the InferencePools of a Kubernetes cluster describe.

It needs the CustomResourceDefinitions (kubectl apply -f crds/) and the rights that the chart gives. In a pod it uses
its service account, elsewhere KUBECONFIG:

    KUBECONFIG=~/.kube/config python -m plumage_operator --image ghcr.io/me/plumage:1 --namespace default

Several may run: one holds the Lease and works, the others wait. /healthz is the liveness probe, /metrics has metrics.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line.

    identity: of this process among several operators.
    namespaces: those to watch; none means the whole cluster.
    autoscale_seconds: between two rounds for a pool that is scaled by its load.
    """

    config: OperatorConfig
    identity: str
    namespaces: tuple[str, ...] = ()
    integrations: tuple[str, ...] = ()
    lease: str = LEASE
    workers: int = WORKERS
    autoscale_seconds: int = AUTOSCALE_SECONDS
    health_port: int = 8080
    metrics_port: int = 8082
    external_port: int | None = None
    external_tls: str = ""
    log_level: str = "INFO"
    log_format: str = "text"


def read_options(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parses arguments and environment. Raises ConfigurationError for a missing image or a wrong number."""
    given = _parser(environment).parse_args(arguments)
    if not given.image:
        raise ConfigurationError("the image of the pods is missing: give --image, or set PLUMAGE_IMAGE")
    config = OperatorConfig(
        image=given.image,
        engine_image=given.engine_image or given.image,
        namespace=given.own_namespace,
        service_account=given.service_account,
        router_role=given.router_role,
        pull_policy=given.pull_policy,
        pull_secrets=_split(given.pull_secrets),
        network_policies=given.network_policies.lower() not in ("false", "0", "no"),
        monitoring=_split(given.monitoring_namespaces),
    )
    return Options(
        config=config,
        identity=environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        namespaces=tuple(dict.fromkeys([*_split(environment.get("PLUMAGE_WATCH_NAMESPACES", "")), *given.namespace])),
        integrations=_split(given.integrations),
        lease=given.lease,
        workers=given.workers,
        autoscale_seconds=_seconds(given.autoscale_seconds),
        health_port=given.health_port,
        metrics_port=given.metrics_port,
        external_port=int(given.external_metrics_port) if given.external_metrics_port else None,
        external_tls=given.external_metrics_tls,
        log_level=given.log_level.upper(),
        log_format=given.log_format,
    )


def _seconds(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= AUTOSCALE_SECONDS:
        return int(text)
    raise ConfigurationError(
        f"--autoscale-seconds (or PLUMAGE_AUTOSCALE_SECONDS) must be 1 to {AUTOSCALE_SECONDS}, got {text!r}"
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plumage_operator", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def option(flag: str, variable: str, default: str, text: str) -> None:
        help_text = f"{text} (${variable}{f', {default}' if default else ''})"
        parser.add_argument(flag, default=environment.get(variable) or default, help=help_text)

    where = (
        "namespace to watch, may be repeated; the whole cluster when absent ($PLUMAGE_WATCH_NAMESPACES, with commas)"
    )
    parser.add_argument("--namespace", action="append", default=[], help=where)
    option("--image", "PLUMAGE_IMAGE", "", "image of routers, agents, directories and simulators")
    option("--engine-image", "PLUMAGE_ENGINE_IMAGE", "", "image of vLLM with Plumage's plugin")
    option("--pull-policy", "PLUMAGE_PULL_POLICY", "IfNotPresent", "pull policy of these images")
    option("--pull-secrets", "PLUMAGE_PULL_SECRETS", "", "Secrets of the pools' namespaces to pull with, with commas")
    option("--own-namespace", "POD_NAMESPACE", "plumage-system", "namespace of this operator and of its Lease")
    option("--service-account", "PLUMAGE_SERVICE_ACCOUNT", "plumage-operator", "service account of this operator")
    option("--router-role", "PLUMAGE_ROUTER_ROLE", ROUTER_ROLE, "ClusterRole that routers are bound to")
    option("--network-policies", "PLUMAGE_NETWORK_POLICIES", "true", "create NetworkPolicies, true or false")
    option(
        "--monitoring-namespaces",
        "PLUMAGE_MONITORING_NAMESPACES",
        "",
        "namespaces that may scrape metrics, with commas",
    )
    option(
        "--integrations",
        "PLUMAGE_INTEGRATIONS",
        "",
        f"any of {', '.join(one.switch for one in INTEGRATIONS)}, with commas",
    )
    option("--lease", "PLUMAGE_LEASE", LEASE, "name of the Lease")
    option(
        "--autoscale-seconds",
        "PLUMAGE_AUTOSCALE_SECONDS",
        str(AUTOSCALE_SECONDS),
        "seconds between rounds of the autoscaler",
    )
    option("--external-metrics-port", "PLUMAGE_EXTERNAL_METRICS_PORT", "", "port for external.metrics.k8s.io")
    option("--external-metrics-tls", "PLUMAGE_EXTERNAL_METRICS_TLS", "", "folder with its tls.crt and tls.key")
    option("--log-level", "PLUMAGE_LOG_LEVEL", "info", "debug, info, warning or error")
    option("--log-format", "PLUMAGE_LOG_FORMAT", "text", "text or json")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"reconciles at once ({WORKERS})")
    parser.add_argument("--health-port", type=int, default=8080, help="port of /healthz and /readyz (8080)")
    parser.add_argument("--metrics-port", type=int, default=8082, help="port of /metrics (8082)")
    return parser
