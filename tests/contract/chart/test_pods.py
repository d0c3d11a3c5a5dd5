"""The pods of the operator and of `helm test`: pod security, and the settings that the operator
reads from the chart.
"""

from __future__ import annotations

from typing import Any

from support.charts import pod_specs, unrestricted


def test_every_pod_meets_the_restricted_standard(render: Any, case: tuple[str, dict[str, Any]]) -> None:
    pods = dict(pod_specs(render(case[1]).objects))
    assert len(pods) == 2
    assert {name: wrong for name, pod in pods.items() if (wrong := unrestricted(pod))} == {}


def test_user_is_numeric_unless_the_cluster_chooses_it(render: Any) -> None:
    def users(values: dict[str, Any]) -> set[Any]:
        return {pod["securityContext"].get("runAsUser") for _, pod in pod_specs(render(values).objects)}

    assert users({}) == {10001}
    assert users({"operator": {"runAsUser": None}}) == {None}


def test_operator_reads_every_variable_of_the_chart(render: Any) -> None:
    """Every environment variable that the chart sets is one that the operator reads."""
    values = {
        "image": {"repository": "r.example/plumage", "pullPolicy": "Always"},
        "engineImage": {"repository": "r.example/engine", "tag": "v9"},
        "imagePullSecrets": ["one", "two"],
        "watchNamespaces": ["team-a", "team-b"],
        "rbac": {"routerRole": "readers"},
        "integrations": {"ingress": True, "podMonitors": True},
        "networkPolicy": {"pools": False, "monitoringNamespaces": ["monitoring"]},
        "operator": {
            "logLevel": "debug",
            "logFormat": "json",
            "autoscaleSeconds": 5,
            "serviceAccount": {"name": "me"},
        },
        "externalMetrics": {"enabled": True},
    }
    container = render(values).one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    options = _options(container, "me")
    assert options.config.image == "r.example/plumage:0.1.0"
    assert options.config.engine_image == "r.example/engine:v9"
    assert options.config.pull_policy == "Always"
    assert options.config.pull_secrets == ("one", "two")
    assert options.config.namespace == "plumage-system"
    assert options.config.service_account == "me"
    assert options.config.router_role == "readers"
    assert options.config.network_policies is False
    assert options.config.monitoring == ("monitoring",)
    assert options.namespaces == ("team-a", "team-b")
    assert options.integrations == ("ingress", "podMonitors")
    assert (options.log_level, options.log_format) == ("DEBUG", "json")
    assert options.autoscale_seconds == 5
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {
        "http": options.health_port,
        "metrics": options.metrics_port,
        "external": options.external_port,
    }
    assert options.external_tls in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_default_watches_all_namespaces_without_external_metrics(render: Any) -> None:
    rendered = render()
    options = _options(rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0], "plumage-operator")
    assert (options.namespaces, options.integrations, options.external_port) == ((), (), None)
    assert options.config.network_policies is True
    assert options.autoscale_seconds == 15
    assert [one["name"] for one in rendered.one("Service")["spec"]["ports"]] == ["http", "metrics"]


def test_lease_is_the_one_that_its_role_names(render: Any) -> None:
    options = _options(render().one("Deployment")["spec"]["template"]["spec"]["containers"][0], "x")
    assert [options.lease] in [rule.get("resourceNames") for rule in render().one("Role")["rules"]]


def test_token_is_mounted_where_pools_expect_it(render: Any) -> None:
    from plumage.cluster import AUDIENCE, TOKEN_FOLDER

    pod = render().one("Deployment")["spec"]["template"]["spec"]
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volume = next(one for one in pod["volumes"] if one["name"] == mounts[TOKEN_FOLDER])
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert (token["audience"], token["path"]) == (AUDIENCE, "token")


def test_service_and_deployment_do_not_select_the_test_pod(render: Any) -> None:
    rendered = render()
    labels = rendered.one("Pod")["metadata"]["labels"].items()
    for selector in (
        rendered.one("Service")["spec"]["selector"],
        rendered.one("Deployment")["spec"]["selector"]["matchLabels"],
    ):
        assert not selector.items() <= labels
        assert selector.items() <= rendered.one("Deployment")["spec"]["template"]["metadata"]["labels"].items()


def test_helm_test_script_is_valid_python(render: Any) -> None:
    args = render({"watchNamespaces": ["team-a"]}).one("Pod")["spec"]["containers"][0]["args"]
    compile(args[0], "works.py", "exec")
    assert args[1:] == ["http://plumage-operator.plumage-system.svc:8080/healthz", "team-a"]


def _options(container: dict[str, Any], account: str) -> Any:
    from plumage_operator.options import read_options

    fields = {"metadata.name": "pod", "metadata.namespace": "plumage-system", "spec.serviceAccountName": account}
    variables = {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
    }
    return read_options([], variables)
