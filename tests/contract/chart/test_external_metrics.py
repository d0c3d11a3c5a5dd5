"""The API for HPAs: its certificate and its registration. test_on_an_api_server.py has a cluster's answers."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509

ON = {"externalMetrics": {"enabled": True}}
NAME = "v1beta1.external.metrics.k8s.io"


def test_external_metrics_are_off_by_default(render: Any) -> None:
    assert render().of("APIService") == []
    assert not any("external" in name for name in render().names)


def test_chart_certificate_names_the_service_and_is_signed_by_the_registered_ca(render: Any) -> None:
    rendered = render(ON)
    secret, service = rendered.one("Secret"), rendered.one("APIService")
    assert service["metadata"]["name"] == NAME
    assert service["spec"]["caBundle"] == secret["data"]["ca.crt"]
    pems = [base64.b64decode(secret["data"][key]) for key in ("ca.crt", "tls.crt")]
    authority, own = map(x509.load_pem_x509_certificate, pems)
    own.verify_directly_issued_by(authority)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["plumage-operator.plumage-system.svc"]
    reference = service["spec"]["service"]
    assert reference == {"name": "plumage-operator", "namespace": "plumage-system", "port": 443}
    ports = {one["port"]: one["targetPort"] for one in rendered.one("Service")["spec"]["ports"]}
    assert ports[443] == "external"


def test_own_certificate_replaces_the_chart_certificate(render: Any) -> None:
    bundle = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
    rendered = render({"externalMetrics": {"enabled": True, "tls": {"existingSecret": "mine", "caBundle": bundle}}})
    assert rendered.of("Secret") == []
    assert base64.b64decode(rendered.one("APIService")["spec"]["caBundle"]).decode() == bundle
    volumes = rendered.one("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [one["secret"]["secretName"] for one in volumes if "secret" in one] == ["mine"]


def test_external_metrics_need_a_single_operator(render: Any, helm: Any) -> None:
    with pytest.raises(helm.HelmRenderError, match=r"must go with operator\.replicas: 1"):
        render({**ON, "operator": {"replicas": 2}})
