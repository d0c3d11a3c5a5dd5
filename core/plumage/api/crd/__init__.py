"""The CustomResourceDefinitions, from the models of `plumage.api.v1alpha1`."""

from __future__ import annotations

from plumage.api.crd.definition import FINGERPRINT, definition, definition_name, definitions
from plumage.api.crd.schema import structs_in, structural_schema

__all__ = ["FINGERPRINT", "definition", "definition_name", "definitions", "structs_in", "structural_schema"]
