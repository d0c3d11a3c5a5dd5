"""Checks of a cluster: CRDs, operator, permissions, pools and their integrations, gateways, external metrics, GPUs.

Each check stands alone: where one may not read an object, the others still report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from plumage.api.crd import FINGERPRINT, definition, definition_name
from plumage.api.v1alpha1 import InferenceGateway, InferencePool
from plumage.api.v1alpha1.gpus import names_gpu
from plumage.api_server import ApiServerError
from plumage.plural import counted
from plumage_cli.cluster.client import Cluster
from plumage_cli.cluster.custom_resources import FAULTS, condition, gateways, is_paused, one_pool, pools, root_causes
from plumage_cli.cluster.operators import operators, setting, settings
from plumage_cli.doctor.finding import Finding, Verdict
from plumage_cli.doctor.integrations import check_integrations
from plumage_cli.doctor.permissions import check_permissions
from plumage_cli.errors import CliError
from plumage_operator.permissions import LEASE, ROUTER_ROLE

__all__ = ["check_cluster"]

_EXTERNAL = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
_STALE_S = 60.0  # the Lease's holder renews it every few seconds
_INSTALL = "helm install plumage charts/plumage --namespace plumage-system --create-namespace"


def check_cluster(cluster: Cluster, pool: str | None, everywhere: bool, now: datetime) -> Iterator[Finding]:
    """All checks. pool: only this pool of the namespace. now: with a time zone."""
    try:
        version = cluster.get("/version").get("gitVersion", "of an unknown version")
    except ApiServerError as error:
        yield Finding(Verdict.BAD, str(error), "check that kubectl get namespaces works with this context")
        return
    yield Finding(Verdict.GOOD, f"the API server of {cluster.name} answers, {version}")
    yield from _seen("the CRDs", lambda: _crds(cluster))
    yield from _seen("the operator", lambda: _operators(cluster, now))
    yield from _seen("the pools", lambda: _pools(cluster, pool, everywhere))
    if pool is None:
        yield from _seen("the gateways", lambda: _gateways(cluster, everywhere))
    yield from _seen("the external metrics API", lambda: _external_metrics(cluster))


def _seen(what: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check, or why it could not read what it needs."""
    try:
        yield from list(check())
    except ApiServerError as error:
        refused = error.status in (401, 403)
        remedy = "use a context that may read it" if refused else "try again"
        yield Finding(Verdict.WARNING, f"can't read {what}: {error}", remedy)
    except CliError as error:
        yield Finding(Verdict.BAD, str(error))


def _crds(cluster: Cluster) -> Iterator[Finding]:
    for kind in (InferencePool, InferenceGateway):
        name = definition_name(kind)
        found = cluster.find(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        if found is None:
            yield Finding(
                Verdict.BAD, f"the CRD of {kind.__name__} is missing", f"kubectl apply -f crds/, or {_INSTALL}"
            )
            continue
        held = (found["metadata"].get("annotations") or {}).get(FINGERPRINT, "unknown")
        served = ", ".join(version["name"] for version in found["spec"]["versions"] if version["served"])
        ours = definition(kind)["metadata"]["annotations"][FINGERPRINT]
        if held == ours:
            yield Finding(
                Verdict.GOOD, f"the CRD of {kind.__name__} serves {served}, as this version of plumage expects"
            )
        else:
            what = (
                f"the CRD of {kind.__name__} serves {served}, from another version of plumage "
                f"(schema {held}, not {ours})"
            )
            yield Finding(
                Verdict.WARNING, what, "kubectl apply --server-side -f crds/ of the version that is installed"
            )


def _operators(cluster: Cluster, now: datetime) -> Iterator[Finding]:
    found = operators(cluster)
    if not found:
        yield Finding(Verdict.BAD, "no operator is installed: pools are not reconciled", _INSTALL)
    for operator in found:
        meta = operator["metadata"]
        where = f"{meta['namespace']}/{meta['name']}"
        version = (meta.get("labels") or {}).get("app.kubernetes.io/version", "of an unknown version")
        if (operator.get("status") or {}).get("readyReplicas"):
            yield Finding(Verdict.GOOD, f"operator {where} is up, {version}")
        else:
            yield Finding(
                Verdict.BAD, f"operator {where} is not ready", f"kubectl -n {meta['namespace']} describe pods"
            )
        yield from _lease(cluster, meta["namespace"], setting(operator, "PLUMAGE_LEASE", LEASE), now)
        watched = settings(operator, "PLUMAGE_WATCH_NAMESPACES")
        yield from check_permissions(cluster, operator, watched, setting(operator, "PLUMAGE_ROUTER_ROLE", ROUTER_ROLE))


def _lease(cluster: Cluster, namespace: str, name: str, now: datetime) -> Iterator[Finding]:
    lease = cluster.find(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
    spec = (lease or {}).get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        yield Finding(Verdict.WARNING, f"no operator holds the Lease {namespace}/{name} yet", "wait a few seconds")
        return
    idle = (now - datetime.fromisoformat(spec["renewTime"]).astimezone(UTC)).total_seconds()
    if idle > _STALE_S:
        what = (
            f"{spec['holderIdentity']} has not renewed the Lease {namespace}/{name} for {idle:.0f} s: "
            "pools are not reconciled"
        )
        yield Finding(Verdict.BAD, what, f"kubectl -n {namespace} logs deploy -l app.kubernetes.io/component=operator")
    else:
        yield Finding(Verdict.GOOD, f"{spec['holderIdentity']} is the active operator")


def _pools(cluster: Cluster, name: str | None, everywhere: bool) -> Iterator[Finding]:
    found = [one_pool(cluster, name)] if name is not None else pools(cluster, everywhere)
    if not found:
        place = "the cluster" if everywhere else f"namespace {cluster.namespace}"
        yield Finding(Verdict.GOOD, f"no pool in {place}")
    for pool in found:
        yield from _pool(pool)
    yield from _seen("the integrations of the pools", lambda: check_integrations(cluster, found, everywhere))
    yield from _seen("the nodes", lambda: _gpus(cluster, found))


def _pool(pool: Mapping[str, Any]) -> Iterator[Finding]:
    status, who = pool.get("status") or {}, _who("pool", pool)
    yield from _not_reconciled(who, pool, "ppool")
    if condition(pool, "Ready") is None:
        return
    causes = list(root_causes(pool))
    for cause in causes:
        serves = cause["type"] in FAULTS or cause["status"] == "True"
        summary = f"{who}: {cause['type']} is {cause['status']}, {cause.get('reason', '')}: {cause.get('message', '')}"
        yield Finding(Verdict.WARNING if serves else Verdict.BAD, summary.rstrip(": "))
    if not causes:
        ready, wanted = status.get("readyReplicas", 0), status.get("desiredReplicas", 0)
        yield Finding(Verdict.GOOD, f"{who} serves {status.get('model', '')} with {ready} of {wanted} replicas")


def _gateways(cluster: Cluster, everywhere: bool) -> Iterator[Finding]:
    for gateway in gateways(cluster, everywhere):
        who = _who("gateway", gateway)
        yield from _not_reconciled(who, gateway, "pgw")
        yield from _gateway(who, condition(gateway, "Ready"), condition(gateway, "Accepted"))


def _gateway(who: str, ready: Mapping[str, Any] | None, accepted: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Ready repeats Accepted's message where nothing is served. Part of a gateway may serve without being Accepted."""
    if ready is None:
        return
    message = ready.get("message", "")
    if ready.get("status") == "True":
        yield Finding(Verdict.GOOD, f"{who} serves: {message}")
    else:
        yield Finding(Verdict.BAD, f"{who}: Ready is {ready['status']}, {ready.get('reason', '')}: {message}")
    if accepted is not None and accepted.get("status") != "True" and accepted.get("message") != message:
        detail = f"{accepted.get('reason', '')}: {accepted.get('message', '')}"
        yield Finding(Verdict.WARNING, f"{who}: Accepted is {accepted['status']}, {detail}")


def _who(what: str, thing: Mapping[str, Any]) -> str:
    return f"{what} {thing['metadata']['namespace']}/{thing['metadata']['name']}"


def _not_reconciled(who: str, thing: Mapping[str, Any], short: str) -> Iterator[Finding]:
    """Why the operator does not reconcile it: paused, not seen yet, or not seen since its last change."""
    meta, seen = thing["metadata"], (thing.get("status") or {}).get("observedGeneration", 0)
    if is_paused(thing):
        remedy = f"kubectl -n {meta['namespace']} annotate {short} {meta['name']} inference.plumage.dev/paused-"
        yield Finding(Verdict.WARNING, f"{who} is paused: the operator changes nothing", remedy)
    if condition(thing, "Ready") is None:
        yield Finding(Verdict.BAD, f"{who}: no operator has reconciled it", "see the findings of the operator above")
    elif seen < meta.get("generation", 0):
        yield Finding(
            Verdict.WARNING, f"{who}: the operator has not seen its last change", "wait, or see the operator's log"
        )


def _gpus(cluster: Cluster, found: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    nodes = cluster.get("/api/v1/nodes")["items"]
    held = [_gpu_count((node.get("status") or {}).get("allocatable") or {}) for node in nodes]
    asked = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": _gpus_of(one) for one in found}
    most = max(asked.values(), default=0)
    summary = f"{counted(sum(held), 'GPU')} on {sum(count > 0 for count in held)} of {counted(len(nodes), 'node')}"
    if most > max(held, default=0):
        pool = max(asked, key=lambda name: asked[name])
        what = f"{summary}; a replica of {pool} needs {most} on one node"
        yield Finding(Verdict.BAD, what, "install the device plugin of your GPUs, or add nodes with enough GPUs")
    else:
        yield Finding(Verdict.GOOD, summary)


def _gpus_of(pool: Mapping[str, Any]) -> int:
    """GPUs of one replica: those of its resources, else one for each tensor-parallel rank; 0 of external engines."""
    engine = pool["spec"].get("engine") or {}
    if engine.get("runtime", "VLLM") != "VLLM" or engine.get("external") is not None:
        return 0
    resources = engine.get("resources") or {}
    limits = resources.get("limits") or {}
    if names_gpu([*limits, *(resources.get("requests") or {})]):
        return _gpu_count(limits)
    return int(engine.get("tensorParallelSize", 1))


def _gpu_count(amounts: Mapping[str, Any]) -> int:
    """GPUs among the resources of a node or container, such as `nvidia.com/gpu`.

    Kubernetes allows whole numbers only.
    """
    return sum(int(amount) for name, amount in amounts.items() if name.endswith("/gpu") and str(amount).isdigit())


def _external_metrics(cluster: Cluster) -> Iterator[Finding]:
    found = cluster.find(_EXTERNAL)
    if found is None:
        yield Finding(Verdict.GOOD, "nothing serves external.metrics.k8s.io; Plumage's own autoscaler does not need it")
        return
    service = found["spec"].get("service") or {}
    owner = f"{service.get('namespace', '?')}/{service.get('name', '?')}"
    conditions = (found.get("status") or {}).get("conditions") or []
    available: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Available"), {})
    if available.get("status") == "True":
        yield Finding(Verdict.GOOD, f"external.metrics.k8s.io is served by {owner}")
    else:
        reason = available.get("message", "Kubernetes has not asked it yet")
        what = f"external.metrics.k8s.io is served by {owner}, which does not answer: {reason}"
        yield Finding(Verdict.WARNING, what, "an HPA on these metrics does nothing until it answers")
