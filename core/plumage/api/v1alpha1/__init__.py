"""`inference.plumage.dev/v1alpha1`: the kinds that a user writes, as frozen models, and their YAML reader.

These models are the single source of the field reference and of the CustomResourceDefinitions. Conventions are
Kubernetes': camelCase fields, PascalCase enums, no floats, static defaults, bounds on everything.
"""

from __future__ import annotations

from plumage.api.v1alpha1.document import read_documents
from plumage.api.v1alpha1.gateway import InferenceGateway, InferenceGatewaySpec
from plumage.api.v1alpha1.load import (
    Manifest,
    check_pool,
    load_manifests,
    load_pool,
    parse_kept,
    parse_manifest,
    parse_pool,
)
from plumage.api.v1alpha1.metadata import API_VERSION, Condition, ObjectMeta
from plumage.api.v1alpha1.pool import InferencePool, InferencePoolSpec
from plumage.quantity import Quantity

__all__ = [
    "API_VERSION",
    "Condition",
    "InferenceGateway",
    "InferenceGatewaySpec",
    "InferencePool",
    "InferencePoolSpec",
    "Manifest",
    "ObjectMeta",
    "Quantity",
    "check_pool",
    "load_manifests",
    "load_pool",
    "parse_kept",
    "parse_manifest",
    "parse_pool",
    "read_documents",
]
