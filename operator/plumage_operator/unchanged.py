"""Which pools had nothing to be done for their children, and what that was seen from. Pure.

Most looks come of a pod that starts or a status that counts it: nothing that a child is made from. To see that costs a
thirtieth of building all children again and comparing each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import xxhash

from plumage.autoscaling import DELETION_COST
from plumage.cluster import COMPONENT_LABEL, CORDON
from plumage_operator.observed import Object, Observed, meta
from plumage_operator.status import status_of

__all__ = ["Unchanged", "mark_of"]

_METADATA: Final = frozenset({"resourceVersion", "managedFields"})
_OF_A_POD: Final = (CORDON, DELETION_COST)
"""All that a plan reads on pods, which come and go by the thousand: what people and the autoscaler wrote there."""
_encode = msgspec.json.Encoder(order="sorted").encode


class Unchanged:
    """One number for each key."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str], int] = {}

    def knows(self, key: tuple[str, str], mark: int) -> bool:
        """Whether nothing was to be done when all was as it is now."""
        return self._marks.get(key) == mark

    def note(self, key: tuple[str, str], mark: int, *, nothing: bool) -> None:
        """There was nothing to be done; or there was, and it is looked at again."""
        if nothing:
            self._marks[key] = mark
        else:
            self._marks.pop(key, None)

    def forget(self, key: tuple[str, str]) -> None:
        """The pool is gone."""
        self._marks.pop(key, None)


def mark_of(observed: Observed) -> int:
    """A hash of all that `plan_changes` looks at: everything but what statuses say, less one field of the pool's."""
    scaling = observed.scaling
    seen = (
        _shape(observed.pool),
        status_of(observed.pool).get("desiredReplicas"),
        [_shape(child) for child in observed.children.values()],
        _marked(observed.pods, frozenset(scaling.deletion_costs) if scaling else frozenset()),
        None if scaling is None else (scaling.desired, scaling.deletion_costs),
    )
    return xxhash.xxh3_64_intdigest(_encode(seen))


def _marked(pods: Iterable[Object], costed: frozenset[str]) -> list[tuple[Any, ...]]:
    """Of the pods that a plan may read: their names, their parts, and what is written on them."""
    found = []
    for pod in pods:
        name, labels = meta(pod).get("name"), meta(pod).get("labels") or {}
        said = [(meta(pod).get("annotations") or {}).get(annotation) for annotation in _OF_A_POD]
        if name in costed or any(said):
            found.append((name, labels.get(COMPONENT_LABEL), *said))
    return found


def _shape(thing: Object) -> Mapping[str, Any]:
    kept = {name: value for name, value in thing.items() if name != "status"}
    kept["metadata"] = {name: value for name, value in meta(thing).items() if name not in _METADATA}
    return kept
