"""Reads manifests from text into models, or reports every mistake at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from plumage.api.v1alpha1.document import Document, read_documents
from plumage.api.v1alpha1.gateway import InferenceGateway
from plumage.api.v1alpha1.metadata import API_VERSION
from plumage.api.v1alpha1.mistakes import describe
from plumage.api.v1alpha1.pool import InferencePool
from plumage.errors import ManifestError
from plumage.version_skew import unknown_places, without_places

__all__ = [
    "KINDS",
    "Manifest",
    "check_documents",
    "check_pool",
    "load_manifests",
    "load_pool",
    "parse_kept",
    "parse_manifest",
    "parse_pool",
]

Manifest = InferencePool | InferenceGateway
GROUP = API_VERSION.partition("/")[0]
_GATEWAY_API = ("inference.networking.k8s.io/", "inference.networking.x-k8s.io/")
KINDS: Mapping[str, type[Manifest]] = {"InferencePool": InferencePool, "InferenceGateway": InferenceGateway}


def load_manifests(text: str, source: str) -> list[Manifest]:
    """All manifests in `text`, which is YAML with one or more documents. ManifestError lists all mistakes."""
    return check_documents(read_documents(text, source), source)


def load_pool(text: str, source: str) -> InferencePool:
    """The one InferencePool in `text`. Other kinds are checked and left out."""
    return check_pool(read_documents(text, source), source)


def check_documents(documents: Sequence[Document], source: str) -> list[Manifest]:
    """The manifests in the documents of `read_documents`. ManifestError lists all mistakes."""
    if not documents:
        raise ManifestError(source, [f"must hold a manifest of kind {' or '.join(KINDS)}, got an empty text"])
    found, mistakes = _look(documents, source)
    if mistakes:
        raise ManifestError(source, mistakes)
    return found


def check_pool(documents: Sequence[Document], source: str) -> InferencePool:
    """The one InferencePool among the documents. ManifestError lists all mistakes; no or several pools are one."""
    if not documents:
        check_documents(documents, source)
    found, mistakes = _look(documents, source)
    kinds = [document.content.get("kind") for document in documents if document.content is not None]
    pools = kinds.count("InferencePool")
    if pools != 1 and (pools or all(kind in tuple(KINDS) for kind in kinds)):  # a misspelt kind is already reported
        mistakes.append(f"must hold exactly one InferencePool, got {pools}")
    if mistakes:
        raise ManifestError(source, mistakes)
    return next(manifest for manifest in found if isinstance(manifest, InferencePool))


def _look(documents: Sequence[Document], source: str) -> tuple[list[Manifest], list[str]]:
    """The valid documents as models, and the mistakes of all. A second document of the same name is a mistake."""
    found: list[Manifest] = []
    mistakes: list[str] = []
    named: dict[tuple[str, str, str], int] = {}  # the first document of that name
    for document in documents:
        wrong = list(document.mistakes)
        if document.content is not None:
            try:
                manifest = parse_manifest(document.content, source)
                found.append(manifest)
                wrong += _named_before(manifest, named, document.number)
            except ManifestError as error:
                wrong += error.mistakes
        prefix = f"document {document.number}: " if len(documents) > 1 and document.content is not None else ""
        mistakes += [prefix + mistake for mistake in wrong]
    return found, mistakes


def _named_before(manifest: Manifest, named: dict[tuple[str, str, str], int], number: int) -> list[str]:
    """A mistake if an earlier document has the same kind, namespace and name."""
    meta = manifest.metadata
    first = named.setdefault((manifest.kind, meta.namespace, meta.name), number)
    if first == number:
        return []
    return [
        f"metadata.name: must be unique, got that of document {first}: {manifest.kind} {meta.namespace}/{meta.name}"
    ]


def parse_manifest(document: Mapping[str, Any], source: str) -> Manifest:
    """The content of one document."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ManifestError(source, _not_ours(document))
    return _parse(KINDS[kind], document, source)


def parse_pool(document: Mapping[str, Any], source: str) -> InferencePool:
    """Parses one document, which must be an InferencePool."""
    manifest = parse_manifest(document, source)
    if not isinstance(manifest, InferencePool):
        raise ManifestError(source, [f"kind: must be InferencePool, got {manifest.kind!r}"])
    return manifest


def parse_kept(document: Mapping[str, Any], source: str) -> Manifest:
    """An object that an API server stored. Unknown fields are ignored, because its definitions may be newer than this
    process, and may fill in defaults of new fields."""
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        return parse_manifest(document, source)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        unknown = unknown_places(error)
    return parse_manifest(without_places(document, unknown), source)


def _parse(model: type[Manifest], document: Mapping[str, Any], source: str) -> Manifest:
    if (other := _of_another_project(document)) is not None:
        raise ManifestError(source, [other])
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ManifestError(source, describe(model, error)) from None


def _of_another_project(document: Mapping[str, Any]) -> str | None:
    """A mistake if another project's kind with the same name is meant; None for any other document."""
    version = document.get("apiVersion")
    if not isinstance(version, str) or not version.startswith(_GATEWAY_API):
        return None
    kind = document.get("kind")
    return (
        f"apiVersion: must be {API_VERSION}, got {version!r}: that {kind} belongs to the Gateway API Inference "
        "Extension and has other fields; Plumage's are in docs/reference/manifest.md"
    )


def _not_ours(document: Mapping[str, Any]) -> list[str]:
    """The mistakes of a document whose kind is unknown, also those that it has as the kind that was probably meant."""
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
    """The kind that was probably meant: the most similar name, otherwise the kind with most of the spec's fields."""
    if not str(document.get("apiVersion", GROUP)).startswith(GROUP):
        return None
    near = difflib.get_close_matches(str(document.get("kind")), KINDS, n=1)
    spec = document.get("spec")
    held = set(spec) if isinstance(spec, Mapping) else set()
    return near[0] if near else max(KINDS, key=lambda kind: len(_fields(KINDS[kind]) & held))


def _fields(kind: type[Manifest]) -> set[str]:
    """The names of the fields in the kind's spec."""
    spec: Any = kind.model_fields["spec"].annotation
    return {field.alias or name for name, field in spec.model_fields.items()}
