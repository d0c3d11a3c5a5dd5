"""Values that the chart accepts, and the exact errors for those that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

DIGEST = "sha256:" + "ab" * 32
BAD = [
    ({"operators": {}}, "additional properties 'operators' not allowed"),
    ({"operator": {"replica": 2}}, "at '/operator': additional properties 'replica' not allowed"),
    ({"operator": {"replicas": 9}}, "at '/operator/replicas': maximum: got 9, want 3"),
    ({"operator": {"replicas": "1"}}, "at '/operator/replicas': got string, want integer"),
    ({"operator": {"runAsUser": 0}}, "at '/operator/runAsUser': minimum: got 0, want 1"),
    ({"operator": {"logLevel": "loud"}}, "at '/operator/logLevel': value must be one of"),
    ({"operator": {"autoscaleSeconds": 60}}, "at '/operator/autoscaleSeconds': maximum: got 60, want 15"),
    ({"operator": {"resources": {"limit": {}}}}, "additional properties 'limit' not allowed"),
    ({"operator": {"podLabels": {"a": 1}}}, "at '/operator/podLabels/a': got number, want string"),
    ({"image": {"repository": ""}}, "at '/image/repository': minLength: got 0, want 1"),
    ({"image": {"digest": "sha256:12"}}, "at '/image/digest': 'sha256:12' does not match pattern"),
    ({"image": {"tag": "a b"}}, "at '/image/tag': 'a b' does not match pattern"),
    ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of"),
    ({"watchNamespaces": "team-a"}, "at '/watchNamespaces': got string, want array"),
    ({"watchNamespaces": ["Team A"]}, "at '/watchNamespaces/0': 'Team A' does not match pattern"),
    ({"watchNamespaces": ["a", "a"]}, "at '/watchNamespaces': items at 0 and 1 are equal"),
    ({"imagePullSecrets": [{"name": "x"}]}, "at '/imagePullSecrets/0': got object, want string"),
    ({"crds": {"install": True}}, "at '/crds': additional properties 'install' not allowed"),
    ({"networkPolicy": {"apiServerCidrs": ["api.example"]}}, "does not match pattern"),
    ({"monitoring": {"serviceMonitor": {"interval": "often"}}}, "'often' does not match pattern"),
    ({"externalMetrics": {"tls": {"caBundle": "no certificate"}}}, "does not match pattern"),
    ({"rbac": {"routerRole": ""}}, "at '/rbac/routerRole'"),
]
GOOD = [
    {},
    {"image": {"tag": "v1", "digest": DIGEST}},
    {"operator": {"runAsUser": None, "replicas": 0}},
    {"operator": {"resources": {"limits": {"memory": "1Gi", "cpu": 2}}}},
    {"global": {"imageRegistry": "registry.example"}},
    {"watchNamespaces": ["a", "b-1"]},
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_value_is_refused_with_its_path(chart: Any, helm: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        chart.validate_schema(values)
    assert message in str(refused.value)


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_good_values_render(chart: Any, render: Any, values: dict[str, Any]) -> None:
    chart.validate_schema(values)
    assert render(values).one("Deployment")


def test_impossible_combination_fails_the_rendering(render: Any, helm: Any) -> None:
    cases = (
        ({"operator": {"serviceAccount": {"create": False}}}, "operator.serviceAccount.name must name an account"),
        (
            {"externalMetrics": {"enabled": True, "tls": {"existingSecret": "x"}}},
            "externalMetrics.tls.caBundle: must be set with externalMetrics.tls.existingSecret",
        ),
        (
            {"externalMetrics": {"enabled": True, "tls": {"caBundle": "-----BEGIN CERTIFICATE-----"}}},
            "externalMetrics.tls.caBundle: must come with externalMetrics.tls.existingSecret",
        ),
    )
    for values, message in cases:
        with pytest.raises(helm.HelmRenderError) as refused:
            render(values)
        assert message in str(refused.value)


def test_digest_wins_over_tag_and_tag_over_version(render: Any) -> None:
    def images(**image: str) -> tuple[str, str]:
        pod = render({"image": {"repository": "r.example/p", **image}}).one("Deployment")["spec"]["template"]["spec"]
        variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        return pod["containers"][0]["image"], variables["PLUMAGE_IMAGE"]

    assert images() == ("r.example/p:0.1.0",) * 2
    assert images(tag="v9") == ("r.example/p:v9",) * 2
    assert images(tag="v9", digest=DIGEST) == (f"r.example/p@{DIGEST}",) * 2


def test_names_stay_within_their_bounds(render: Any) -> None:
    """With the longest release name that Helm takes, and the longest namespace."""
    values = {
        "watchNamespaces": ["n" * 63],
        "externalMetrics": {"enabled": True},
        "monitoring": {"podMonitor": {"enabled": True}, "dashboard": {"enabled": True}},
    }
    rendered = render(values, name="r" * 53, namespace="s" * 63)
    for one in rendered.objects:
        longest = 63 if one["kind"] == "Service" else 253
        assert len(one["metadata"]["name"]) <= longest, one["kind"]
        assert all(len(value) <= 63 for value in one["metadata"].get("labels", {}).values()), one["kind"]


def test_two_namespaced_releases_share_no_object(render: Any) -> None:
    """Names of cluster objects contain the namespace. The router's role gets its name from a value."""

    def names(space: str) -> set[str]:
        held = {"watchNamespaces": [f"{space}-pools"], "crds": {"enabled": False}, "rbac": {"routerRole": f"{space}-r"}}
        return render(held, namespace=space).names

    assert names("one") & names("two") == set()


def test_notes_show_the_next_command(render: Any) -> None:
    notes = render().notes
    assert "helm test plumage --namespace plumage-system" in notes
    assert "kind: InferencePool" in notes
    assert "The CRDs stay" in notes
    held = render({"watchNamespaces": ["team-a"], "crds": {"enabled": False}, "rbac": {"create": False}}).notes
    assert "kubectl apply --namespace team-a" in held
    assert "rbac.create is false" in held
    assert "The CRDs stay" not in held


def test_pool_in_the_notes_is_valid(render: Any) -> None:
    import yaml

    from plumage.api.v1alpha1 import InferencePool

    text = render().notes.partition("<<POOL\n")[2].partition("  POOL\n")[0]
    assert InferencePool.model_validate(yaml.safe_load(text)).spec.engine.runtime == "Simulator"
