"""Where a live object differs from what was applied. Works on plain JSON. Pure.

Mostly only the operator's own fields are compared: the API server adds defaults, other controllers and people add
fields, and server-side apply leaves those alone. Lists whose items have an identity (containers, volumes, environment)
are matched by it, others by position. A field that server-side apply replaces as a whole, and that decides who reaches
whom, is compared as a whole: additions are removed. Quantities are compared by value, because the API server rewrites
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from plumage.api.v1alpha1 import Quantity

__all__ = ["additions", "drift"]

_IDENTITIES: Final = ("mountPath", "containerPort", "name", "port", "uid")

_WHOLE: Final = frozenset(
    {
        "selector", "podSelector", "namespaceSelector", "labelSelector",
        "ingress", "egress", "policyTypes",  # of a NetworkPolicy
        "roleRef", "subjects",  # of a RoleBinding
    }
)  # fmt: skip
"""Fields that are compared with all their content, wherever they are, and that the API server adds nothing to.

(It would add a port's protocol, so the operator sends it.) Empty content counts: `namespaceSelector: {}` selects all.
Definitions call them atomic, but for the selector of the Gateway API's InferencePool: see `additions`.
"""

_BY_POSITION: Final = frozenset({"parentRefs", "backendRefs", "podMetricsEndpoints"})
"""Lists that are atomic although their items have names. Their definitions write defaults into the items."""

_quantity = TypeAdapter(Quantity)

_MAX_PATHS = 5  # of one object


def drift(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """The first paths whose value in `live` is not the wanted one; empty where nothing differs."""
    found: list[str] = []
    _compare(wanted, live, "", found)
    return found[:_MAX_PATHS]


def additions(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """JSON pointers of the keys that others added to a field which is compared as a whole.

    Server-side apply removes them only where the definition calls the map atomic.
    """
    return list(_added(wanted, live, "", whole=False))


def _added(wanted: Any, live: Any, path: str, *, whole: bool) -> Iterator[str]:
    if not isinstance(wanted, dict) or not isinstance(live, dict):
        return
    if whole:
        yield from (_below(path, key) for key in sorted(live.keys() - wanted.keys()))
    for key in wanted.keys() & live.keys():
        yield from _added(wanted[key], live[key], _below(path, key), whole=whole or key in _WHOLE)


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


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
    by_position = whole or path.rpartition(".")[2] in _BY_POSITION
    identity = None if by_position else _identity(wanted)
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
    """The field that distinguishes the items, if each item has it."""
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
