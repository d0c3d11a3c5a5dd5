"""What a router is told: one JSON file, validated at once. Some of it may change while it runs (`live.py`).

Keys that may be rotated (API keys, the admin key, the engines' key) are files, read again when they change; the
replicas are a file too (`membership.py`), or a Service's EndpointSlices (`slices.py`). Every bound the router holds is
a field here. Of an operator's file, which may be a version newer, unknown fields are passed over (`plumage.newer`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from plumage import defaults
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.quantity import Quantity
from plumage.api.v1alpha1.router import RouterLimits
from plumage.directory.credentials import with_files
from plumage.errors import ConfigurationError
from plumage.incluster.config import ApiServerConfig
from plumage.newer import Settings, refuse_newer
from plumage.routing import policy_options
from plumage.settings.router import body_memory

__all__ = [
    "AuthConfig",
    "BreakerConfig",
    "EndpointSlicesConfig",
    "HoldConfig",
    "LimitsConfig",
    "ListenConfig",
    "MembershipConfig",
    "ModelConfig",
    "PolicyConfig",
    "PoolConfig",
    "QuarantineConfig",
    "RouterConfig",
    "Section",
    "TimeoutsConfig",
    "load_config",
    "read_config",
]

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Read = TypeVar("_Read", bound=Settings)


class Section(Settings):
    """A part of a router's file: unknown fields are refused, names are spelt as in JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class ListenConfig(Section):
    """A TCP port, a Unix socket, or both. Port 0 lets the system choose; the choice is logged. fd: a listening TCP
    socket that the parent process holds open, in place of the port: connections wait in it for the next router.
    metrics_port: serves the metrics without a key (`scrape.py`), on the same host."""

    fd: int | None = Field(default=None, ge=3)
    host: str = "127.0.0.1"
    port: int | None = Field(default=8000, ge=0, le=65_535)
    uds: str | None = None
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    backlog: Count = 4096


class EndpointSlicesConfig(Section):
    """The replicas are the pods behind a Service. cordoned_file: `{"cordoned": ["POD", …]}`, pods that get no new
    request, written by the operator into the router's ConfigMap; one that is missing cordons nobody."""

    namespace: str = Field(min_length=1, max_length=63)
    service: str = Field(min_length=1, max_length=63)
    cordoned_file: Path | None = None


class MembershipConfig(Section):
    """Where the replicas are told, in a cluster."""

    endpoint_slices: EndpointSlicesConfig


class ModelConfig(Section):
    """`name` is the base model: it seeds every chunk chain. `aliases` are other names clients may use for it;
    `adapters` are LoRA names, each with a chain of its own. `model_folder` holds template and tokenizer. `max_length`:
    the engines' longest prompt and answer together, in tokens, where it is not the model's own; `cache_tokens`: what an
    engine's KV cache holds, since nothing longer can be served."""

    name: str = Field(min_length=1)
    model_folder: str
    adapters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    max_length: Count | None = None
    cache_tokens: Count | None = None
    allow_media: bool = Field(default=False, description="let media URLs pass; the engine will fetch them")


class PolicyConfig(Section):
    """`options` go to the policy's constructor as they are (see `plumage.routing`)."""

    name: str = defaults.ROUTING_POLICY
    options: dict[str, Any] = Field(default_factory=dict)
    lbgr: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options", "lbgr")
    @classmethod
    def _known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        refuse_newer(value, policy_options(info.data.get("name", "")), info)
        return value


class AuthConfig(Section):
    """No `api_keys_file`: every client is let in. No `admin_key_file`: the admin endpoints and explanations are closed
    to everybody but `callers`, service accounts by their full names, who may read the fleet's figures alone. See
    `auth.py` for the files' form."""

    callers: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    admin_key_file: Path | None = None


class LimitsConfig(Section):
    """Memory is bounded by these: connections x header bytes, plus twice `max_buffered_bytes` of bodies (each with its
    rendered prompt), plus some times `max_body_bytes` while one is read. `max_attempts`: replicas tried for one
    request, those that could not be reached included. `max_failed_replicas`: replicas that may fail after they were
    sent the request (lost connection, 5xx, silence); then the request may be the cause, and it is sent to no other."""

    max_connections: Count = defaults.MAX_CONNECTIONS
    max_in_flight: Count = defaults.MAX_IN_FLIGHT
    max_body_bytes: Count = int(Quantity(defaults.MAX_BODY_BYTES))
    max_buffered_bytes: Count = body_memory(RouterLimits(), Resources())
    max_header_bytes: Count = 32 * 1024
    max_headers: Count = 100
    max_pipelined: Count = 16
    max_idle_per_replica: Count = 256
    max_attempts: Count = 4
    max_failed_replicas: Count = 2
    max_directory_chunks: Count = 1_000_000


class HoldConfig(Section):
    """Requests that wait while no replica can take them: at most so many (0: none, they are refused at once), each at
    most so long (s)."""

    max_requests: int = Field(ge=0, le=100_000)
    max_seconds: Seconds


NO_HOLD = HoldConfig(max_requests=0, max_seconds=1)
"""Of a file without the section, as local mode's: a request that no replica can take is refused at once."""


class TimeoutsConfig(Section):
    """Seconds. first_byte, idle: to the first piece of a stream and between two; an answer in one piece may take as
    long as it takes to compute, up to `request`. leave: from SIGTERM until nothing new is accepted; whoever sends here
    must have heard by then (in a cluster kube-proxy, some seconds)."""

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


class BreakerConfig(Section):
    """A replica that failed `failures` times in a row is left alone, first for `base` seconds, at most for `cap`."""

    failures: Count = 3
    base: Seconds = 0.5
    cap: Seconds = 15.0


class QuarantineConfig(Section):
    """Bodies that engines failed on (`quarantine.py`). strikes: replicas that a body may fail on before it is refused;
    seconds, cap: the first and the longest quarantine; memory: seconds without a strike until a body is forgotten;
    bodies: so many are remembered."""

    strikes: Count = 2
    seconds: Seconds = 30.0
    cap: Seconds = 3_600.0
    memory: Seconds = 600.0
    bodies: Count = 4_096


class PoolConfig(Section):
    """What a router must know of a pool. Exactly one of membership_file and membership. `directory_url` null means
    degraded on purpose: no cache knowledge but this router's own; its user, its password (read at each connection) and
    the CA to trust may be named beside it. api_server: where the cluster's is, for `membership` and `auth.callers`.
    engine_api_key_file: the key that engines ask for; previous_engine_api_key_file: the one that engines which were not
    restarted since may still have, and the file may be missing; salt_key_file: what tenants' cache salts are made with,
    needed where there is `auth.api_keys_file`."""

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
    limits: LimitsConfig = LimitsConfig()
    hold: HoldConfig = NO_HOLD
    timeouts: TimeoutsConfig = TimeoutsConfig()
    breaker: BreakerConfig = BreakerConfig()
    quarantine: QuarantineConfig = QuarantineConfig()
    access_log: bool = Field(default=False, description="a JSON line for each request, on standard output")
    allowed_request_fields: tuple[str, ...] = Field(
        default=(), description="fields that pass though they are forbidden or unknown (`forbidden.py`)"
    )
    engine_api_key_file: Path | None = None
    previous_engine_api_key_file: Path | None = None
    salt_key_file: Path | None = None
    seed: int | None = Field(default=defaults.SEED, description="seed of the policy's randomness; null draws one")
    audit_size: Count = 4_096

    @property
    def directory(self) -> str | None:
        """The directory's whole URL; it holds no secret of a file."""
        if self.directory_url is None:
            return None
        return with_files(
            self.directory_url, self.directory_username, self.directory_password_file, self.directory_ca_file
        )

    @field_validator("membership")
    @classmethod
    def _one_source(cls, value: MembershipConfig | None, info: ValidationInfo) -> MembershipConfig | None:
        """Of a field, so that it is told beside the mistakes of others."""
        if (info.data.get("membership_file") is None) == (value is None):
            raise ValueError("exactly one of membershipFile and membership must be set")
        return value


class RouterConfig(PoolConfig):
    """The whole file of a router of one pool."""

    listen: ListenConfig = ListenConfig()
    router_id: str | None = Field(default=None, description="name of this router among its peers; default host and pid")
    auth: AuthConfig = AuthConfig()


def load_config(path: Path) -> RouterConfig:
    """The file's content, or a ConfigurationError with every mistake in it."""
    return read_config(path, RouterConfig)


def read_config(path: Path, kind: type[_Read]) -> _Read:
    """As `load_config`, of a file of that kind."""
    try:
        return kind.told(from_json(path.read_bytes()), path.name)
    except OSError as error:
        raise ConfigurationError(f"cannot read the router's configuration {path}: {error.strerror}") from error
    except ValidationError as error:
        lines = (f"  - {'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(f"{path} is not a router configuration:\n" + "\n".join(lines)) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a router configuration:\n  - file: Invalid JSON: {error}") from error
