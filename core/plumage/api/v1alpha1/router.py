"""`spec.router`: the pool's own router, or the gateway that serves it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from plumage import defaults
from plumage.api.v1alpha1.exposure import EndpointPickerSpec, HTTPRouteSpec, IngressSpec, TlsSpec
from plumage.api.v1alpha1.field_types import Memory, ObjectRef, RequestField, Seconds, SecretKeyRef, StringMap
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.scheduling import Placement
from plumage.api.v1alpha1.struct import Rule, Struct
from plumage.quantity import Quantity, between

__all__ = ["AuthSpec", "LbgrSpec", "RouterLimits", "RouterSpec", "RouterTimeouts", "ServiceSpec", "ServiceType"]

Policy = Literal["Lbgr", "LbgrPaper", "PrefixAware", "LeastLoad", "PowerOfTwo", "RoundRobin", "Random"]
Milli = Annotated[int, Field(ge=1, le=60_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
NonNegative = Annotated[int, Field(ge=0, le=1_000_000)]


class LbgrSpec(Struct):
    """Learning-based greedy routing: service + queue + a learned residual (KVRouting §4.2, App. A)."""

    miss_milliseconds_per_kilotoken: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        defaults.MISS_MILLISECONDS_PER_KILOTOKEN,
        description="Initial time of 1,000 uncached tokens, in milliseconds. Lbgr then learns it for each replica.",
    )
    hit_milliseconds_per_kilotoken: NonNegative = Field(
        defaults.HIT_MILLISECONDS_PER_KILOTOKEN, description="Time of 1,000 cached tokens, in milliseconds."
    )
    forgetting: Annotated[Quantity, between("0.5", "1")] = Field(
        Quantity(defaults.RLS_FORGETTING),
        description="λ of the recursive least squares: the factor on the weight of the past at each answer.",
    )
    considered_replicas: Annotated[int, Field(ge=2, le=100_000)] = Field(
        defaults.CONSIDERED_REPLICAS,
        description="The most replicas that are scored for a request: the best owners, the former home, a sample.",
    )
    decay_interval_milliseconds: Milli = Field(
        defaults.DECAY_INTERVAL_MILLISECONDS,
        description="Milliseconds after which queued work decays by 1/32. Only for LbgrPaper, our reconstruction of "
        "the printed form.",
    )
    pending_owner_seconds: Seconds = Field(
        defaults.PENDING_OWNER_SECONDS,
        description="Seconds for which a replica counts as owner of a prefix that was sent to it and is not reported "
        "yet. Where nobody reports (no directory, or engine.external) it is "
        f"{defaults.UNREPORTED_OWNER_SECONDS} unless it is set.",
    )


class AuthSpec(Struct):
    """Keys of clients and of the admin: files that pods mount from Secrets, never text in a manifest."""

    api_keys_ref: SecretKeyRef | None = Field(
        None, description="API keys, one per line. When absent, every client is served."
    )
    admin_key_ref: SecretKeyRef | None = Field(
        None,
        description="Key for the admin endpoints and explanations. When absent, they are closed; local mode makes one.",
    )


class ServiceType(Struct):
    """The kind of a Service, and its annotations."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field("ClusterIP", description="Kind of Service.")
    annotations: StringMap = Field({}, max_length=64, description="Annotations of the Service.")


class ServiceSpec(ServiceType):
    """How the router is reached."""

    port: Annotated[int, Field(ge=1, le=65_535)] = Field(8000, description="Port of the Service.")


class RouterLimits(Struct):
    """Bounds of the router. Clients get an error beyond them."""

    max_body_bytes: Memory = Field(Quantity(defaults.MAX_BODY_BYTES), description="Largest request body.")
    body_memory: Memory | None = Field(
        None, description="Memory for request bodies in one router. When absent, a quarter of the router's memory."
    )
    max_connections: Count = Field(defaults.MAX_CONNECTIONS, description="The most open client connections.")
    max_in_flight: Count = Field(defaults.MAX_IN_FLIGHT, description="The most requests in flight.")
    max_held: NonNegative = Field(
        1000, description="The most requests that wait for a replica while the pool has none."
    )
    rules: ClassVar = (
        Rule(
            at="bodyMemory",
            must="must be at least 4 times maxBodyBytes",
            cel="!has(self.bodyMemory) || quantity(string(self.bodyMemory)).asApproximateFloat() >= "
            "4.0 * quantity(string(self.maxBodyBytes)).asApproximateFloat()",
            reads=("body_memory", "max_body_bytes"),
            holds=lambda limits: (
                limits.body_memory is None or limits.body_memory.value >= 4 * limits.max_body_bytes.value
            ),
        ),
    )


class RouterTimeouts(Struct):
    """Timeouts of the router, in seconds."""

    connect_seconds: Seconds = Field(defaults.CONNECT_SECONDS, description="Timeout of a connection to an engine.")
    first_byte_seconds: Seconds = Field(
        defaults.FIRST_BYTE_SECONDS, description="Timeout of a stream's first byte. Then another replica is tried."
    )
    idle_seconds: Seconds = Field(defaults.IDLE_SECONDS, description="The longest pause of a stream. Then it is cut.")
    wake_seconds: Seconds = Field(300, description="The longest wait for a replica while the pool has none.")


_OWN = (
    *Placement.model_fields,
    "replicas",
    "policy",
    "shadow_policy",
    "lbgr",
    "auth",
    "tls",
    "endpoint_picker",
    "service",
    "ingress",
    "http_route",
    "resources",
    "limits",
    "timeouts",
    "allowed_request_fields",
    "sort_tools",
    "access_log",
    "usage_log",
)
_GATEWAY_ALONE = "!has(self.gatewayRef) || !(" + " || ".join(f"has(self.{to_camel(name)})" for name in _OWN) + ")"


def _gateway_alone(router: Any) -> bool:
    return router.gateway_ref is None or router.model_fields_set <= {"gateway_ref"}


class RouterSpec(Placement):
    """The pool's own router (the default), or a reference to a gateway; never both."""

    gateway_ref: ObjectRef | None = Field(None, description="The InferenceGateway that serves this pool instead.")
    replicas: Annotated[int, Field(ge=1, le=100)] = Field(
        2, description="Routers of this pool. With only one, connections are refused while its pod is replaced."
    )
    policy: Policy = Field(
        defaults.ROUTING_POLICY,
        description="How a replica is chosen. LbgrPaper is our reconstruction of the paper's printed form of Lbgr.",
    )
    shadow_policy: Policy | None = Field(
        None,
        description="A second policy that decides beside `policy` and sends nothing. Metrics, `plumage status` and "
        "explanations compare the two. None when absent.",
    )
    lbgr: LbgrSpec = Field(LbgrSpec(), description="Settings of the Lbgr policies.")
    auth: AuthSpec = Field(AuthSpec(), description="Keys of clients and of the admin.")
    tls: TlsSpec | None = Field(
        None, description="TLS for clients, and for proxies of endpointPicker. When absent, plain HTTP."
    )
    endpoint_picker: EndpointPickerSpec | None = Field(
        None, description="A port that chooses replicas for Envoy proxies. None when absent."
    )
    service: ServiceSpec = Field(ServiceSpec(), description="How the router is reached.")
    ingress: IngressSpec | None = Field(None, description="An Ingress to the router. None when absent.")
    http_route: HTTPRouteSpec | None = Field(None, description="An HTTPRoute to the router. None when absent.")
    resources: Resources = Field(
        Resources(),
        description="Compute of one router. By default it requests 100m and 256Mi, with a limit of 1Gi. Both amounts "
        "of memory are at least four times limits.bodyMemory.",
    )
    limits: RouterLimits = Field(RouterLimits(), description="Bounds of the router.")
    timeouts: RouterTimeouts = Field(RouterTimeouts(), description="Timeouts of the router.")
    access_log: bool = Field(
        False,
        description="Write a JSON line for each request to the router's standard output, without prompts and keys.",
    )
    usage_log: bool = Field(
        False,
        description="Write JSON lines with what each tenant used of each model to the router's standard output, every "
        "ten seconds.",
    )
    allowed_request_fields: tuple[RequestField, ...] = Field(
        (),
        strict=False,
        max_length=64,
        description="Request fields that the router lets pass although they are dangerous or unknown.",
    )
    sort_tools: bool = Field(
        False,
        description="Sort the tools of each request by name, and the keys of their JSON, before the engine gets them. "
        "Clients that send them in changing order then keep their cached prefix.",
    )
    rules: ClassVar = (
        Rule(
            at="gatewayRef",
            must="may not be set together with other fields of router: exactly one of an own router and a gateway",
            cel=_GATEWAY_ALONE,
            reads=("gateway_ref",),
            holds=_gateway_alone,
            written=_OWN,
        ),
        Rule(
            at="endpointPicker.port",
            must="must be another one than service.port",
            cel="!has(self.endpointPicker) || "
            "self.endpointPicker.port != (has(self.service) ? self.service.port : 8000)",
            reads=("endpoint_picker", "service"),
            holds=lambda router: router.endpoint_picker is None or router.endpoint_picker.port != router.service.port,
        ),
    )
