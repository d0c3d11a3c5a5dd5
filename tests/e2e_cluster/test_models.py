"""Pools that serve a model from a volume, of a claim or of an image, and a pool with the image of
images/engine/Dockerfile.

Each volume has its own chat template, so that the number of a prompt's tokens shows which one an engine has read. The
claim's volume is on one node, so engine and router must run there. `own`: volumes and images are made on this machine.
The engine image has no vLLM (scripts/make_images.sh), so it runs a simulated engine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pytest
from cluster import images, lifecycle
from cluster.errors import ClusterError
from support.kube_access import Access
from support.kube_install import Pool, remove_pool
from support.needs import missing
from tokenizers import Tokenizer

from plumage.models import BUILTIN

NAMESPACE, NODE = "models", "node-1"
IMAGE = "localhost/plumage-test-model:1"
CLAIM, FOLDER = "weights", "released/v1"
_MESSAGES = [{"role": "user", "content": "Hello there, who are you?"}]
_ASK = """
import json, sys, time, urllib.error, urllib.request
body = {"model": sys.argv[2], "max_tokens": 4, "messages": json.loads(sys.argv[3])}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})

def ask(end=time.monotonic() + 60):
    while True:
        try:
            return urllib.request.urlopen(request, timeout=60).read().decode()
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # a new Service's rules reach the nodes a moment after its pods are ready
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

print(ask())
"""


@dataclass(frozen=True)
class Model:
    """A pool's `uri`, its folder as it is on this machine, and its engines' image if it has one."""

    uri: str
    folder: Path
    engine_image: str | None = None

    def prompt_tokens(self) -> int:
        """The number of tokens of _MESSAGES, by the folder's own template and tokenizer."""
        template = jinja2.Template((self.folder / "chat_template.jinja").read_text(), trim_blocks=True)
        bos = json.loads((self.folder / "tokenizer_config.json").read_text())["bos_token"]
        text = template.render(messages=_MESSAGES, add_generation_prompt=True, bos_token=bos)
        return len(Tokenizer.from_file(str(self.folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def models(access: Access, own: lifecycle.Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """The models by the name of their pool."""
    volume = tmp_path_factory.mktemp("volume")
    volume.chmod(0o755)  # pods do not run as root
    on_claim = _folder(volume / FOLDER, "You are read from a claim.")
    in_image = _folder(tmp_path_factory.mktemp("image") / "model", "An image is what you have been read from, it says.")
    _make_image(in_image)
    access.namespace(NAMESPACE)
    access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, _claim(volume))))
    return {
        "by-claim": Model(f"pvc://{CLAIM}/{FOLDER}", on_claim),
        "by-image": Model(f"oci://{IMAGE}", in_image),
        "engine-image": Model("builtin://tiny-chat", BUILTIN["tiny-chat"], _engine_image(access)),
    }


@pytest.fixture(scope="module")
def pools(access: Access, installed: None, models: dict[str, Model]) -> Iterator[dict[str, Pool]]:
    """All pools, applied together, and Ready."""
    manifests = [_manifest(name, model) for name, model in models.items()]
    made = {name: Pool(name, NAMESPACE, 0.0) for name in models}
    try:
        access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, manifests)))
        named = [f"inferencepool/{name}" for name in made]
        access.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", *named, "--timeout=300s")
        yield made
    finally:
        access.kubectl("-n", NAMESPACE, "delete", "inferencepools", *made, "--ignore-not-found", "--wait=false")
        for pool in made.values():
            remove_pool(access, pool)
        access.kubectl("-n", NAMESPACE, "delete", f"pvc/{CLAIM}", f"pv/{NAMESPACE}-{CLAIM}", "--timeout=60s")


@pytest.mark.parametrize("name", ["by-claim", "by-image", "engine-image"])
def test_chat_uses_template_of_model(
    access: Access, pools: dict[str, Pool], models: dict[str, Model], name: str
) -> None:
    expected = {name: model.prompt_tokens() for name, model in models.items()}
    assert len({*expected.values()}) == len(expected), "each template gives another number"
    url = f"http://{pools[name].host}:8000/v1/chat/completions"
    answer = json.loads(access.inside(NAMESPACE, _ASK, url, "tiny-chat", json.dumps(_MESSAGES)))
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == expected[name]


def test_pods_run_on_node_of_volume(access: Access, pools: dict[str, Pool]) -> None:
    every = [pod["spec"] for pod in _pods(access, pools["by-claim"])]
    claiming = [spec for spec in every if any("persistentVolumeClaim" in volume for volume in spec["volumes"])]
    assert len(claiming) == 2, "an engine and a router"
    assert {spec["nodeName"] for spec in claiming} == {NODE}


def test_engine_runs_from_engine_image(access: Access, pools: dict[str, Pool], models: dict[str, Model]) -> None:
    containers = [one for pod in _pods(access, pools["engine-image"]) for one in pod["status"]["containerStatuses"]]
    assert [one["image"] for one in containers if one["name"] == "engine"] == [models["engine-image"].engine_image]


def _pods(access: Access, pool: Pool) -> list[dict[str, Any]]:
    selected = f"app.kubernetes.io/instance={pool.name}"
    return access.api.listed("pods", pool.namespace, selected)


def _folder(folder: Path, words: str) -> Path:
    """The built-in model's files, with a template that begins with `words`."""
    shutil.copytree(BUILTIN["tiny-chat"], folder, ignore=shutil.ignore_patterns("__pycache__"))
    template = folder / "chat_template.jinja"
    template.write_text(
        template.read_text().replace("{{- bos_token }}\n", "{{- bos_token }}\n{{- '" + words + "' }}\n")
    )
    return folder


def _make_image(folder: Path) -> None:
    tool = images.find_tool()
    (folder.parent / "Dockerfile").write_text(f"FROM scratch\nCOPY {folder.name} /\n")
    build = [tool, "bud" if tool == "buildah" else "build", "-t", IMAGE, str(folder.parent)]
    ran = subprocess.run(build, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    images.import_image(IMAGE, lifecycle.images_folder(), tool)


def _engine_image(access: Access) -> str:
    """The name of the image, once the nodes have it."""
    name = f"localhost/plumage-engine-without-vllm:{access.image.rpartition(':')[2]}"
    try:
        images.import_image(name, lifecycle.images_folder())
    except ClusterError as error:
        missing(f"the image {name}", f"make images IMAGES=engine-without-vllm ({error})")
    return name


def _claim(volume: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A claim, and its volume: a folder of one node."""
    size, modes = {"storage": "16Mi"}, ["ReadOnlyMany"]
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    spec = {
        "capacity": size,
        "accessModes": modes,
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": NAMESPACE, "name": CLAIM},
        "local": {"path": str(volume)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
    }
    asked = {"accessModes": modes, "storageClassName": "", "resources": {"requests": size}}
    return (
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{NAMESPACE}-{CLAIM}"}, "spec": spec},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": asked},
    )


def _manifest(name: str, model: Model) -> dict[str, Any]:
    image = {"image": model.engine_image} if model.engine_image else {}
    spec = {
        "model": {"uri": model.uri, "name": "tiny-chat"},
        "replicas": 1,
        "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}}, **image},
        "router": {"policy": "Lbgr", "replicas": 1},
        "directory": {"managed": {}},
    }
    about = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return {**about, "spec": spec}
