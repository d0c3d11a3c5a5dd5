"""Who may reach a pool, and what it reports: `router.tls`, `router.endpointPicker`, `router.ingress`,
`router.httpRoute`, `networkPolicy`, `monitoring`, `tracing`. By default each is off or closed."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.field_types import WORDS, Label, ObjectRef, StringMap, Subdomain
from plumage.api.v1alpha1.struct import LIST_KEY, Struct, named_once

__all__ = [
    "EndpointPickerSpec",
    "HTTPRouteSpec",
    "IngressSpec",
    "MonitoringSpec",
    "NetworkPolicySpec",
    "ParentRef",
    "PublishedPoolSpec",
    "TlsSpec",
    "TracingSpec",
]

Hosts = tuple[Subdomain, ...]
Namespaces = tuple[Label, ...]


class TlsSpec(Struct):
    """The certificate that routers show to clients."""

    secret_name: Subdomain = Field(
        description="Secret of type kubernetes.io/tls, with tls.crt and tls.key. A change reaches running routers."
    )


class PublishedPoolSpec(Struct):
    """An InferencePool of the Gateway API Inference Extension, for gateways that send requests to the engines."""

    failure_mode: Literal["FailClose", "FailOpen"] = Field(
        "FailClose",
        description="What gateways do while no picker answers. FailClose: they refuse requests. FailOpen: they choose "
        "an engine themselves, which answers 401 unless the gateway adds the pool's engine key.",
    )


class EndpointPickerSpec(Struct):
    """A port of the routers that chooses replicas for Envoy proxies, which send the requests themselves."""

    port: Annotated[int, Field(ge=1, le=65_535)] = Field(
        defaults.ENDPOINT_PICKER_PORT, description="Port of the Service NAME-picker; in local mode, of this machine."
    )
    fallbacks: Annotated[int, Field(ge=0, le=8)] = Field(
        0,
        description="Further endpoints that a proxy gets, for its own retries. Clusters of type ORIGINAL_DST take "
        "one endpoint only.",
    )
    proxy_namespaces: Namespaces = Field(
        (),
        strict=False,
        max_length=16,
        description="Namespaces of the proxies, whose pods may reach the picker and the engines. The picker gives "
        "them the engine key. When empty, the network policy lets nobody reach it.",
        json_schema_extra={LIST_KEY: ""},
    )
    inference_pool: PublishedPoolSpec | None = Field(
        None,
        description="An InferencePool of the group inference.networking.k8s.io with this pool's name, its engines and "
        "this picker. The backend of HTTPRoutes. None when absent.",
    )
    rules: ClassVar = (named_once("proxyNamespaces", "a namespace"),)


class IngressSpec(Struct):
    """An Ingress to the router."""

    host: Subdomain = Field(description="Host name that clients use.")
    class_name: Subdomain | None = Field(None, description="Ingress class. When absent, the cluster's default.")
    tls_secret_ref: ObjectRef | None = Field(None, description="Secret with the certificate. When absent, plain HTTP.")
    annotations: StringMap = Field({}, max_length=64, description="Annotations of the Ingress.")


class ParentRef(Struct):
    """A Gateway of the Gateway API, which must admit routes from the pool's namespace."""

    name: Subdomain = Field(description="Name of the Gateway.")
    namespace: Label | None = Field(None, description="Its namespace. When absent, the pool's.")
    section_name: Subdomain | None = Field(None, description="The listener. When absent, all listeners of the Gateway.")


class HTTPRouteSpec(Struct):
    """An HTTPRoute to the router."""

    parent_refs: tuple[ParentRef, ...] = Field(
        strict=False, min_length=1, max_length=16, description="The Gateways of the route."
    )
    hostnames: Hosts = Field(
        (),
        strict=False,
        max_length=16,
        description="Host names that clients use. When absent, all host names of the Gateway.",
        json_schema_extra={LIST_KEY: ""},
    )
    rules: ClassVar = (named_once("hostnames", "a host"),)


class NetworkPolicySpec(Struct):
    """Which pods may reach the pool's pods. Clients reach the router; router, agents and operator reach the others."""

    enabled: bool = Field(True, description="Whether NetworkPolicies are made.")
    client_namespaces: Namespaces = Field(
        (),
        strict=False,
        max_length=64,
        description="Namespaces whose pods may reach the router. When empty, all namespaces.",
        json_schema_extra={LIST_KEY: ""},
    )
    monitoring_namespaces: Namespaces = Field(
        (),
        strict=False,
        max_length=16,
        description="Namespaces whose pods may read metrics of engines and agents.",
        json_schema_extra={LIST_KEY: ""},
    )
    rules: ClassVar = (
        named_once("clientNamespaces", "a namespace"),
        named_once("monitoringNamespaces", "a namespace"),
    )


COLLECTOR_URL = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$"
WORDS[COLLECTOR_URL] = "http:// or https://, a host, and if needed a port and a path, without a password"


class TracingSpec(Struct):
    """Traces of requests, exported to an OpenTelemetry collector (OTLP over HTTP)."""

    endpoint: Annotated[str, Field(max_length=2048, pattern=COLLECTOR_URL)] = Field(
        description="URL of the collector, e.g. http://otel-collector.monitoring:4318. /v1/traces is added."
    )
    sampling_rate_per_million: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        10_000,
        description="How many of a million requests are traced. A request with a traceparent header is traced if its "
        "client traced it.",
    )


class MonitoringSpec(Struct):
    """PodMonitors for the Prometheus operator."""

    enabled: bool = Field(False, description="Whether PodMonitors are made. The cluster must have that kind.")
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        30, description="Seconds between two reads of the metrics."
    )
    labels: StringMap = Field({}, max_length=64, description="Labels by which your Prometheus selects PodMonitors.")
