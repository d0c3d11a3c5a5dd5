"""The operator's command line. Each option can be an environment variable, since a chart sets those."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plumage.errors import ConfigurationError
from plumage_operator.config import OperatorConfig
from plumage_operator.permissions import LEASE, ROUTER_ROLE

__all__ = ["AUTOSCALE_SECONDS", "WORKERS", "Options", "read_options"]

WORKERS: Final = 12
"""A look asks one thing after the other, and it is the API server that takes its time. Four fewer than there may be
requests in flight: the Lease is renewed, whatever the looks wait for."""
AUTOSCALE_SECONDS: Final = 15
"""Between two looks of the autoscaler: HorizontalPodAutoscaler's period, and the longest, since a figure that three of
them did not renew counts as missing."""
_ABOUT = """Makes InferencePools of a Kubernetes cluster into fleets, and keeps them so.

It needs the CustomResourceDefinitions (kubectl apply -f crds/) and the rights that the chart gives it. In a pod it
works as its service account; elsewhere as KUBECONFIG says:

    KUBECONFIG=~/.kube/config python -m plumage_operator --image ghcr.io/me/plumage:1 --namespace default

Several may run: one holds the Lease and works, the others wait. /healthz tells whether it lives, /metrics how it does.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """identity: of this process among operators. namespaces: those watched; none is the whole cluster.
    autoscale_seconds: between two looks at a pool that sizes itself."""

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
    """ConfigurationError where something is missing that has no default."""
    given = _parser(environment).parse_args(arguments)
    if not given.image:
        raise ConfigurationError("which image do pods run? Give --image, or set PLUMAGE_IMAGE")
    config = OperatorConfig(
        image=given.image,
        engine_image=given.engine_image or given.image,
        namespace=given.own_namespace,
        service_account=given.service_account,
        router_role=given.router_role,
        pull_policy=given.pull_policy,
        pull_secrets=_words(given.pull_secrets),
        network_policies=given.network_policies.lower() not in ("false", "0", "no"),
        monitoring=_words(given.monitoring_namespaces),
    )
    return Options(
        config=config,
        identity=environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        namespaces=tuple(dict.fromkeys([*_words(environment.get("PLUMAGE_WATCH_NAMESPACES", "")), *given.namespace])),
        integrations=_words(given.integrations),
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


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plumage_operator", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def option(flag: str, variable: str, default: str, text: str) -> None:
        told = f"{text} (${variable}{f', {default}' if default else ''})"
        parser.add_argument(flag, default=environment.get(variable) or default, help=told)

    where = (
        "namespace to watch, may be repeated; the whole cluster when absent ($PLUMAGE_WATCH_NAMESPACES, with commas)"
    )
    parser.add_argument("--namespace", action="append", default=[], help=where)
    option("--image", "PLUMAGE_IMAGE", "", "image of routers, agents, directories and simulators")
    option("--engine-image", "PLUMAGE_ENGINE_IMAGE", "", "image of vLLM with Plumage's plugin")
    option("--pull-policy", "PLUMAGE_PULL_POLICY", "IfNotPresent", "when those images are pulled")
    option("--pull-secrets", "PLUMAGE_PULL_SECRETS", "", "Secrets of the pools' namespaces to pull with, with commas")
    option("--own-namespace", "POD_NAMESPACE", "plumage-system", "namespace of this operator and of its Lease")
    option("--service-account", "PLUMAGE_SERVICE_ACCOUNT", "plumage-operator", "service account of this operator")
    option("--router-role", "PLUMAGE_ROUTER_ROLE", ROUTER_ROLE, "ClusterRole that routers are bound to")
    option("--network-policies", "PLUMAGE_NETWORK_POLICIES", "true", "make NetworkPolicies, true or false")
    option("--monitoring-namespaces", "PLUMAGE_MONITORING_NAMESPACES", "", "who may read metrics, with commas")
    option("--integrations", "PLUMAGE_INTEGRATIONS", "", "of gatewayApi, ingress, podMonitors, with commas")
    option("--lease", "PLUMAGE_LEASE", LEASE, "name of the Lease")
    option(
        "--autoscale-seconds", "PLUMAGE_AUTOSCALE_SECONDS", str(AUTOSCALE_SECONDS), "between looks of the autoscaler"
    )
    option("--external-metrics-port", "PLUMAGE_EXTERNAL_METRICS_PORT", "", "serve external.metrics.k8s.io there")
    option("--external-metrics-tls", "PLUMAGE_EXTERNAL_METRICS_TLS", "", "folder with its tls.crt and tls.key")
    option("--log-level", "PLUMAGE_LOG_LEVEL", "info", "debug, info, warning or error")
    option("--log-format", "PLUMAGE_LOG_FORMAT", "text", "text or json")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"pools looked at at once ({WORKERS})")
    parser.add_argument("--health-port", type=int, default=8080, help="port of /healthz and /readyz (8080)")
    parser.add_argument("--metrics-port", type=int, default=8082, help="port of /metrics (8082)")
    return parser
