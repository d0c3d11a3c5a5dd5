"""Fields of a manifest that have no effect. `plumage validate`, `up` and the condition Accepted report them.

They are not refused, since such a manifest may be stored already and serve."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.engine import EngineSpec
from plumage.cluster import child_name

__all__ = ["without_effect"]


def without_effect(pool: InferencePool) -> tuple[str, ...]:
    """Returns one sentence for each, beginning with the field's path."""
    return (*_client_namespaces(pool), *_published_pool(pool), *_engine_tls(pool), *_external_engines(pool))


def _client_namespaces(pool: InferencePool) -> Iterator[str]:
    """Reported, because the author may believe that the pool is closed to other namespaces."""
    gateway = pool.spec.router.gateway_ref
    if gateway is not None and pool.spec.network_policy.client_namespaces:
        yield (
            "spec.networkPolicy.clientNamespaces has no effect behind a gateway: every client that reaches the routers "
            f"of {gateway.name} reaches this pool. Require keys there (spec.auth of the gateway), or give the pool a "
            "router of its own"
        )


def _published_pool(pool: InferencePool) -> Iterator[str]:
    picker = pool.spec.router.endpoint_picker
    if picker is None or picker.inference_pool is None:
        return
    if pool.spec.network_policy.enabled and not picker.proxy_namespaces:
        yield (
            "spec.router.endpointPicker.inferencePool has no effect where network policies are enforced, because "
            "proxyNamespaces is empty: no gateway may reach the picker and the engines. Name the namespaces of the "
            "gateways' pods there"
        )


def _external_engines(pool: InferencePool) -> Iterator[str]:
    """An API server fills in defaults, so a field counts as set if it differs from its own."""
    engine, default = pool.spec.engine, EngineSpec()
    if engine.external is None:
        return
    names = [
        name for name in EngineSpec.model_fields if name not in ("env", "external")
    ]  # routers read env for the hub
    if unused := [to_camel(name) for name in names if getattr(engine, name) != getattr(default, name)]:
        yield (
            f"spec.engine.{', '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect with engine.external: "
            "the owner of the engines configures them"
        )


def _engine_tls(pool: InferencePool) -> Iterator[str]:
    """Reported, because a proxy without TLS to the engines gets no answer from them."""
    tls = pool.spec.engine.tls
    if tls is None or pool.spec.router.endpoint_picker is None:
        return
    name = f"{child_name(pool.metadata.name, 'engine')}.{pool.metadata.namespace}.svc"
    own = tls.client_secret_name
    client = "" if own is None else f", and to show them a certificate that ca.crt of {own} trusts"
    yield (
        "spec.engine.tls has no effect on the proxies of spec.router.endpointPicker, which connect to the engines "
        f"themselves: set them to trust ca.crt of {tls.secret_name} for the name {name}{client}"
    )
