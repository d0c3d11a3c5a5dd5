"""Where a pod finds a model's files: in its image, on a volume, in an image volume, or downloaded at start. Pure.

| URI                | weights                               | tokenizer and template, for agent and router  |
|--------------------|---------------------------------------|-----------------------------------------------|
| `hf://org/name`    | vLLM downloads them into its cache    | an init container downloads them, without weights |
| `pvc://claim/path` | the claim, read-only                  | the same                                      |
| `oci://reference`  | an image volume                       | the same                                      |
| `file:///path`     | the engine's image                    | Plumage's image                               |
| `s3://bucket/path` | vLLM streams them                     | `model.tokenizer` names the place             |
| `builtin://name`   | random ones, written at start         | in Plumage's package                          |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from plumage.api.v1alpha1.pool import InferencePool
from plumage_operator.observed import digest
from plumage_operator.resources.context import PoolContext
from plumage_operator.resources.workload import FETCH, TERMINATION_MESSAGE, TMP_MOUNT, container_security, with_defaults

__all__ = ["ModelFiles", "adapter_files", "hub_variables", "tokenizer_files", "weights_files"]

_ROOT = "/models"

_TOKEN = "HF_TOKEN"

_HUB = ("HF_", "HUGGING_FACE_")  # variables of the engine's environment that a download needs too


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """path: for the process. volumes, mounts: for the pod. fetch: an init container that fills the volume."""

    path: str
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    fetch: tuple[dict[str, Any], ...] = field(default=())


def weights_files(context: PoolContext) -> ModelFiles:
    """What vLLM loads."""
    uri = context.pool.spec.model.uri
    if uri.startswith("hf://"):
        return ModelFiles(uri.removeprefix("hf://").rstrip("/"))
    if uri.startswith("s3://"):
        return ModelFiles(uri)
    if uri.startswith("builtin://"):
        return _random_weights(context)
    return _mounted(uri, "model")


def tokenizer_files(context: PoolContext) -> ModelFiles:
    """What agent and router read: tokenizer, configuration, chat template."""
    model = context.pool.spec.model
    uri = model.tokenizer or model.uri
    if uri.startswith("builtin://"):
        return ModelFiles(uri.rstrip("/"))
    if uri.startswith("hf://"):
        return _fetched(context, uri, model.revision if model.tokenizer is None else None)
    same = model.tokenizer in (None, model.uri)
    return _mounted(uri, ("model" if same else "tokenizer") + context.volume_suffix)


def adapter_files(pool: InferencePool) -> dict[str, ModelFiles]:
    """Returns the files of each adapter by its name.

    A volume is named after its adapter, not by number. Agents of older pods read the same list, and must not find
    another adapter's files at a path. Volumes and mounts are in the order of these names, so that another order of the
    adapters rolls nothing.
    """
    places: dict[str, ModelFiles] = {}
    for adapter in pool.spec.model.adapters:
        hub = adapter.uri.startswith("hf://")
        path = adapter.uri.removeprefix("hf://").rstrip("/")
        volume = f"adapter-{digest([adapter.name, adapter.uri])[:10]}"
        places[adapter.name] = ModelFiles(path) if hub else _mounted(adapter.uri, volume)
    return places


def hub_variables(context: PoolContext, *, token_only: bool = False) -> list[dict[str, Any]]:
    """Environment variables for a download from the hub: the token of `model.tokenRef`, and the engine's own hub
    variables.

    token_only: for the engine, which has its environment already.
    """
    given = [one for one in context.pool.spec.engine.env if one.name.startswith(_HUB)]
    variables = [] if token_only else [one.model_dump(exclude_none=True, by_alias=True) for one in given]
    reference = context.pool.spec.model.token_ref
    if reference is not None and not any(one.name == _TOKEN for one in given):
        variables.append(
            {"name": _TOKEN, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}
        )
    return variables


def _mounted(uri: str, volume: str) -> ModelFiles:
    parts = urlsplit(uri)
    mount = {"name": volume, "mountPath": f"{_ROOT}/{volume}", "readOnly": True}
    if parts.scheme == "pvc":
        claim = {"name": volume, "persistentVolumeClaim": {"claimName": parts.netloc, "readOnly": True}}
        return ModelFiles(f"{_ROOT}/{volume}{unquote(parts.path)}".rstrip("/"), (claim,), (mount,))
    if parts.scheme == "oci":
        image = {"name": volume, "image": {"reference": uri.removeprefix("oci://"), "pullPolicy": "IfNotPresent"}}
        return ModelFiles(f"{_ROOT}/{volume}", (image,), (mount,))
    return ModelFiles(unquote(parts.path))


def _random_weights(context: PoolContext) -> ModelFiles:
    """The built-in model that vLLM can serve. The engine's image has torch, which writes it."""
    folder = f"{_ROOT}/model"
    mount = {"name": "model", "mountPath": folder}
    fetch = {
        "name": "weights",
        "image": context.pool.spec.engine.image or context.config.engine_image,
        "imagePullPolicy": context.config.pull_policy,
        "command": ["python3", "-m", "plumage_engine.vllm.tiny_model", f"{folder}/tiny-llama"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": with_defaults(context.pool.spec.model.fetch_resources, FETCH),
        "volumeMounts": [mount, TMP_MOUNT],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
    }
    return ModelFiles(f"{folder}/tiny-llama", ({"name": "model", "emptyDir": {}},), (mount,), (fetch,))


def _fetched(context: PoolContext, uri: str, revision: str | None) -> ModelFiles:
    name = f"tokenizer{context.volume_suffix}"
    folder = f"{_ROOT}/{name}"
    mount = {"name": name, "mountPath": folder}
    fetch = {
        "name": name,
        "image": context.config.image,
        "imagePullPolicy": context.config.pull_policy,
        "command": ["python3", "-m", "plumage_engine.fetch", f"--uri={uri}", f"--to={folder}"]
        + ([f"--revision={revision}"] if revision else []),
        "env": [{"name": "HOME", "value": "/tmp"}, *hub_variables(context)],
        "resources": with_defaults(context.pool.spec.model.fetch_resources, FETCH),
        "volumeMounts": [mount, TMP_MOUNT],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
    }
    return ModelFiles(folder, ({"name": name, "emptyDir": {"sizeLimit": "1Gi"}},), (mount,), (fetch,))
