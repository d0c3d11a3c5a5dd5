"""Where a live object is not as it was applied: plain JSON, dicts and lists. Pure.

Mostly only what we wrote is compared: the API server adds defaults, other controllers and people add fields of their
own, and server-side apply leaves those alone. Lists whose items have an identity (containers, volumes, environment) are
matched by it, others by place. A field that server-side apply takes as one, and that says who reaches whom, is compared
whole: what is added there is taken out. Quantities are compared by value, for the API server writes them its own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from plumage.api.v1alpha1 import Quantity

__all__ = ["drift"]

_IDENTITIES: Final = ("mountPath", "containerPort", "name", "port", "uid")

_WHOLE: Final = frozenset(
    {
        "selector", "podSelector", "namespaceSelector", "labelSelector",
        "ingress", "egress", "policyTypes",  # of a NetworkPolicy
        "roleRef", "subjects",  # of a RoleBinding
    }
)  # fmt: skip
"""Fields that are atomic with all that is in them, wherever they stand, and into which the API server writes nothing of
its own (a port's protocol, which it would, we send). What is empty counts: `namespaceSelector: {}` is all of them."""

_BY_PLACE: Final = frozenset({"parentRefs", "backendRefs", "podMetricsEndpoints"})
"""Lists that are atomic though their items have names. Their definitions write defaults into the items."""

_quantity = TypeAdapter(Quantity)

_MOST = 5  # paths that are told of one object


def drift(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """The first paths whose value in `live` is not what `wanted` says; empty where all is as applied."""
    found: list[str] = []
    _compare(wanted, live, "", found)
    return found[:_MOST]


def _compare(wanted: Any, live: Any, path: str, found: list[str], *, whole: bool = False) -> None:
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            inner = f"{path}.{key}" if path else key
            _compare(value, live.get(key), inner, found, whole=whole or key in _WHOLE)
        if whole:
            found += [f"{path}.{key}" for key in sorted(live.keys() - wanted.keys())]
    elif isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        _compare_lists(wanted, live, path, found, whole=whole)
    elif not _same(wanted, live):
        found.append(path)


def _compare_lists(wanted: Sequence[Any], live: Sequence[Any], path: str, found: list[str], *, whole: bool) -> None:
    by_place = whole or path.rpartition(".")[2] in _BY_PLACE
    identity = None if by_place else _identity(wanted)
    if identity is None:
        if len(wanted) != len(live):
            found.append(path)
            return
        for index, (one, other) in enumerate(zip(wanted, live, strict=True)):
            _compare(one, other, f"{path}[{index}]", found, whole=whole)
        return
    by_identity = {item.get(identity): item for item in live if isinstance(item, dict)}
    for one in wanted:
        _compare(one, by_identity.get(one[identity]), f"{path}[{one[identity]}]", found)


def _identity(items: Sequence[Any]) -> str | None:
    """The field that tells the items apart, where each has it."""
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return next((name for name in _IDENTITIES if len({item.get(name) for item in items} - {None}) == len(items)), None)


def _same(wanted: Any, live: Any) -> bool:
    if wanted == live or (live is None and wanted in ({}, [], "", False, 0)):
        return True
    try:
        return isinstance(wanted, str) and isinstance(live, str) and _value(wanted) == _value(live)
    except ValidationError:
        return False


def _value(text: str) -> Quantity:
    return _quantity.validate_python(text)
