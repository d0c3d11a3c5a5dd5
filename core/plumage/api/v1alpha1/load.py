"""Manifests as text → models, or every mistake at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from plumage.api.v1alpha1.document import read_documents
from plumage.api.v1alpha1.gateway import InferenceGateway
from plumage.api.v1alpha1.metadata import API_VERSION
from plumage.api.v1alpha1.mistakes import describe
from plumage.api.v1alpha1.pool import InferencePool
from plumage.errors import ManifestError

__all__ = ["KINDS", "Manifest", "load_manifests", "load_pool", "parse_manifest", "parse_pool"]

Manifest = InferencePool | InferenceGateway
GROUP = API_VERSION.partition("/")[0]
KINDS: Mapping[str, type[Manifest]] = {"InferencePool": InferencePool, "InferenceGateway": InferenceGateway}


def load_manifests(text: str, source: str) -> list[Manifest]:
    """All manifests in `text` (YAML, several documents allowed). ManifestError lists the mistakes of all of them."""
    documents = read_documents(text, source)
    if not documents:
        raise ManifestError(source, [f"must hold a manifest of kind {' or '.join(KINDS)}, got an empty text"])
    found: list[Manifest] = []
    mistakes: list[str] = []
    for number, document in enumerate(documents, 1):
        try:
            found.append(parse_manifest(document, source))
        except ManifestError as error:
            prefix = f"document {number}: " if len(documents) > 1 else ""
            mistakes += [prefix + mistake for mistake in error.mistakes]
    if mistakes:
        raise ManifestError(source, mistakes)
    return found


def load_pool(text: str, source: str) -> InferencePool:
    """The one InferencePool in `text`; other kinds beside it are checked and left out."""
    pools = [manifest for manifest in load_manifests(text, source) if isinstance(manifest, InferencePool)]
    if len(pools) != 1:
        raise ManifestError(source, [f"must hold exactly one InferencePool, got {len(pools)}"])
    return pools[0]


def parse_manifest(document: Mapping[str, Any], source: str) -> Manifest:
    """One document of `read_documents`."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ManifestError(source, _not_ours(document))
    return _parse(KINDS[kind], document, source)


def parse_pool(document: Mapping[str, Any], source: str) -> InferencePool:
    """One document that must be an InferencePool."""
    manifest = parse_manifest(document, source)
    if not isinstance(manifest, InferencePool):
        raise ManifestError(source, [f"kind: must be InferencePool, got {manifest.kind!r}"])
    return manifest


def _parse(model: type[Manifest], document: Mapping[str, Any], source: str) -> Manifest:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ManifestError(source, describe(model, error)) from None


def _not_ours(document: Mapping[str, Any]) -> list[str]:
    """A kind that is none, and what else is wrong with the document as the kind that was meant."""
    got = repr(document["kind"]) if "kind" in document else "nothing"
    mistakes = [f"kind: must be {' or '.join(KINDS)}, got {got}"]
    if document.get("apiVersion") != API_VERSION:
        version = repr(document["apiVersion"]) if "apiVersion" in document else "nothing"
        mistakes.insert(0, f"apiVersion: must be {API_VERSION}, got {version}")
    if (meant := _meant(document)) is not None:
        try:
            KINDS[meant].model_validate({**document, "apiVersion": API_VERSION, "kind": meant})
        except ValidationError as error:
            mistakes += describe(KINDS[meant], error)
    return mistakes


def _meant(document: Mapping[str, Any]) -> str | None:
    """The kind that a document of our group was meant to be: the nearest name, else whose fields its spec has."""
    if not str(document.get("apiVersion", GROUP)).startswith(GROUP):
        return None
    near = difflib.get_close_matches(str(document.get("kind")), KINDS, n=1)
    spec = document.get("spec")
    held = set(spec) if isinstance(spec, Mapping) else set()
    return near[0] if near else max(KINDS, key=lambda kind: len(_fields(KINDS[kind]) & held))


def _fields(kind: type[Manifest]) -> set[str]:
    """The names in its spec."""
    spec: Any = kind.model_fields["spec"].annotation
    return {field.alias or name for name, field in spec.model_fields.items()}
