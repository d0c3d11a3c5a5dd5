"""The settings file of a router, for one pool or for several: one JSON file, which operator and local mode write.

A part of it may change while the router runs (`plumage_router.process.config_watch`). Keys that may change (API keys,
the admin key, the engines' key) are in files of their own, which are read again. The replicas come from a file or from
EndpointSlices. Every bound of the router is a field here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from plumage import defaults
from plumage.directory.client.file_options import with_file_options
from plumage.incluster.config import ApiServerConfig
from plumage.quantity import Quantity
from plumage.queueing import QueueOrder
from plumage.quotas import Limit
from plumage.routing import policy_options
from plumage.version_skew import Settings, refuse_newer

__all__ = [
    "MAX_POOLS",
    "NO_WAITING",
    "ROUTER_MEMORY",
    "AuthConfig",
    "BreakerConfig",
    "CordonedReplicas",
    "EndpointPickerConfig",
    "EndpointSlicesConfig",
    "EngineTlsConfig",
    "FlowControlConfig",
    "LimitsConfig",
    "ListenConfig",
    "MembershipConfig",
    "ModelConfig",
    "MultiPoolConfig",
    "NamedPoolConfig",
    "PolicyConfig",
    "PoolConfig",
    "PriorityClassConfig",
    "QuarantineConfig",
    "QuotaConfig",
    "RouterConfig",
    "TimeoutsConfig",
    "TlsConfig",
    "TracingConfig",
    "WaitQueueConfig",
    "share_for_bodies",
    "traces_url",
]

MAX_POOLS: Final = 64
"""Each pool has its own mirror, health checker and connections."""
ROUTER_MEMORY: Final = "256Mi"
"""The memory request of a router without one in the manifest."""

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


def traces_url(endpoint: str) -> str:
    """The address for spans of a collector, as in OpenTelemetry's specification of OTLP over HTTP."""
    return f"{endpoint.rstrip('/')}/v1/traces"


def share_for_bodies(memory: int, largest: int) -> int:
    """Bytes of request bodies that a router may hold: a quarter of its memory, and room for four of the largest body.

    A body is in memory twice while it waits for an engine, and reading one takes a few times its size.
    """
    return max(memory // 4, 4 * largest)


class TlsConfig(Settings):
    """PEM files, which are read again when they change. certificate_file: with the intermediate certificates."""

    certificate_file: Path
    key_file: Path


class EngineTlsConfig(Settings):
    """TLS to engines. PEM files, which are read again when they change.

    ca_file: the certificates to trust. server_name: the DNS name that engines' certificates must have, since engines
    are reached by their addresses. certificate_file, key_file: the router's own, for engines that ask for one.
    """

    ca_file: Path
    server_name: str = Field(min_length=1, max_length=253)
    certificate_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _both(self) -> EngineTlsConfig:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificateFile and keyFile must be set together")
        return self


class ListenConfig(Settings):
    """A TCP port, a Unix socket, or both. Port 0: the system chooses, and the log has the port.

    handover_fd: a socket to a supervisor that passes further, plain connections on (`plumage.handover`).
    metrics_port: serves the metrics without a key (`admin/metrics_port.py`), on the same host.
    tls: of the port. The Unix socket and the metrics port have none.
    """

    handover_fd: int | None = Field(default=None, ge=3)
    host: str = "127.0.0.1"
    port: int | None = Field(default=8000, ge=0, le=65_535)
    uds: str | None = None
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    backlog: Count = 4096
    tls: TlsConfig | None = Field(default=None, description="None: plain HTTP")

    @model_validator(mode="after")
    def _plain_handover(self) -> ListenConfig:
        if self.handover_fd is not None and self.tls is not None:
            raise ValueError("handoverFd can't be given with tls: a supervisor passes plain connections on")
        return self


class TracingConfig(Settings):
    """Traces of requests (`plumage_router.proxy.tracing`).

    endpoint: URL of an OpenTelemetry collector (OTLP over HTTP). service: the name under which the router is shown.
    """

    endpoint: str = Field(min_length=1)
    sampling_rate_per_million: int = Field(ge=0, le=1_000_000)
    service: str = Field(min_length=1)

    @property
    def url(self) -> str:
        """Where spans are posted."""
        return traces_url(self.endpoint)


class EndpointSlicesConfig(Settings):
    """The replicas are the pods behind a Service.

    cordoned_file: of `CordonedReplicas`. Without the file no pod is cordoned.
    """

    namespace: str = Field(min_length=1, max_length=63)
    service: str = Field(min_length=1, max_length=63)
    cordoned_file: Path | None = None


class CordonedReplicas(Settings, extra="ignore"):
    """The file of a router's ConfigMap with the pods that get no new request: `{"cordoned": ["POD", …]}`."""

    cordoned: tuple[str, ...]


class MembershipConfig(Settings):
    """The source of the replicas in a cluster."""

    endpoint_slices: EndpointSlicesConfig


class ModelConfig(Settings):
    """name: the base model, which seeds every chunk chain. aliases: other names of it for clients.

    adapters: LoRA names; each has its own chain. adapter_slots: how many of them an engine computes with at a time.
    model_folder: template and tokenizer.
    max_length: the engines' limit for prompt and answer together, in tokens, if it differs from the model's own.
    cache_tokens: the size of an engine's KV cache, since nothing longer can be served.
    """

    name: str = Field(min_length=1)
    model_folder: str
    adapters: tuple[str, ...] = ()
    adapter_slots: int = Field(defaults.ADAPTER_SLOTS, ge=1)
    aliases: tuple[str, ...] = ()
    max_length: Count | None = None
    cache_tokens: Count | None = None
    allow_media: bool = Field(default=False, description="let media URLs pass; the engine will fetch them")


class PolicyConfig(Settings):
    """options: the arguments of the policy's constructor (see `plumage.routing`)."""

    name: str = defaults.ROUTING_POLICY
    options: dict[str, Any] = Field(default_factory=dict)
    lbgr: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options", "lbgr")
    @classmethod
    def _known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        refuse_newer(value, policy_options(info.data.get("name", "")), info)
        return value


class AuthConfig(Settings):
    """Without api_keys_file every client is admitted. Without admin_key_file the admin routes are closed.

    callers: full names of service accounts that may read the fleet report, and nothing else.
    `http/auth.py` describes the files.
    """

    callers: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    admin_key_file: Path | None = None


class LimitsConfig(Settings):
    """The bounds of one router.

    Memory is the sum of these:

    - connections x header bytes;
    - twice `max_buffered_bytes`, since each body has a rendered prompt;
    - a few times `max_body_bytes` while one body is parsed;
    - 8 MiB of earlier prompts for each pool.

    max_attempts: replicas tried for one request, including unreachable ones.
    max_failed_replicas: replicas that may fail after they got the request (lost connection, 5xx, silence). Then the
    request may be the cause, and no other replica gets it.
    max_handshakes: connections whose TLS handshake has not ended. They do not count in `max_connections`.
    """

    max_connections: Count = defaults.MAX_CONNECTIONS
    max_handshakes: Count = 1_024
    max_in_flight: Count = defaults.MAX_IN_FLIGHT
    max_body_bytes: Count = int(Quantity(defaults.MAX_BODY_BYTES))
    max_buffered_bytes: Count = share_for_bodies(int(Quantity(ROUTER_MEMORY)), int(Quantity(defaults.MAX_BODY_BYTES)))
    max_header_bytes: Count = 32 * 1024
    max_headers: Count = 100
    max_pipelined: Count = 16
    max_idle_per_replica: Count = 256
    max_attempts: Count = 4
    max_failed_replicas: Count = 2
    max_directory_chunks: Count = 1_000_000


class WaitQueueConfig(Settings):
    """Requests that wait while no replica is available: their number (0: they are refused at once), and seconds."""

    max_requests: int = Field(ge=0, le=100_000)
    max_seconds: Seconds


NO_WAITING = WaitQueueConfig(max_requests=0, max_seconds=1)
"""The default, which local mode uses: a request without an available replica is refused at once."""


class TimeoutsConfig(Settings):
    """Seconds.

    first_byte, idle: to the first bytes of a stream, and between two. Other answers are bounded by `request` only.
    leave: from SIGTERM until the router stops accepting. In a cluster kube-proxy needs some seconds to notice.
    """

    handshake: Seconds = 10.0
    header: Seconds = 10.0
    body: Seconds = 60.0
    keep_alive: Seconds = 75.0
    write: Seconds = 60.0
    connect: Seconds = float(defaults.CONNECT_SECONDS)
    first_byte: Seconds = float(defaults.FIRST_BYTE_SECONDS)
    idle: Seconds = float(defaults.IDLE_SECONDS)
    request: Seconds = 3_600.0
    probe: Seconds = 2.0
    probe_interval: Seconds = 1.0
    leave: float = Field(default=0.0, ge=0, le=600)
    drain: Seconds = float(defaults.DRAIN_SECONDS)
    pending_owner: Seconds = float(defaults.PENDING_OWNER_SECONDS)


class BreakerConfig(Settings):
    """A replica that failed `failures` times in a row gets no requests: first for `base` seconds, at most for `cap`."""

    failures: Count = 3
    base: Seconds = 0.5
    cap: Seconds = 15.0


class QuarantineConfig(Settings):
    """Request bodies that engines failed on (`request/quarantine.py`).

    strikes: replicas that may fail on a body before it is refused. seconds, cap: the first and the longest quarantine.
    memory: seconds without a strike until a body is forgotten. bodies: the number that is remembered.
    """

    strikes: Count = 2
    seconds: Seconds = 30.0
    cap: Seconds = 3_600.0
    memory: Seconds = 600.0
    bodies: Count = 4_096


class QuotaConfig(Settings):
    """The limits of one tenant over all routers of the pool; tenant `*`: of each one without an entry.

    models: that it may ask for; null for all.
    """

    tenant: str = Field(min_length=1)
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    tokens_per_day: Count | None = None
    concurrent_requests: Count | None = None
    models: tuple[str, ...] | None = None

    def limits(self) -> dict[Limit, int]:
        """The limits that are set."""
        given = {
            Limit.REQUESTS_PER_MINUTE: self.requests_per_minute,
            Limit.TOKENS_PER_MINUTE: self.tokens_per_minute,
            Limit.TOKENS_PER_DAY: self.tokens_per_day,
            Limit.CONCURRENT_REQUESTS: self.concurrent_requests,
        }
        return {kind: limit for kind, limit in given.items() if limit is not None}


class PriorityClassConfig(Settings):
    """A class of requests. objective: seconds to the first token. tenants: who may use it; empty for all."""

    name: str = Field(min_length=1)
    weight: float = Field(gt=0)
    objective: Seconds | None = None
    tenants: tuple[str, ...] = ()


class FlowControlConfig(Settings):
    """The queue of requests that no replica has room for (`proxy/flow_control.py`).

    engine_queue: seconds that a request may wait in an engine. order: of a tenant's requests. classes: the first is
    that of requests that name none.
    """

    max_requests: Count
    max_seconds: Seconds
    engine_queue: Seconds
    order: QueueOrder = defaults.QUEUE_ORDER
    classes: tuple[PriorityClassConfig, ...] = Field(min_length=1)


class PoolConfig(Settings):
    """The settings of one pool. Set exactly one of membership_file and membership.

    directory_url: null for no directory; the router then knows only its own requests. directory_username,
    directory_password_file (read at each connection) and directory_ca_file belong to it.
    api_server: of the cluster, for `membership` and `auth.callers`.
    engine_api_key_file: the key that engines ask for. previous_engine_api_key_file: the key of engines that were not
    restarted since a change; the file may be missing.
    salt_key_file: the key for tenants' cache salts; needed with `auth.api_keys_file`.
    engine_tls: for replicas with an https URL. Without it their certificates are not verified.
    """

    pool: str = Field(min_length=1)
    model: ModelConfig
    membership_file: Path | None = None
    membership: MembershipConfig | None = Field(default=None, validate_default=True)
    api_server: ApiServerConfig = ApiServerConfig()
    directory_url: str | None = None
    directory_username: str | None = None
    directory_password_file: Path | None = None
    directory_ca_file: Path | None = None
    policy: PolicyConfig = PolicyConfig()
    shadow_policy: PolicyConfig | None = Field(default=None, description="decides too, and sends nothing")
    limits: LimitsConfig = LimitsConfig()
    wait_queue: WaitQueueConfig = Field(default=NO_WAITING, alias="hold")  # the name in files, as of older versions
    timeouts: TimeoutsConfig = TimeoutsConfig()
    breaker: BreakerConfig = BreakerConfig()
    quarantine: QuarantineConfig = QuarantineConfig()
    quotas: tuple[QuotaConfig, ...] = Field(default=(), description="of tenants, over all routers (`proxy/quotas.py`)")
    flow_control: FlowControlConfig | None = Field(default=None, description="None: engines get all requests at once")
    access_log: bool = Field(default=False, description="a JSON line for each request, on standard output")
    usage_log: bool = Field(default=False, description="JSON lines with tenants' use, on standard output")
    allowed_request_fields: tuple[str, ...] = Field(
        default=(),
        description="fields that are allowed although they are forbidden or unknown (`request/forbidden_fields.py`)",
    )
    sort_tools: bool = Field(default=False, description="sort tools and the keys of their JSON (`request/tools.py`)")
    engine_api_key_file: Path | None = None
    previous_engine_api_key_file: Path | None = None
    salt_key_file: Path | None = None
    engine_tls: EngineTlsConfig | None = None
    seed: int | None = Field(default=defaults.SEED, description="seed of the policy's randomness; null draws one")
    audit_size: Count = 4_096

    @property
    def directory(self) -> str | None:
        """The directory's complete URL. It contains the paths of secret files, not their content."""
        if self.directory_url is None:
            return None
        return with_file_options(
            self.directory_url, self.directory_username, self.directory_password_file, self.directory_ca_file
        )

    @field_validator("membership")
    @classmethod
    def _one_source(cls, value: MembershipConfig | None, info: ValidationInfo) -> MembershipConfig | None:
        """Validates a field rather than the model, so that its error is reported with those of other fields."""
        if (info.data.get("membership_file") is None) == (value is None):
            raise ValueError("exactly one of membershipFile and membership must be set")
        return value


class EndpointPickerConfig(Settings):
    """A port of the router's host that chooses replicas for Envoy (`plumage_router.extproc`). 0: the system chooses it.

    fallbacks: further endpoints that Envoy gets, for its own retries.
    """

    port: int = Field(ge=0, le=65_535)
    fallbacks: int = Field(default=0, ge=0, le=8)


class RouterConfig(PoolConfig):
    """The whole file of the router of one pool."""

    listen: ListenConfig = ListenConfig()
    router_id: str | None = Field(default=None, description="name of this router among its peers; default host and pid")
    auth: AuthConfig = AuthConfig()
    tracing: TracingConfig | None = Field(default=None, description="None: no traces")
    endpoint_picker: EndpointPickerConfig | None = Field(default=None, description="None: there is none")


class NamedPoolConfig(PoolConfig):
    """A pool, and the model names that requests to it may have, including its adapters."""

    names: tuple[str, ...] = Field(min_length=1)


class ShareConfig(Settings):
    """A pool's share of a model's conversations, relative to the others'. With 0 it gets none, but for those whose
    responses it stores."""

    pool: str = Field(min_length=1)
    weight: int = Field(1, ge=0, le=1_000_000)


class RequestMirrorConfig(Settings):
    """A pool that gets copies of a model's requests, of so many percent of its conversations."""

    pool: str = Field(min_length=1)
    percent: int = Field(100, ge=0, le=100)


class SharedModelConfig(Settings):
    """A model name that several pools serve, or that has a fallback or a mirror.

    fallback: the model that answers while none of the pools has a replica.
    request_mirror: the pool that gets copies of its requests.

    A pool that is not in the file counts as away, and so does a fallback that is no model.
    """

    name: str = Field(min_length=1)
    pools: tuple[ShareConfig, ...] = Field(min_length=1)
    fallback: str | None = None
    request_mirror: RequestMirrorConfig | None = None

    @field_validator("pools")
    @classmethod
    def _some_weight(cls, pools: tuple[ShareConfig, ...]) -> tuple[ShareConfig, ...]:
        if not any(share.weight for share in pools):
            raise ValueError("a pool must have a weight above 0")
        if len({share.pool for share in pools}) < len(pools):
            raise ValueError("a pool is there twice")
        return pools


class MultiPoolConfig(Settings):
    """The whole file. gateway: the name of the InferenceGateway.

    shared_models: any other name leads to the pool that has it.
    limits, timeouts: of client connections; `maxInFlight` is for all pools together. Each pool has its own as well.
    """

    gateway: str = Field(min_length=1)
    listen: ListenConfig = ListenConfig()
    router_id: str | None = None
    auth: AuthConfig = AuthConfig()
    api_server: ApiServerConfig = ApiServerConfig()
    access_log: bool = False
    tracing: TracingConfig | None = Field(default=None, description="None: no traces")
    limits: LimitsConfig = LimitsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    pools: tuple[NamedPoolConfig, ...] = Field(default=(), max_length=MAX_POOLS)
    shared_models: tuple[SharedModelConfig, ...] = ()

    @model_validator(mode="after")
    def _unique(self) -> MultiPoolConfig:
        shared = [model.name for model in self.shared_models]
        own = (name for name in self._model_names() if name not in shared)
        for what, names in (("pool", self._pool_names()), ("model", own), ("shared model", iter(shared))):
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise ValueError(f"pools: the {what} {', '.join(sorted(twice))} is there twice")
        return self

    def _pool_names(self) -> Iterator[str]:
        return (pool.pool for pool in self.pools)

    def _model_names(self) -> Iterator[str]:
        return (name for pool in self.pools for name in pool.names)
