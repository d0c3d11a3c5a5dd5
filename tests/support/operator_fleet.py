"""The operator as a process against a real API server, with exactly the rights of its role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from support import forks
from support.ports import free_ports
from support.waiting import looks

from plumage_operator.permissions import IN_POOLS, IN_SYSTEM, ROUTER_ROLE, Rule

__all__ = ["USER", "Fleet", "children", "condition", "events", "made", "pool"]

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / "tests" / "contract" / "chart" / "snapshots" / "default.yaml"
SYSTEM = "plumage-system"
USER = f"system:serviceaccount:{SYSTEM}:plumage-operator"
BUSY_S = 90.0  # seconds; an idle machine needs one
CHILDREN = "deployments,services,configmaps,serviceaccounts,poddisruptionbudgets,networkpolicies,rolebindings"


class Fleet:
    """A cluster with the CRDs and the operator's rights, and operators that a test starts and ends."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.operators: dict[str, forks.Fork | subprocess.Popen[bytes]] = {}
        self.ports: dict[str, tuple[int, int]] = {}

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        done = self.server.kubectl(*args, stdin=stdin, check=False)
        assert not check or done.returncode == 0, done.stderr
        return str(done.stdout if done.returncode == 0 else done.stderr)

    def get(self, namespace: str, *what: str) -> dict[str, Any]:
        """An object or a list of objects; empty where it does not exist."""
        done = self.server.kubectl("-n", namespace, "get", *what, "-o", "json", check=False)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def define(self) -> None:
        """Applies the CRDs."""
        self.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        self.server.established()

    def install(self, *, define: bool = True) -> None:
        """Makes the operator's account with its rights, and the CRDs unless `define` is false."""
        if define:
            self.define()
        self.kubectl("create", "namespace", SYSTEM)
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([*_rights(), *_bounds()]))

    def start(
        self,
        name: str = "first",
        *,
        ahead: float = 0.0,
        checked: float | None = None,
        lives: Path | None = None,
        **environment: str,
    ) -> None:
        """Starts an operator and waits until it is ready. ahead: seconds by which its clock is ahead. checked: seconds
        between two comparisons of its watches with the API server. lives: the file in which it records each action; it
        dies after each."""
        health, metrics = free_ports(2)
        self.ports[name] = (health, metrics)
        variables = {
            "KUBECONFIG": str(self.kubeconfig()), "POD_NAME": name, "POD_NAMESPACE": SYSTEM,
            "PLUMAGE_IMAGE": "plumage:1", "PLUMAGE_ENGINE_IMAGE": "engine:1",
            "PLUMAGE_INTEGRATIONS": "ingress",
        }  # fmt: skip
        program = ["support.shifted_clock", str(ahead), "plumage_operator"] if ahead else ["plumage_operator"]
        program = program if checked is None else ["support.operator_checked_often", str(checked)]
        program = program if lives is None else ["support.operator_lives", str(lives)]
        command = [*program, f"--health-port={health}", f"--metrics-port={metrics}"]
        known = {**os.environ, **variables, **environment}
        with (self.folder / f"{name}.log").open("ab") as log:
            if ahead:  # its clock must be wrong before it imports anything
                known["PYTHONPATH"] = os.pathsep.join((str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
                self.operators[name] = subprocess.Popen(
                    [sys.executable, "-m", *command], env=known, stdout=log, stderr=log, cwd=ROOT
                )
            else:
                self.operators[name] = forks.start(*command, environment=known, output=log)

    def stop(self, name: str = "first", *, kill: bool = False) -> int:
        operator = self.operators.pop(name)
        operator.kill() if kill else operator.terminate()
        return operator.wait(30)

    def keep_up(self) -> None:
        """Starts operators that ended, as a kubelet does."""
        for name, operator in list(self.operators.items()):
            if operator.poll() is not None:
                self.start(name)

    def log(self, name: str = "first") -> str:
        return (self.folder / f"{name}.log").read_text()

    def until(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Waits until `holds` returns a true value, and returns it."""
        for _ in looks(BUSY_S):
            if found := holds():
                return found
        raise AssertionError(what or f"never so; operators said:\n{self._logs()}")

    def _logs(self) -> str:
        return "\n".join(f"-- {path.name}\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.log")))

    def kubeconfig(self, namespace: str = SYSTEM, account: str = "plumage-operator") -> Path:
        """The kubeconfig of a service account: the operator's, unless another one is named."""
        path = self.folder / f"{namespace}.kubeconfig"
        if not path.exists():
            token = self.kubectl("-n", namespace, "create", "token", account, "--duration=1h").strip()
            content = yaml.safe_load(self.server.kubeconfig.read_text())
            content["users"][0]["user"] = {"token": token}
            path.write_text(yaml.safe_dump(content))
        return path


def _rights() -> list[dict[str, Any]]:
    account = {"kind": "ServiceAccount", "name": "plumage-operator", "namespace": SYSTEM}
    reads = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "plumage-operator", "namespace": SYSTEM}},
        {  # empty, as in the chart
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "plumage-operator", "namespace": SYSTEM},
        },
        _role("ClusterRole", "plumage-operator", [_rule(rule) for rule in IN_POOLS]),
        _role("ClusterRole", ROUTER_ROLE, reads),
        _role("Role", "plumage-operator", [_rule(rule) for rule in IN_SYSTEM], SYSTEM),
        _binding("ClusterRoleBinding", "ClusterRole", account),
        _binding("RoleBinding", "Role", account, SYSTEM),
    ]


def _bounds() -> list[dict[str, Any]]:
    """The admission policy that the chart renders for this account."""
    rendered = yaml.safe_load_all(SNAPSHOT.read_text())
    return [one for one in rendered if one and one["apiVersion"].startswith("admissionregistration.k8s.io/")]


def _rule(rule: Rule) -> dict[str, Any]:
    names = {"resourceNames": list(rule.names)} if rule.names else {}
    return {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs), **names}


def _role(kind: str, name: str, rules: list[dict[str, Any]], namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: str, role: str, account: dict[str, str], namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": "plumage-operator", **({"namespace": namespace} if namespace else {})}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": "plumage-operator"}
    bound = {"metadata": metadata, "roleRef": reference, "subjects": [account]}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, **bound}


def pool(spec: str = "", name: str = "chat") -> str:
    return f"""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {{name: {name}}}
spec:
  model: {{uri: builtin://tiny-chat}}
  engine: {{runtime: Simulator}}
{spec}"""


def children(fleet: Fleet, namespace: str) -> dict[tuple[str, str], dict[str, Any]]:
    listed = fleet.get(namespace, CHILDREN, "-l", "inference.plumage.dev/pool=chat").get("items", [])
    return {(one["kind"], one["metadata"]["name"]): one for one in listed}


def condition(fleet: Fleet, namespace: str, type_: str) -> dict[str, Any]:
    found = fleet.get(namespace, "ppool", "chat").get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == type_), {})


def made(fleet: Fleet, namespace: str) -> dict[tuple[str, str], dict[str, Any]]:
    """All children, once the status is written. The operator writes the status last."""
    fleet.until(lambda: condition(fleet, namespace, "Ready"))
    return children(fleet, namespace)


def events(fleet: Fleet, namespace: str) -> list[tuple[str, str]]:
    listed = fleet.get(namespace, "events").get("items", [])
    own = [one for one in listed if one["involvedObject"]["kind"] == "InferencePool"]
    return [(one["reason"], one["message"]) for one in own]
