"""The chart on a real API server: it accepts each object, and real Helm installs, upgrades and removes the chart.

The tests start a server of their own, because Helm takes over no CRD that another program created. The server has no
nodes: the end-to-end tests in a cluster show that pods start.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cluster.programs import NODES, found
from cryptography import x509
from support.charts import CHART, ROOT, pod_specs
from support.needs import missing

from plumage_operator.kinds import INTEGRATIONS

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

pytestmark = pytest.mark.api_server  # of its own
SYSTEM = "plumage-system"
ON = {"externalMetrics": {"enabled": True}}
GROUP = "inference.plumage.dev"
DESCRIBED = "        description: A pool of engines for one model, with its router and directory.\n"
METRICS = "v1beta1.external.metrics.k8s.io"
NOT_THERE = ("monitoring.coreos.com/v1",)  # kinds of the Prometheus operator, which this server does not know


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    from cluster import api_only
    from cluster.errors import NotHereError

    with ExitStack() as stack:
        try:
            own = stack.enter_context(api_only.api_server())
        except NotHereError as error:
            missing("an API server's programs", str(error))
        for name in (SYSTEM, "team-a", "team-b"):
            own.kubectl("create", "namespace", name)
        own.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
        yield own


@pytest.fixture
def release(helm: Any, server: ApiServer) -> Iterator[Any]:
    """Helm with the system's namespace. Everything that a test installed is deleted afterwards, kept CRDs included."""
    with helm.Config(kubeconfig_path=server.kubeconfig, namespace=SYSTEM) as config:
        yield config
        config.uninstall("plumage", ignore_not_found=True)
    server.forget_kinds()


def test_every_object_is_accepted(server: ApiServer, render: Any, case: tuple[str, dict[str, Any]]) -> None:
    """Strict: an unknown or duplicate field is an error. A pod would need its service account: the next test has it."""
    objects = [one for one in render(case[1]).objects if one["apiVersion"] not in NOT_THERE and one["kind"] != "Pod"]
    text = yaml.dump_all(objects, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
    done = server.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-", stdin=text, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(objects)


def test_enforced_pod_security_admits_the_pods(
    server: ApiServer, render: Any, case: tuple[str, dict[str, Any]]
) -> None:
    for name, spec in pod_specs(render({**case[1], "operator": {}, "imagePullSecrets": []}).objects):
        # Admission looks up the service account; this test is about the pod.
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "one", "namespace": SYSTEM},
            "spec": {**spec, "serviceAccountName": "default", "automountServiceAccountToken": False},
        }
        done = server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
        assert (done.returncode, done.stderr) == (0, ""), name
        refused = {**pod, "spec": {**pod["spec"], "hostNetwork": True}}
        done = server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(refused), check=False)
        assert "violates PodSecurity" in done.stderr


def test_install_upgrade_rollback_uninstall(server: ApiServer, release: Any, tmp_path: Path) -> None:
    before = _everything(server)
    release.install(_older(tmp_path / "plumage"), "plumage")
    assert _deployment(server)["spec"]["replicas"] == 1
    server.established()

    assert not _described(server)
    release.upgrade(CHART, "plumage", {"operator": {"replicas": 2}, "integrations": {"ingress": True}})
    assert _described(server), "definitions are upgraded with the chart"
    assert _deployment(server)["spec"]["replicas"] == 2
    assert "ingresses" in server.kubectl("get", "clusterrole", "plumage-operator", "-o", "yaml").stdout

    release.rollback("plumage", version=1)
    assert _deployment(server)["spec"]["replicas"] == 1
    assert "ingresses" not in server.kubectl("get", "clusterrole", "plumage-operator", "-o", "yaml").stdout

    release.uninstall("plumage")
    left = _everything(server) - before
    assert left == {
        "customresourcedefinition.apiextensions.k8s.io/inferencegateways.inference.plumage.dev",
        "customresourcedefinition.apiextensions.k8s.io/inferencepools.inference.plumage.dev",
    }


def test_pool_survives_uninstall_and_a_new_install_adopts_it(server: ApiServer, release: Any, render: Any) -> None:
    release.install(CHART, "plumage")
    server.established()
    pool = render().notes.partition("<<POOL\n")[2].partition("  POOL\n")[0]
    server.kubectl("apply", "-n", "team-a", "-f", "-", stdin=pool)
    release.uninstall("plumage")
    assert "inferencepool" in server.kubectl("get", "inferencepools", "-n", "team-a", "-o", "name").stdout
    release.install(CHART, "plumage")  # the CRDs still carry this release's name
    server.kubectl("delete", "inferencepools", "--all", "-n", "team-a", "--timeout=30s")  # no finalizer holds it


REINSTALL = "Install again under another name or namespace"


def test_other_release_adopts_kept_crds_as_the_manual_says(server: ApiServer, release: Any, helm: Any) -> None:
    release.install(CHART, "plumage")
    release.uninstall("plumage")
    with pytest.raises(helm.HelmError, match="invalid ownership metadata"):
        release.install(CHART, "other", namespace="team-a")
    command = _annotate_command()
    arguments = command.replace("NEW-NAMESPACE", "team-a").replace("NEW", "other").split()
    server.kubectl(*arguments[1:])
    release.install(CHART, "other", namespace="team-a")
    try:
        owner = "jsonpath={.metadata.annotations.meta\\.helm\\.sh/release-namespace}"
        assert server.kubectl("get", "crd", f"inferencepools.{GROUP}", "-o", owner).stdout == "team-a"
    finally:
        with helm.Config(kubeconfig_path=server.kubeconfig, namespace="team-a") as config:
            config.uninstall("other")


def _annotate_command() -> str:
    """The command from the manual, on one line."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text().partition(REINSTALL)[2]
    command = page.partition("kubectl annotate")[2].partition("# or leave")[0]
    return "kubectl annotate" + command.replace("\\\n", " ")


@pytest.mark.usefixtures("release")
def test_helm_takes_ownership_of_kept_crds(server: ApiServer) -> None:
    program = next(found(one) for one in NODES if one.name == "helm")
    if program is None:
        missing("a helm program", "make cluster-programs")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), "--kubeconfig", str(server.kubeconfig), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert run("install", "one", str(CHART), "--namespace", "team-a").returncode == 0
    assert run("uninstall", "one", "--namespace", "team-a").returncode == 0
    there = ("other", "--namespace", "team-b")
    assert "invalid ownership metadata" in run("install", *there, str(CHART)).stderr
    taken = run("install", *there, str(CHART), "--take-ownership")
    assert taken.returncode == 0, taken.stderr
    assert run("uninstall", *there).returncode == 0


def test_namespaced_operator_has_rights_in_its_namespaces_only(server: ApiServer, release: Any) -> None:
    release.install(CHART, "plumage", {"watchNamespaces": ["team-a", "team-b"]})
    account = f"--as=system:serviceaccount:{SYSTEM}:plumage-operator"

    def may(*what: str) -> bool:
        return server.kubectl("auth", "can-i", *what, account, check=False).returncode == 0

    assert may("list", "inferencepools.inference.plumage.dev", "-n", "team-b")
    assert may("create", "deployments.apps", "-n", "team-a")
    assert not may("list", "inferencepools.inference.plumage.dev", "-n", "default")
    assert not may("get", "secrets", "-n", "team-a")


def test_operator_may_bind_the_router_role_and_no_other(server: ApiServer, release: Any) -> None:
    """In one namespace, by its Role: `bind` is checked in the namespace of the binding."""
    release.install(CHART, "plumage", {"watchNamespaces": ["team-a"]})

    def bind(role: str) -> subprocess.CompletedProcess[str]:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            # The admission policy refuses writes without this label.
            "metadata": {"name": "chat-router", "labels": {"app.kubernetes.io/managed-by": "plumage"}},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "chat-router", "namespace": "team-a"}],
        }
        account = f"--as=system:serviceaccount:{SYSTEM}:plumage-operator"
        asked = ("create", "-n", "team-a", "-f", "-", "--dry-run=server", account)
        return server.kubectl(*asked, stdin=json.dumps(binding), check=False)

    assert bind("plumage-router").returncode == 0
    assert "is attempting to grant RBAC permissions not currently held" in bind("cluster-admin").stderr


def test_apiservice_of_another_provider_is_never_taken_over(server: ApiServer, release: Any, helm: Any) -> None:
    theirs = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": METRICS},
        "spec": {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "keda-metrics-apiserver", "namespace": "keda"},
            "insecureSkipTLSVerify": True,
        },
    }
    server.kubectl("create", "-f", "-", stdin=json.dumps(theirs))
    try:
        with pytest.raises(helm.HelmError, match="served by keda/keda-metrics-apiserver"):
            release.install(CHART, "plumage", ON)
    finally:
        server.kubectl("delete", "apiservice", METRICS)


def test_chart_certificate_survives_an_upgrade_and_is_renewed_after_deletion(server: ApiServer, release: Any) -> None:
    def of_secret(field: str) -> bytes:
        encoded = server.kubectl("get", "-n", SYSTEM, *secret, "-o", f"jsonpath={{.data.{field}}}").stdout
        return base64.b64decode(encoded)

    def trusted() -> bytes:
        encoded = server.kubectl("get", "apiservice", METRICS, "-o", "jsonpath={.spec.caBundle}").stdout
        return base64.b64decode(encoded)

    secret = ("secret", "plumage-operator-external-metrics")
    release.install(CHART, "plumage", ON)
    first = of_secret("tls\\.crt")
    release.upgrade(CHART, "plumage", {**ON, "operator": {"logLevel": "debug"}})
    assert of_secret("tls\\.crt") == first != b""

    before = trusted()
    server.kubectl("delete", "-n", SYSTEM, *secret)
    release.upgrade(CHART, "plumage", ON)  # as docs/how-to/upgrade.md says that it is renewed
    assert of_secret("tls\\.crt") not in (first, b"")
    assert trusted() == of_secret("ca\\.crt") != before
    certificate, authority = map(x509.load_pem_x509_certificate, (of_secret("tls\\.crt"), trusted()))
    certificate.verify_directly_issued_by(authority)


def test_notes_name_how_to_find_leftovers_of_a_disabled_option(server: ApiServer, release: Any) -> None:
    kinds = {one.switch: f"{one.plural}.{one.group}" for one in INTEGRATIONS}
    assert "is off now" not in release.install(CHART, "plumage", {"integrations": dict.fromkeys(kinds, True)})["notes"]
    wanted = dict.fromkeys(kinds, True)
    for switch, kind in kinds.items():
        wanted[switch] = False
        notes = release.upgrade(CHART, "plumage", {"integrations": wanted})["notes"]
        assert notes.count("is off now") == 1, "one notice: the others were off before, or are still on"
        assert f"\nintegrations.{switch} was on and is off now." in notes
        command = f"  kubectl get {kind} --all-namespaces --selector app.kubernetes.io/managed-by=plumage\n"
        assert command in notes
        known = server.kubectl(*command.split()[1:], check=False)
        assert known.returncode == 0 or "the server doesn't have a resource type" in known.stderr
    assert "is off now" not in release.upgrade(CHART, "plumage", {"integrations": wanted})["notes"]


def _deployment(server: ApiServer) -> Any:
    return json.loads(server.kubectl("get", "deployment", "-n", SYSTEM, "plumage-operator", "-o", "json").stdout)


def _older(folder: Path) -> Path:
    """The chart with a pool definition that lacks a description."""
    shutil.copytree(CHART, folder)
    definition = folder / "templates" / "crds" / f"{GROUP}_inferencepools.yaml"
    text = definition.read_text()
    assert DESCRIBED in text
    definition.write_text(text.replace(DESCRIBED, ""))
    return folder


def _described(server: ApiServer) -> bool:
    found = json.loads(server.kubectl("get", "crd", f"inferencepools.{GROUP}", "-o", "json").stdout)
    (version,) = found["spec"]["versions"]
    return "description" in version["schema"]["openAPIV3Schema"]


def _everything(server: ApiServer) -> set[str]:
    """Names of all that a release could leave, without objects that controllers create and delete a moment later."""
    kinds = "crd,clusterrole,clusterrolebinding,apiservice,validatingadmissionpolicy,validatingadmissionpolicybinding"
    named = server.kubectl("get", kinds, "-o", "name", "-l", "app.kubernetes.io/part-of=plumage").stdout
    in_spaces = "deployment,service,serviceaccount,configmap,secret,role,rolebinding,networkpolicy,pdb"
    template = "{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{'\\n'}{end}"
    own = server.kubectl("get", in_spaces, "-A", "-o", f"jsonpath={template}").stdout
    return {*named.split(), *own.split()}
