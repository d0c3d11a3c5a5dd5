"""Who manages the fields of a child: what we created becomes what we applied. Pure.

The API server keeps what a manager created apart from what it applied. A field that both entries name stays when it is
no longer applied, since its creator still has it; so before the first apply the creator's entry becomes the applier's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from plumage.cluster import MANAGED_BY

__all__ = ["as_applied"]

Entry = Mapping[str, Any]


def as_applied(entries: Sequence[Entry]) -> list[Entry] | None:
    """The entries (`metadata.managedFields`) with all that we created counted as applied; None where nothing is."""
    created = [entry for entry in entries if _is_ours(entry, "Update")]
    if not created:
        return None
    applied = [entry for entry in entries if _is_ours(entry, "Apply")]
    fields = reduce(_union, (entry.get("fieldsV1") or {} for entry in (*applied, *created)))
    others = [entry for entry in entries if entry not in (*applied, *created)]
    return [{**(*applied, *created)[0], "operation": "Apply", "fieldsV1": fields}, *others]


def _is_ours(entry: Entry, operation: str) -> bool:
    """Of the object itself: a subresource's fields are another matter."""
    return entry.get("manager") == MANAGED_BY and entry.get("operation") == operation and not entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _union(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}
