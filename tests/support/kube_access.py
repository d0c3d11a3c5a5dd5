"""What a test does with any cluster: requests, kubectl, helm, a client that runs inside, and waits. Only `own` needs
the test cluster."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cluster.lifecycle import Cluster
from support.kube_api import KubeApi
from support.waiting import looks

__all__ = ["Access", "client_pod", "until"]

_COMMAND_S, _CLIENT_S = 600.0, 300.0
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def until(condition: Callable[[], bool], what: str, within_s: float = 300.0) -> None:
    """Waits for a condition. Fails with `what` if it stays false."""
    if not any(condition() for _ in looks(within_s)):
        raise AssertionError(f"not so after {within_s:.0f} s: {what}")


@dataclass(frozen=True)
class Access:
    """`image` names the plumage image that nodes can run. `own` is None on a cluster that is not the test cluster."""

    kubeconfig: Path
    programs: Mapping[str, Path]
    image: str
    own: Cluster | None

    @cached_property
    def api(self) -> KubeApi:
        """For what tests ask again and again."""
        return KubeApi(self.kubeconfig)

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """kubectl's output. If it fails the test fails, with its output."""
        return self._run("kubectl", args, stdin, check).stdout

    def refused(self, *args: str, stdin: str | None = None, program: str = "kubectl") -> str:
        """The error output of kubectl or helm, which must fail."""
        ran = self._run(program, args, stdin, check=False)
        assert ran.returncode != 0, f"{program} {' '.join(args)} did not fail"
        return ran.stderr

    def helm(self, *args: str) -> str:
        return self._run("helm", args, None, True).stdout

    def namespace(self, name: str) -> None:
        """Makes a namespace in which only restricted pods may run, and waits for its service account."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.api.create("namespaces", "", manifest)
        until(lambda: bool(self.api.get("serviceaccounts", "default", name)), f"{name} has its service account")

    def inside(self, namespace: str, script: str, *args: str, image: str | None = None) -> str:
        """Runs a Python script in a pod, which reaches Services by name as any client there does. Returns its output.
        If the script fails the test fails, with its output."""
        name = f"client-{uuid.uuid4().hex[:8]}"
        pod = client_pod(name, image or self.image, script, args)
        self.api.create("pods", namespace, pod)
        try:
            ended = ("Succeeded", "Failed")
            until(lambda: self._phase(namespace, name) in ended, f"{name} in {namespace} ended", _CLIENT_S)
            printed = self.api.log(name, namespace)
            assert self._phase(namespace, name) == "Succeeded", printed
            return printed
        finally:
            self.api.delete("pods", name, namespace)

    def _phase(self, namespace: str, name: str) -> str:
        return str(self.api.get("pods", name, namespace).get("status", {}).get("phase"))

    def _run(
        self, program: str, args: tuple[str, ...], stdin: str | None, check: bool
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        command = [str(self.programs[program]), *args]
        ran = subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
        assert not check or ran.returncode == 0, f"{program} {' '.join(args)}: {ran.stderr}{ran.stdout}"
        return ran


def client_pod(name: str, image: str, script: str, args: tuple[str, ...]) -> dict[str, Any]:
    """A restricted pod that runs a Python script once."""
    container = {
        "name": "client",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", script, *args],
        "securityContext": _RESTRICTED,
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "client"}}, "spec": spec}
