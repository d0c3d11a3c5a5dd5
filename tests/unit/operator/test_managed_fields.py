"""The fields of a created object count as applied before its first apply, and fields of others stay."""

from __future__ import annotations

from typing import Any

from plumage_operator.controller.perform import as_applied


def entry(manager: str, operation: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields, **more}


LABEL = {"f:metadata": {"f:labels": {"f:pool": {}}}}
REPLICAS = {"f:spec": {"f:replicas": {}}}


def test_created_fields_become_applied_fields() -> None:
    assert as_applied([entry("plumage", "Update", LABEL)]) == [entry("plumage", "Apply", LABEL)]


def test_applied_fields_are_left_alone() -> None:
    assert as_applied([entry("plumage", "Apply", LABEL), entry("kubectl", "Update", REPLICAS)]) is None
    assert as_applied([]) is None


def test_two_entries_of_ours_are_merged() -> None:
    created = {**REPLICAS, "f:metadata": {"f:labels": {"f:part": {}}, "f:annotations": {}}}
    found = as_applied([entry("plumage", "Apply", LABEL), entry("plumage", "Update", created)])
    labels = {"f:labels": {"f:pool": {}, "f:part": {}}, "f:annotations": {}}
    assert found == [entry("plumage", "Apply", {**REPLICAS, "f:metadata": labels})]


def test_entries_of_others_and_of_subresources_stay() -> None:
    status = entry("plumage", "Update", {"f:status": {}}, subresource="status")
    theirs = entry("kube-controller-manager", "Update", {"f:status": {}}, subresource="status")
    found = as_applied([theirs, entry("plumage", "Update", LABEL), status])
    assert found == [entry("plumage", "Apply", LABEL), theirs, status]
