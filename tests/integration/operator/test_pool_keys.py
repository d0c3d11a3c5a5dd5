"""A pool's own keys on a real API server: created once by an operator that may not read them."""

from __future__ import annotations

import base64
from typing import Any

from support.operator_fleet import children, made, pool

OURS = ("secrets", "-l", "inference.plumage.dev/pool=chat")


def test_keys_stay_and_are_recreated_after_deletion(fleet: Any, namespace: str) -> None:
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 1"))
    made(fleet, namespace)
    (secret,) = fleet.get(namespace, *OURS)["items"]
    assert {entry: len(base64.b64decode(value)) for entry, value in secret["data"].items()} == {
        "engine-key": 43, "salt-key": 43,
    }  # fmt: skip
    (owner,) = secret["metadata"]["ownerReferences"]
    assert owner["kind"] == "InferencePool"
    assert secret["metadata"]["name"] == f"chat-keys-{owner['uid'][:8]}"

    name = secret["metadata"]["name"]
    rotated = '{"stringData": {"engine-key": "new", "previous-engine-key": "old"}}'
    fleet.kubectl("-n", namespace, "patch", "secret", name, "-p", rotated)
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 2"))
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 2)
    (kept,) = fleet.get(namespace, *OURS)["items"]
    assert base64.b64decode(kept["data"]["engine-key"]) == b"new"

    fleet.kubectl("-n", namespace, "delete", "secret", name)
    fleet.kubectl("-n", namespace, "delete", "deployment", "chat-engine")
    fleet.until(lambda: fleet.get(namespace, *OURS).get("items"))
    (again,) = fleet.get(namespace, *OURS)["items"]
    assert again["metadata"]["name"] == name
    assert again["data"]["engine-key"] != secret["data"]["engine-key"]
