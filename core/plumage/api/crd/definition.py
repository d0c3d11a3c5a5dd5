"""The CustomResourceDefinition of each kind: its names, columns and subresources around its schema."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from plumage.api.crd.schema import structural_schema
from plumage.api.v1alpha1.gateway import InferenceGateway
from plumage.api.v1alpha1.pool import InferencePool
from plumage.api.v1alpha1.struct import Struct
from plumage.cluster import GROUP, VERSION

__all__ = ["FINGERPRINT", "definition", "definition_name", "definitions"]

FINGERPRINT = f"{GROUP}/schema"
"""Annotation of a definition: a hash of its content. `plumage doctor` compares it."""

_CATEGORY = "plumage"
_READY = '.status.conditions[?(@.type=="Ready")]'
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind's model and its printer columns (name, type, JSON path); `wide` columns need `-o wide`."""

    model: type[Struct]
    plural: str
    short: str
    columns: tuple[tuple[str, str, str], ...]
    wide: tuple[tuple[str, str, str], ...]


_KINDS = (
    _Kind(
        InferencePool,
        "inferencepools",
        "ppool",
        (
            ("Ready", "string", f"{_READY}.status"),
            ("Replicas", "integer", ".status.readyReplicas"),
            ("Hit ratio", "integer", ".status.hitRatioPercent"),
            ("Model", "string", ".status.model"),
        ),
        (
            ("Desired", "integer", ".status.desiredReplicas"),
            ("Reason", "string", f"{_READY}.reason"),
            ("Engine", "string", ".spec.engine.runtime"),
            ("URI", "string", ".spec.model.uri"),
            ("Address", "string", ".status.address"),
        ),
    ),
    _Kind(
        InferenceGateway,
        "inferencegateways",
        "pgw",
        (
            ("Ready", "string", f"{_READY}.status"),
            ("Replicas", "integer", ".status.readyReplicas"),
            ("Address", "string", ".status.addresses[0]"),
        ),
        (
            ("Reason", "string", f"{_READY}.reason"),
            ("Models", "string", ".spec.models[*].name"),
        ),
    ),
)


def definitions() -> list[dict[str, Any]]:
    """The definitions of all kinds."""
    return [_definition(kind) for kind in _KINDS]


def definition(model: type[Struct]) -> dict[str, Any]:
    """The definition of one kind."""
    return _definition(next(kind for kind in _KINDS if kind.model is model))


def definition_name(model: type[Struct]) -> str:
    """The name of the definition in a cluster: the plural and the group."""
    return next(f"{kind.plural}.{GROUP}" for kind in _KINDS if kind.model is model)


def _definition(kind: _Kind) -> dict[str, Any]:
    spec = {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": kind.model.__name__,
            "listKind": f"{kind.model.__name__}List",
            "plural": kind.plural,
            "singular": kind.model.__name__.lower(),
            "shortNames": [kind.short],
            "categories": [_CATEGORY],
        },
        "versions": [_version(kind)],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "annotations": {FINGERPRINT: _fingerprint(spec)},
        },
        "spec": spec,
    }


def _version(kind: _Kind) -> dict[str, Any]:
    columns = [{"name": name, "type": form, "jsonPath": path} for name, form, path in kind.columns]
    wide = [{"name": name, "type": form, "jsonPath": path, "priority": 1} for name, form, path in kind.wide]
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [*columns, _AGE, *wide],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _object(kind.model)},
    }


def _object(model: type[Struct]) -> dict[str, Any]:
    """The schema of the whole object. The API server defines the metadata; the status has no defaults."""
    whole = structural_schema(model)
    properties = whole["properties"]
    status: Any = model.model_fields["status"].annotation
    description = properties["status"]["description"]
    properties["apiVersion"] = {"description": properties["apiVersion"]["description"], "type": "string"}
    properties["kind"] = {"description": properties["kind"]["description"], "type": "string"}
    properties["metadata"] = {"type": "object"}
    properties["status"] = {**structural_schema(status, defaults=False), "description": description}
    whole["required"] = ["spec"]
    return whole


def _fingerprint(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
