"""The container of vLLM: its flags, its environment, the folders that it writes to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plumage import settings
from plumage.api.v1alpha1.gpus import GPU, is_gpu, names_gpu
from plumage.api.v1alpha1.quantity import Quantity
from plumage.cluster import ENGINE_PORT
from plumage.settings.vllm import ROUTES
from plumage_operator.resources.context import PoolContext
from plumage_operator.resources.model_files import adapter_files, hub_variables, weights_files
from plumage_operator.resources.settings import ALL_ADDRESSES, PLUGIN_KEY, engine_sockets, engine_variable
from plumage_operator.resources.workload import ResourceDefaults, memory_volume, scratch_volume, with_defaults

__all__ = ["SHUTDOWN_SECONDS", "vllm_container", "vllm_volumes"]

SHUTDOWN_SECONDS: Final = 15
"""For requests that are still in flight after the drain; below the 30 s by which the grace period exceeds the drain."""

_CACHE = "/var/cache/vllm"  # hostMemory.disk.path is beside it by default

_GIB = 1 << 30


def vllm_container(context: PoolContext) -> dict[str, Any]:
    """The fields that differ from the simulator's container: command, arguments, environment, mounts, resources."""
    return {
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": [*_flags(context)],
        "env": _environment(context),
        "volumeMounts": [*weights_files(context).mounts, *_adapter_mounts(context), *_own_mounts(context)],
        "resources": _resources(context),
    }


def vllm_volumes(context: PoolContext) -> list[dict[str, Any]]:
    """The volumes of `vllm_container`."""
    engine = context.pool.spec.engine
    cache, volumes = engine.model_cache, [*weights_files(context).volumes]
    volumes += [volume for place in adapter_files(context).values() for volume in place.volumes]
    if cache.claim_name is not None:
        volumes.append(_claim("hub", cache.claim_name))
    else:
        volumes.append(scratch_volume("hub", None if cache.size_limit is None else str(cache.size_limit)))
    if (shared := _shared_memory(context)) is not None:
        volumes.append(memory_volume("shm", str(shared)))
    if engine.host_memory is not None and (disk := engine.host_memory.disk) is not None:
        own = scratch_volume("disk", str(disk.capacity))
        volumes.append(own if disk.claim_name is None else _claim("disk", disk.claim_name))
    return [*volumes, scratch_volume("cache", None)]


def _flags(context: PoolContext) -> list[str]:
    model = context.pool.spec.model
    flags = settings.vllm_flags(
        context.pool,
        engine_sockets(context),
        model=weights_files(context).path,
        host=ALL_ADDRESSES,
        port=ENGINE_PORT,
        shutdown_seconds=SHUTDOWN_SECONDS,
        adapters={name: place.path for name, place in adapter_files(context).items()},
    )
    own = len(flags) - len(context.pool.spec.engine.args)  # spec.engine.args stay last, because the last one wins
    more = [f"--revision={model.revision}"] if model.revision and model.uri.startswith("hf://") else []
    if model.uri.startswith("s3://"):
        more.append("--load-format=runai_streamer")
    return [*flags[:own], *more, *flags[own:]]


def _environment(context: PoolContext) -> list[dict[str, Any]]:
    """The environment.

    A read-only root filesystem needs every cache on a volume. The plugin's settings come from the ConfigMap, so that
    settings which may change live change no pod.
    """
    plugin = {"configMapKeyRef": {"name": context.name("engine"), "key": PLUGIN_KEY}}
    folders = {
        "HOME": _CACHE,
        "XDG_CACHE_HOME": _CACHE,
        "VLLM_CACHE_ROOT": f"{_CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/inductor",
        "FLASHINFER_WORKSPACE_BASE": _CACHE,
        "HF_HOME": "/models/hub",
        "VLLM_PLUGINS": ROUTES,
        "VLLM_NO_USAGE_STATS": "1",
    }
    if not context.pool.spec.model.uri.startswith("hf://"):
        folders["HF_HUB_OFFLINE"] = "1"
    theirs = {one.name for one in context.pool.spec.engine.env}
    own = [{"name": name, "value": value} for name, value in folders.items() if name not in theirs]
    given = [one.model_dump(exclude_none=True, by_alias=True) for one in context.pool.spec.engine.env]
    ours = [{"name": "PLUMAGE_VLLM", "valueFrom": plugin}, engine_variable(context)]
    return [*own, *ours, *hub_variables(context, token_only=True), *given]


def _adapter_mounts(context: PoolContext) -> list[dict[str, Any]]:
    return [mount for place in adapter_files(context).values() for mount in place.mounts]


def _own_mounts(context: PoolContext) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "hub", "mountPath": "/models/hub"},
        {"name": "cache", "mountPath": _CACHE},
    ]
    if _shared_memory(context) is not None:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    memory = context.pool.spec.engine.host_memory
    if memory is not None and memory.disk is not None:
        mounts.append({"name": "disk", "mountPath": memory.disk.path})
    return mounts


def _shared_memory(context: PoolContext) -> int | None:
    """Bytes of /dev/shm, or None.

    The manifest's value or what several GPUs need, plus the host memory tier, which vLLM maps there.
    """
    engine = context.pool.spec.engine
    size = int(engine.shared_memory) if engine.shared_memory is not None else 0
    if engine.shared_memory is None and engine.tensor_parallel_size > 1:
        size = _GIB
    tier = engine.host_memory
    if tier is not None and tier.capacity is not None:
        size = max(size, _GIB // 4) + int(tier.capacity)
    return size or None


def _resources(context: PoolContext) -> dict[str, Any]:
    """The manifest's resources, plus the GPUs of a replica if the manifest names none.

    Only the model's owner knows what it needs. A limit without a request is also the request, as in Kubernetes.
    """
    engine = context.pool.spec.engine
    given = engine.resources
    resources = with_defaults(given, _defaults(context))
    requests = {
        name: one for name, one in resources["requests"].items() if name in given.requests or name not in given.limits
    }
    limits = dict(resources["limits"])
    if not names_gpu([*given.requests, *given.limits]):
        limits[GPU] = str(engine.tensor_parallel_size)
    return {"requests": _without_zero_gpus(requests), "limits": _without_zero_gpus(limits)}


def _defaults(context: PoolContext) -> ResourceDefaults:
    """A worker for each GPU, with its CUDA context, compiled graphs and a shard that is being loaded.

    /dev/shm counts as memory. The limit is wide: it bounds a leak, and does not keep a model from loading.
    """
    shared = _shared_memory(context) or 0
    workers = context.pool.spec.engine.tensor_parallel_size
    return ResourceDefaults("1", str(4 * _GIB + shared), str(32 * _GIB * workers + shared))


def _without_zero_gpus(amounts: Mapping[str, str]) -> dict[str, str]:
    """Without GPUs of amount 0: a pod asks for none by not naming them."""
    return {name: amount for name, amount in amounts.items() if Quantity(amount).value or not is_gpu(name)}


def _claim(volume: str, claim: str) -> dict[str, Any]:
    return {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
