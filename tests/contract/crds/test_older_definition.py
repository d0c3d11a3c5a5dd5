"""A status of a newer operator on an API server with an older definition.

With `crds.enabled=false` another program owns the definitions, and `helm upgrade` leaves them unchanged.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.api_only import ApiServer
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import load_kube_config
from support.crds import CRDS

from plumage_operator.cache.store import Store
from plumage_operator.controller.actions import WriteStatus
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.controller.perform import Performer
from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.errors import RefusedError

GROUP = "older.plumage.dev"
REPO = Path(__file__).parents[3]
NEWER = {"provenReplicas": 2, "adapters": [{"name": "sql", "replicas": 2}]}
STATUS = {"replicas": 3, "readyReplicas": 2, **NEWER}


@pytest.fixture(scope="module")
def older(api_server: ApiServer) -> Iterator[ApiServer]:
    """Our kind without the fields, in a group of its own, so that the shared definition stays unchanged."""
    definition = yaml.safe_load((CRDS / "inference.plumage.dev_inferencepools.yaml").read_text())
    definition["metadata"] = {"name": f"inferencepools.{GROUP}"}
    definition["spec"]["group"] = GROUP
    for name in ("shortNames", "categories"):
        definition["spec"]["names"].pop(name, None)
    (version,) = definition["spec"]["versions"]
    for name in NEWER:
        del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][name]
    api_server.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(definition))
    api_server.established()
    yield api_server
    api_server.kubectl("delete", "crd", definition["metadata"]["name"])


@pytest.fixture
async def api(older: ApiServer) -> AsyncIterator[KubeClient]:
    configuration = Configuration()
    await load_kube_config(config_file=str(older.kubeconfig), client_configuration=configuration, persist_config=False)
    async with KubeClient(configuration) as api:
        yield api


@pytest.fixture
def pool(older: ApiServer) -> dict[str, Any]:
    manifest = yaml.safe_load((REPO / "examples" / "minimal.yaml").read_text())
    manifest |= {"apiVersion": f"{GROUP}/v1alpha1", "metadata": {"name": "chat", "namespace": "default"}}
    end = time.monotonic() + 120.0  # the discovery document that kubectl reads is published a little later
    while (
        made := older.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(manifest), check=False)
    ).returncode:
        assert time.monotonic() < end, made.stderr
        time.sleep(0.5)
    return dict(json.loads(made.stdout))


async def test_unknown_status_fields_are_dropped_and_logged_once(
    api: KubeClient, pool: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RefusedError, match="field not declared in schema"):  # status 500, but no outage
        await api.write_status(pool, "inferencepools", STATUS)
    store = Store()
    performer = Performer(api, EventRecorder(api, lambda: 0.0, "one"), store)
    assert await performer.perform(pool, [WriteStatus(STATUS)]) == ()
    written = observed(store)
    assert written["status"] == {"replicas": 3, "readyReplicas": 2}
    assert await performer.perform(written, [WriteStatus(STATUS)]) == ()
    assert observed(store)["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"], (
        "the status is unchanged, so no watch event follows"
    )
    (line,) = [message for message in caplog.messages if "field not declared" in message]
    assert line.startswith("the definition of inferencepools is older than this operator")
    (refusal,) = await performer.perform(written, [WriteStatus({**STATUS, "replicas": "three"})])
    assert "status.replicas: expected numeric" in refusal.message, "other errors are still raised"


def observed(store: Store) -> Any:
    found = store.observe(("default", "chat"))
    assert found is not None
    return found.pool


async def test_child_with_an_unknown_field_is_refused(api: KubeClient) -> None:
    child = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat", "namespace": "default"}}
    with pytest.raises(RefusedError, match="nonsense: field not declared in schema"):
        await api.apply({**child, "spec": {"nonsense": 1}})
