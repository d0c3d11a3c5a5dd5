"""A pool's manifest → the settings file of its router."""

from __future__ import annotations

from pathlib import Path

from plumage import defaults
from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.exposure import EndpointPickerSpec, TracingSpec
from plumage.api.v1alpha1.flow_control import PoolFlowControlSpec
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.router import LbgrSpec, RouterLimits
from plumage.cluster import child_name
from plumage.quantity import Quantity
from plumage.settings import policies
from plumage.settings.addresses import DirectoryAddress
from plumage.settings.router_config import (
    NO_WAITING,
    ROUTER_MEMORY,
    AuthConfig,
    EndpointPickerConfig,
    EngineTlsConfig,
    FlowControlConfig,
    LimitsConfig,
    ListenConfig,
    MembershipConfig,
    ModelConfig,
    PolicyConfig,
    PriorityClassConfig,
    QuotaConfig,
    RouterConfig,
    TimeoutsConfig,
    TracingConfig,
    WaitQueueConfig,
    share_for_bodies,
)
from plumage.settings.secrets import SecretFiles

__all__ = ["body_memory", "router_settings", "tracing_config"]


def router_settings(
    pool: InferencePool,
    *,
    model_folder: str,
    directory: DirectoryAddress,
    listen: ListenConfig,
    membership: Path | MembershipConfig,
    auth: AuthConfig,
    secrets: SecretFiles | None,
    engine_tls: EngineTlsConfig | None = None,
    wait_queue: WaitQueueConfig = NO_WAITING,
    leave: float = 0.0,
    picker_port: int | None = None,
) -> RouterConfig:
    """Returns the settings of `python -m plumage_router`.

    membership: the source of the replicas, the path for a file of them. secrets: the files with the pool's own secrets;
    None if engines need no key and there are no tenants. leave: of `timeouts`. picker_port: where an endpoint picker
    listens; None: at the manifest's port.
    """
    spec = pool.spec.router
    return RouterConfig(
        listen=listen,
        pool=pool.metadata.name,
        model=_model(pool, model_folder),
        membership_file=membership if isinstance(membership, Path) else None,
        membership=membership if isinstance(membership, MembershipConfig) else None,
        directory_url=directory.url,
        directory_username=directory.username,
        directory_password_file=directory.password_file,
        directory_ca_file=directory.ca_file,
        policy=_policy(spec.policy, spec.lbgr),
        shadow_policy=None if spec.shadow_policy is None else _policy(spec.shadow_policy, spec.lbgr),
        auth=auth,
        engine_api_key_file=None if secrets is None else Path(secrets.engine_key),
        previous_engine_api_key_file=None if secrets is None else Path(secrets.previous_engine_key),
        salt_key_file=None if secrets is None else Path(secrets.salt_key),
        engine_tls=engine_tls,
        limits=_limits(pool),
        wait_queue=wait_queue,
        timeouts=_timeouts(pool, leave),
        access_log=spec.access_log,
        usage_log=spec.usage_log,
        endpoint_picker=_endpoint_picker(spec.endpoint_picker, picker_port),
        tracing=tracing_config(pool.spec.tracing, child_name(pool.metadata.name, "router")),
        allowed_request_fields=spec.allowed_request_fields,
        sort_tools=spec.sort_tools,
        quotas=tuple(QuotaConfig(**quota.model_dump()) for quota in pool.spec.quotas),
        flow_control=_flow_control(pool.spec.flow_control),
        seed=pool.spec.engine.simulator.seed,
    )


def body_memory(limits: RouterLimits, resources: Resources) -> int:
    """Bytes of request bodies that one router may hold, by its memory limit, else by its memory request."""
    if limits.body_memory is not None:
        return int(limits.body_memory)
    memory = resources.limits.get("memory") or resources.requests.get("memory") or Quantity(ROUTER_MEMORY)
    return share_for_bodies(int(memory), int(limits.max_body_bytes))


def tracing_config(spec: TracingSpec | None, service: str) -> TracingConfig | None:
    """service: the name under which the router is shown."""
    if spec is None:
        return None
    rate = spec.sampling_rate_per_million
    return TracingConfig(endpoint=spec.endpoint, sampling_rate_per_million=rate, service=service)


def _policy(name: str, lbgr: LbgrSpec) -> PolicyConfig:
    return PolicyConfig(name=name, lbgr=policies.lbgr(name, lbgr))


def _endpoint_picker(spec: EndpointPickerSpec | None, port: int | None) -> EndpointPickerConfig | None:
    if spec is None:
        return None
    return EndpointPickerConfig(port=spec.port if port is None else port, fallbacks=spec.fallbacks)


def _model(pool: InferencePool, folder: str) -> ModelConfig:
    model = pool.spec.model
    return ModelConfig(
        name=model.served_name,
        model_folder=folder,
        adapters=tuple(adapter.name for adapter in model.adapters),
        adapter_slots=model.adapter_slots,
        aliases=model.aliases,
        max_length=model.max_length,
        cache_tokens=_cache_tokens(pool),
    )


def _cache_tokens(pool: InferencePool) -> int | None:
    """The size of an engine's KV cache. For vLLM it is unknown before the engine runs."""
    if pool.spec.engine.runtime == "VLLM":
        return None
    simulator = pool.spec.engine.simulator
    return simulator.cache_blocks * simulator.block_size


def _limits(pool: InferencePool) -> LimitsConfig:
    limits = pool.spec.router.limits
    return LimitsConfig(
        max_body_bytes=int(limits.max_body_bytes),
        max_buffered_bytes=body_memory(limits, pool.spec.router.resources),
        max_connections=limits.max_connections,
        max_in_flight=limits.max_in_flight,
    )


def _flow_control(spec: PoolFlowControlSpec | None) -> FlowControlConfig | None:
    if spec is None:
        return None
    classes = (
        PriorityClassConfig(
            name=one.name,
            weight=one.weight,
            objective=None if one.ttft_milliseconds is None else one.ttft_milliseconds / 1000,
            tenants=one.tenants,
        )
        for one in spec.classes
    )
    return FlowControlConfig(
        max_requests=spec.max_requests,
        max_seconds=spec.max_seconds,
        engine_queue=spec.engine_queue_milliseconds / 1000,
        order=spec.order,
        classes=tuple(classes),
    )


def _timeouts(pool: InferencePool, leave: float) -> TimeoutsConfig:
    timeouts = pool.spec.router.timeouts
    return TimeoutsConfig(
        connect=timeouts.connect_seconds,
        first_byte=timeouts.first_byte_seconds,
        idle=timeouts.idle_seconds,
        pending_owner=_pending_owner(pool),
        leave=leave,
        drain=pool.spec.rollout.drain_timeout_seconds,
    )


def _pending_owner(pool: InferencePool) -> int:
    lbgr = pool.spec.router.lbgr
    if pool.spec.engine.external is None or "pending_owner_seconds" in lbgr.model_fields_set:
        return lbgr.pending_owner_seconds
    return defaults.UNREPORTED_OWNER_SECONDS
