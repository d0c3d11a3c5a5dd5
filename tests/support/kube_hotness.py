"""A pool's engines, and the hotness of their caches by their agents."""

from __future__ import annotations

import json

from support.kube_access import Access
from support.kube_install import Pool

__all__ = ["engines", "hotness"]

_ASK = """
import json, sys, urllib.request

def reported(address):
    request = urllib.request.Request(f"http://{address}:8081/v1/plumage/stats")
    request.add_header("Authorization", f"Bearer {sys.argv[1]}")
    return json.load(urllib.request.urlopen(request, timeout=60))["hotness"]

print(json.dumps({name: reported(address) for name, address in json.loads(sys.argv[2]).items()}))
"""


def engines(access: Access, pool: Pool) -> list[str]:
    """Engines that do not terminate, oldest first."""
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component=engine"
    pods = access.api.listed("pods", pool.namespace, chosen)
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def hotness(access: Access, pool: Pool) -> dict[str, float]:
    """The hotness that each engine's agent reports. The request has the token of a peer."""
    account = ("create", "token", f"{pool.name}-engine", "--audience=plumage")
    token = access.kubectl("-n", pool.namespace, *account).strip()
    addresses = {
        name: access.api.get("pods", name, pool.namespace)["status"]["podIP"] for name in engines(access, pool)
    }
    found: dict[str, float] = json.loads(access.inside(pool.namespace, _ASK, token, json.dumps(addresses)))
    return found
