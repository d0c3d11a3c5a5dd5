"""All fields of a manifest, from its models, with other values that each could have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from plumage.api.v1alpha1.struct import Struct
from plumage.quantity import Quantity

__all__ = ["leaves", "others"]

_UNSET: Final = object()
# Fields for which no other value can be derived from the present one.
_SAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "model.uri": ("hf://org/other", "builtin://tiny-llama"),
    "engine.runtime": ("VLLM",),
    "engine.eviction.hotness.priority": ("frequency",),
    "engine.hostMemory.priority": ("frequency",),
    "engine.feather.heuristic.lossThreshold": (3,),
    "engine.simulator.device.timeScalePercent": (50,),
    "directory.redisRef.url": ("rediss://other:6379",),
    "router.gatewayRef.name": ("back",),
    "keysRef.name": ("mine",),
    "models.pools.poolRef.name": ("other",),
    "models.pools.weight": (0, 1),
    "models.fallback": ("chat", "code"),
    "models.requestMirror.poolRef.name": ("other",),
    "autoscaling.metrics.type": ("QueueWait", "CacheHitRatio", "TotalTokensPerSecond"),
}


def leaves(struct: type[Struct], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field without a struct below it, by its dotted name as in a manifest; for a list the fields of its
    entries."""
    for name, field in struct.model_fields.items():
        path = before + (field.alias or name)
        below = list(_structs(field.annotation))
        if not below:
            yield path, field
        for part in below:
            yield from leaves(part, f"{path}.")


def _structs(form: Any) -> Iterator[type[Struct]]:
    if isinstance(form, type) and issubclass(form, Struct):
        yield form
    for part in get_args(form):
        yield from _structs(part)


def others(path: str, field: FieldInfo, value: Any) -> Iterator[Any]:
    """Values other than `value`, likely ones first; a rule may refuse some. value: None if the field is not set."""
    yield from (one for one in _SAMPLES.get(path, ()) if one != value)
    yield from _literals(field.annotation, value)
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, 2 * value, value // 2)
        case str():
            yield from _strings(value)
        case Quantity():
            yield from ("0.75", str(int(float(value)) * 2), str(float(value) / 2))
        case list() | tuple():
            yield [*value, "other"]
        case dict():
            yield {**value, "other": "1"}
        case None:
            yield from ("other", 50, {"other": "1"}, ["other"], "64Mi")


def _literals(form: Any, value: Any) -> Iterator[Any]:
    if get_origin(form) is Literal:
        yield from (one for one in reversed(get_args(form)) if one != value)
        return
    for part in get_args(form):
        yield from _literals(part, value)


def _strings(value: str) -> Iterator[str]:
    if value[:1].isdigit():
        try:
            number = float(Quantity(value))
        except ValueError:
            number = 0.0
        yield from (str(int(2 * number)), str(number / 2))
    yield from (f"{value}-other", f"{value}other", f"{value}1")
