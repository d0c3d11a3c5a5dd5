"""The pool's own keys: a Secret that engines, agents and routers mount, and that the operator makes and can't read.

It may create Secrets, and has no other verb on them. So the Secret is made once, by a name that no other object has,
and is never changed: who changes its content rotates a key. One that `spec.keysRef` names is somebody else's.
"""

from __future__ import annotations

from typing import Any, Final

from plumage.settings import ENGINE_KEY, SALT_KEY, SecretFiles
from plumage_operator.children.scene import Child, Scene

__all__ = ["ENTRIES", "build_keys", "engine_variable", "key_files", "keys_mount", "keys_secret", "keys_volume"]

ENTRIES: Final = (ENGINE_KEY, SALT_KEY)
"""What the operator makes of it, each a random token."""
_FOLDER: Final = "/etc/plumage-pool"


def keys_secret(scene: Scene) -> str:
    """Its name. The uid is in it: what a deleted pool of the same name had is there until it is collected."""
    reference = scene.pool.spec.keys_ref
    if reference is not None:
        return reference.name
    return "-".join(part for part in (scene.metadata.name, "keys", scene.metadata.uid[:8]) if part)


def build_keys(scene: Scene) -> Child:
    """The Secret without its entries, which are not for a plan to choose."""
    secret = scene.child("v1", "Secret", "engine", {"type": "Opaque"})
    return {**secret, "metadata": {**secret["metadata"], "name": keys_secret(scene)}}


def key_files(scene: Scene) -> SecretFiles:
    """Where pods have them."""
    return SecretFiles.in_folder(f"{_FOLDER}{scene.mark}")


def keys_volume(scene: Scene, *, optional: bool = False) -> dict[str, Any]:
    """All entries, since `previous-engine-key` comes and goes. optional: a pod of several pools starts without it."""
    secret = {"secretName": keys_secret(scene), "defaultMode": 0o440}
    return {"name": f"keys-of-pool{scene.mark}", "secret": {**secret, "optional": True} if optional else secret}


def keys_mount(scene: Scene) -> dict[str, Any]:
    """For `keys_volume`."""
    return {"name": f"keys-of-pool{scene.mark}", "mountPath": f"{_FOLDER}{scene.mark}", "readOnly": True}


def engine_variable(scene: Scene) -> dict[str, Any]:
    """vLLM's key: an argument would stand in the pod's spec, and in every list of processes."""
    reference = {"name": keys_secret(scene), "key": ENGINE_KEY}
    return {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": reference}}
