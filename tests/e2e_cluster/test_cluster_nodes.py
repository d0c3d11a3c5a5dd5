"""The test cluster has the features that other tests need."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import images, lifecycle
from cluster.errors import ClusterError
from support.kube_access import Access, until
from support.needs import missing

_BASE = "localhost/plumage-debian:bookworm"  # scripts/make_images.sh makes it with debootstrap
_DOCKERFILE = f"""\
FROM {_BASE}
RUN echo built > /built
COPY index.html /srv/index.html
WORKDIR /srv
USER 10001:10001
ENTRYPOINT ["python3", "-m", "http.server"]
CMD ["8000"]
"""
# A new Service's rules reach the nodes a moment after its pods are ready: until then a connection is refused.
_FETCH = """
import sys, time, urllib.error, urllib.request

def fetch(url, end=time.monotonic() + 60):
    while True:
        try:
            return urllib.request.urlopen(url, timeout=30).read().decode().strip()
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

for url in sys.argv[1:]:
    print(fetch(url))
"""
_POD = {
    "terminationGracePeriodSeconds": 1,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "web",
            "image": "localhost/plumage-test-hello:1",
            "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
    ],
}


@pytest.fixture
def namespace(access: Access) -> Iterator[str]:
    name = f"web-{uuid.uuid4().hex[:6]}"
    access.namespace(name)
    yield name
    access.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def hello(own: lifecycle.Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An image that buildah builds from a Dockerfile, on the nodes."""
    folder = tmp_path_factory.mktemp("hello")
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    (folder / "index.html").write_text("hello\n")
    build = ["buildah", "bud", "--isolation", "chroot", "--pull-never", "--ulimit", "nofile=20000:20000"]
    name = "localhost/plumage-test-hello:1"
    ran = subprocess.run([*build, "-t", name, str(folder)], capture_output=True, text=True, check=False)
    if ran.returncode:
        missing(
            f"buildah and {_BASE}", f"BASE=debootstrap TOOL=buildah make images IMAGES=plumage ({ran.stderr[-300:]})"
        )
    images.import_image(name, lifecycle.images_folder(), "buildah")


@pytest.mark.usefixtures("hello")
def test_pod_of_local_image_is_reachable_by_address_and_name(access: Access, namespace: str) -> None:
    labels = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _POD},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    access.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(deployment))
    access.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(service))
    access.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=300s")
    address = access.api.get("services", "web", namespace)["spec"]["clusterIP"]
    names = (address, "web", f"web.{namespace}", f"web.{namespace}.svc.cluster.local")
    fetched = access.inside(
        namespace, _FETCH, *(f"http://{name}/" for name in names), image="localhost/plumage-test-hello:1"
    )
    assert fetched.split() == ["hello"] * len(names)


@pytest.mark.usefixtures("hello")
def test_killed_container_restarts(access: Access, own: lifecycle.Cluster, namespace: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": _POD}
    access.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(pod))
    access.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/web", "--timeout=300s")
    own.kill_container(f"{namespace}/web", "web")

    def restarted() -> bool:
        (status,) = access.api.get("pods", "web", namespace)["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and status["ready"])

    until(restarted, "the container is there again, once restarted")
    with pytest.raises(ClusterError, match="no running container other"):
        own.kill_container(f"{namespace}/web", "other")


def test_missing_image_is_reported_as_by_a_registry(access: Access, namespace: str) -> None:
    spec = json.loads(json.dumps(_POD))
    spec["containers"][0]["image"] = "localhost/none:1"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lost"}, "spec": spec}
    access.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(pod))

    def reason() -> str:
        (status,) = access.api.get("pods", "lost", namespace)["status"].get("containerStatuses", [{}])
        return str(status.get("state", {}).get("waiting", {}).get("reason"))

    until(lambda: reason() in ("ErrImagePull", "ImagePullBackOff"), "the pull failed")


def test_entered_namespace_resolves_service_names(own: lifecycle.Cluster) -> None:
    command = own.enter(["python3", "-c", "import socket; print(socket.gethostbyname('kubernetes.default'))"])

    def resolved() -> str:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=Path("/"))
        return ran.stdout.strip()

    until(lambda: resolved() == "198.19.0.1", "kubernetes.default is resolved")
