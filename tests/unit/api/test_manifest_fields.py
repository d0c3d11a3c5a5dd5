"""Every field of every kind is documented and bounded, and has a static default or is required."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from plumage.api.v1alpha1 import InferenceGateway, InferencePool, Quantity, load_pool
from plumage.api.v1alpha1.struct import Struct


def structs(model: type[Struct], seen: set[type[Struct]] | None = None) -> Iterator[type[Struct]]:
    seen = set() if seen is None else seen
    if model in seen:
        return
    seen.add(model)
    yield model
    for field in model.model_fields.values():
        for inner in types_in(field.annotation):
            if isinstance(inner, type) and issubclass(inner, Struct):
                yield from structs(inner, seen)


def types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from types_in(inner)


FIELDS = sorted(
    {
        (f"{model.__name__}.{field.alias}", model, name): field
        for kind in (InferencePool, InferenceGateway)
        for model in structs(kind)
        for name, field in model.model_fields.items()
    }.items(),
    key=lambda entry: entry[0][0],
)


@pytest.mark.parametrize(("at", "field"), [(key, field) for key, field in FIELDS], ids=[key[0] for key, _ in FIELDS])
def test_field_is_documented_and_bounded(at: tuple[str, type[Struct], str], field: FieldInfo) -> None:
    assert field.description, "a field without a description"
    assert field.description.endswith("."), "a description is a sentence"
    assert field.default_factory is None, "a default is static"
    schema = schema_of(at[1])
    if at[1].__name__ not in SERVER_SET:
        assert_bounded(schema["properties"][field.alias], schema.get("$defs", {}))


@cache
def schema_of(model: type[Struct]) -> dict[str, Any]:
    """Pydantic makes it again at each call. Do not change it."""
    return model.model_json_schema()


# Users write the name of these; Kubernetes bounds the other fields.
SERVER_SET = {"ObjectMeta"}


def assert_bounded(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    if "anyOf" in schema and "x-kubernetes-int-or-string" not in schema:
        for option in schema["anyOf"]:
            assert_bounded(option, definitions)
    kind = schema.get("type")
    if kind == "string":
        assert "maxLength" in schema or "enum" in schema or "const" in schema
    if kind == "integer":
        assert "minimum" in schema
        assert "maximum" in schema
    if kind == "array":
        assert "maxItems" in schema
        assert_bounded(schema["items"], definitions)
    if kind == "object" and "$ref" not in schema:
        assert "maxProperties" in schema or schema.get("additionalProperties") is True
    assert kind != "number", "no floats in a spec"


def test_models_are_frozen_and_camel_case_outside() -> None:
    pool = load_pool(MINIMAL, "pool.yaml")
    with pytest.raises(ValidationError):
        pool.spec.replicas = 3  # type: ignore[misc]
    written = pool.model_dump(mode="json", exclude_none=True)
    assert written["apiVersion"] == "inference.plumage.dev/v1alpha1"
    assert written["spec"]["engine"]["feather"]["qLearning"]["learningRate"] == "0.1"


def test_written_objects_read_back_equal() -> None:
    pool = load_pool(MINIMAL, "pool.yaml")
    assert InferencePool.model_validate(pool.model_dump(mode="json", exclude_unset=True)) == pool


def test_python_names_are_refused_as_fields() -> None:
    with pytest.raises(ValidationError, match="api_version"):
        InferencePool.model_validate({"api_version": "inference.plumage.dev/v1alpha1"})


def test_defaults_are_the_values_of_the_papers() -> None:
    spec = load_pool(MINIMAL, "pool.yaml").spec
    assert spec.router.lbgr.forgetting == Quantity("0.992")
    assert spec.router.lbgr.decay_interval_milliseconds == 20
    assert spec.engine.eviction.hotness.priority == "frequency + clock / length"
    assert spec.engine.eviction.hotness.filter.fingerprint_bits == 8


def test_model_name_falls_back_to_its_uri() -> None:
    assert load_pool(MINIMAL, "pool.yaml").spec.model.served_name == "tiny-chat"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gi", 2**30),
        ("16Mi", 2**24),
        ("5", 5),
        ("500m", 0.5),
        ("0.992", 0.992),
        ("1e3", 1000),
        ("2k", 2000),
        (".5", 0.5),
    ],
)
def test_quantities_are_read(text: str, value: float) -> None:
    assert float(Quantity(text)) == pytest.approx(value)


def test_quantity_rounds_bytes_up_and_compares_by_value() -> None:
    assert int(Quantity("1500m")) == 2
    assert Quantity("1Gi") == Quantity("1024Mi")
    assert hash(Quantity("1Gi")) == hash(Quantity("1024Mi"))


MINIMAL = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: "builtin://tiny-chat"}
  engine: {runtime: Simulator}
"""
