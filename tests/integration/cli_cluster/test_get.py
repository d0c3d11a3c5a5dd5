"""`plumage get` and `plumage status` of a cluster, also as kubectl's plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from support.cluster_cli import NO_GPU, SERVING, STUCK, Plumage, condition, keep, keep_gateway
from support.crds import CRDS, Kinds


def test_get_in_empty_namespace_names_next_step(plumage: Plumage) -> None:
    done = plumage("get")
    assert done.returncode == 0
    assert "no pool in namespace crds-" in done.stdout
    assert "kubectl apply -f" in done.stdout


def test_get_prints_a_row_per_pool_and_details_of_one(plumage: Plumage, kinds: Kinds) -> None:
    keep(kinds, "well", SERVING)
    keep(kinds, "stuck", STUCK)
    keep(kinds, "unseen")
    rows = {row.split()[0]: row.split()[1:6] for row in plumage("get").stdout.splitlines()[1:]}
    assert rows["well"] == ["True", "2/2", "87", "%", "Qwen3-8B"]
    assert rows["stuck"][:2] == ["False", "0/1"]
    assert rows["unseen"][:2] == ["Unknown", "0/–"]
    output = plumage("get", "stuck").stdout
    assert NO_GPU in output
    assert "NoGpu" in output
    well = plumage("status", "well").stdout
    assert "address: http://well-router.crds.svc:8000/v1" in well
    assert "autoscaling: 2 replicas" in well
    everywhere = plumage("get", "-A", namespace=False).stdout
    assert f"{kinds.namespace}  well" in " ".join(everywhere.split("\n")).replace("   ", "  ")
    assert {one["metadata"]["name"] for one in json.loads(plumage("get", "--json").stdout)} == {
        "well",
        "stuck",
        "unseen",
    }


def test_get_prints_gateways_below_pools_and_details_of_one(plumage: Plumage, kinds: Kinds) -> None:
    ready = condition("Ready", "True", "Serving", "2 of 2 routers answer, for models chat")
    address = "http://front-gateway.crds.svc:8000"
    keep_gateway(kinds, "front", ready, readyReplicas=2, pools=["well"], addresses=[address])
    keep_gateway(kinds, "fresh")
    rows = {row.split()[0]: row.split()[1:5] for row in plumage("get").stdout.splitlines() if row}
    assert rows["front"] == ["True", "2/2", "well", "Serving"]
    assert rows["fresh"] == ["Unknown", "0/2", "–", "NotSeen"]
    output = plumage("get", "front").stdout
    assert f"address: {address}/v1" in output
    assert "2 of 2 routers answer, for models chat" in output
    assert json.loads(plumage("status", "front", "--json").stdout)["gateway"]["metadata"]["name"] == "front"
    kind_of = {one["metadata"]["name"]: one["kind"] for one in json.loads(plumage("get", "--json").stdout)}
    assert kind_of["front"] == "InferenceGateway"


def test_get_reports_missing_pool(plumage: Plumage) -> None:
    done = plumage("get", "nope")
    assert done.returncode == 1
    assert "there is no pool nope in namespace crds-" in done.stderr
    assert "Traceback" not in done.stderr


def test_get_shows_what_pods_wait_for(plumage: Plumage, kinds: Kinds) -> None:
    keep(kinds, "podded", SERVING)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "podded-engine-0",
            "labels": {"inference.plumage.dev/pool": "podded", "app.kubernetes.io/component": "engine"},
            "annotations": {"inference.plumage.dev/cordoned": "true"},
        },
        "spec": {"automountServiceAccountToken": False, "containers": [{"name": "engine", "image": "none:1"}]},
    }
    kinds.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    row = next(row for row in plumage("get", "podded").stdout.splitlines() if row.startswith("podded-engine-0"))
    assert row.split()[:3] == ["podded-engine-0", "engine", "0/0"]
    assert "Pending, cordoned" in row


def test_kubectl_runs_plugin(kinds: Kinds, tmp_path: Path) -> None:
    """kubectl finds the wheel's program by its name on the PATH."""
    project = tomllib.loads((CRDS.parent / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["kubectl-plumage"].partition(":")
    program = tmp_path / "kubectl-plumage"
    program.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(kinds.server.kubeconfig),
    }
    kubectl = kinds.server.plane.programs["kubectl"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(kubectl), "plumage", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)

    assert "there is no pool nope in namespace default" in run("status", "nope").stderr, "never this machine"
    assert "no operator is installed" in run("doctor").stdout
    help_text = run("--help").stdout
    assert "Usage: kubectl-plumage" in help_text or "Usage: kubectl plumage" in help_text
    assert "bench" not in help_text
