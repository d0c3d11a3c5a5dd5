"""The API server that contract and integration tests share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster.api_only import ApiServer
from cluster.runs import sweep

CRASH = """
import os, signal
from cluster.api_only import api_server
with api_server() as server:
    pids = [server.processes.pid(name) for name in ("etcd", "apiserver", "controllers")]
    print(server.plane.folder, *pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def until(condition, within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.1)


def test_controllers_fill_new_namespace(api_server: ApiServer) -> None:
    api_server.kubectl("create", "namespace", "full")
    until(lambda: api_server.kubectl("-n", "full", "get", "sa/default", check=False).returncode == 0)
    api_server.kubectl("-n", "full", "create", "deployment", "web", "--image=none", "--replicas=2")
    until(lambda: len(api_server.kubectl("-n", "full", "get", "pods", "-o", "name").stdout.split()) == 2)


def test_pod_security_refuses_unrestricted_pods(api_server: ApiServer) -> None:
    api_server.kubectl("create", "namespace", "strict")
    api_server.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    until(lambda: api_server.kubectl("-n", "strict", "get", "sa/default", check=False).returncode == 0)
    said = api_server.kubectl("-n", "strict", "run", "p", "--image=none", check=False).stderr
    assert 'violates PodSecurity "restricted' in said


def test_aggregated_api_server_gets_client_authority(api_server: ApiServer) -> None:
    config = api_server.kubectl(
        "-n", "kube-system", "get", "configmap/extension-apiserver-authentication", "-o", "json"
    ).stdout
    data = json.loads(config)["data"]
    assert data["requestheader-client-ca-file"] == api_server.front_proxy_ca_file.read_text()
    assert json.loads(data["requestheader-allowed-names"]) == ["front-proxy-client"]


def test_restarted_api_server_keeps_objects(api_server: ApiServer) -> None:
    api_server.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    api_server.restart()
    assert api_server.kubectl("get", "configmap/kept", "-o", "jsonpath={.data.a}").stdout == "b"


def test_killed_test_run_leaves_no_process(api_server: ApiServer) -> None:
    tests = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(tests)}
    ran = subprocess.run([sys.executable, "-c", CRASH], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    folder, *pids = ran.stdout.split()
    assert len(pids) == 3
    until(lambda: not any(Path("/proc", pid, "cmdline").exists() for pid in pids))
    sweep("plumage-api-")
    assert not Path(folder).exists()
    assert api_server.plane.folder.exists()
