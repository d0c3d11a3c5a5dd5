"""Is what we hook still there? Asked at start, before a feature is switched on, and by `make check-vllm`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

__all__ = ["Live", "Made", "Read", "Surface", "missing", "missing_live"]

Surface = Mapping[type, Sequence[str]]
"""By class of vLLM: the methods we call or override, each with the parameters that we name, as `name(one, other)`."""

Live = Mapping[type, Sequence[str]]
"""By class of vLLM: the attributes that its objects have and the class itself has not."""

Read = Mapping[type, Sequence[str]]
"""By class of vLLM: what we read of its objects that a start has none of, so that only `make check-vllm` looks."""

Made = Mapping[type, Sequence[str]]
"""By class of vLLM: all that its constructor is passed, where our calls don't show it. Only `make check-vllm` looks."""


def missing(surface: Surface) -> list[str]:
    """What of `surface` the running vLLM does not have, in words; empty when all is there."""
    found = [_complaint(owner, member) for owner, members in surface.items() for member in members]
    return [complaint for complaint in found if complaint]


def missing_live(live: Live, made: object) -> list[str]:
    """What of `live` the object `made` of vLLM's does not have, in words."""
    names = [name for owner, given in live.items() if isinstance(made, owner) for name in given]
    kind = f"this vLLM's {type(made).__qualname__}"
    return [f"{kind} has no attribute {name}" for name in names if not hasattr(made, name)]


def _complaint(owner: type, member: str) -> str:
    name, _, rest = member.partition("(")
    method = getattr(owner, name, None)
    if method is None:
        return f"this vLLM's {owner.__module__}.{owner.__qualname__} has no {name}"
    wanted = [one.strip() for one in rest.rstrip(")").split(",") if one.strip()]
    taken = inspect.signature(method).parameters if wanted else {}
    gone = [one for one in wanted if one not in taken]
    return f"this vLLM's {owner.__qualname__}.{name} takes no {', '.join(gone)}" if gone else ""
