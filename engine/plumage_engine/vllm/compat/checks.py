"""Checks that this vLLM has what the plugin hooks: at start, before a feature is on, and in `make check-vllm`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

__all__ = ["Live", "Made", "Read", "Surface", "missing", "missing_live"]

Surface = Mapping[type, Sequence[str]]
"""By class of vLLM: the methods that we call or override, each with the parameters that we name, as `name(one, other)`.
"""

Live = Mapping[type, Sequence[str]]
"""By class of vLLM: attributes that its objects have and the class itself does not."""

Read = Mapping[type, Sequence[str]]
"""By class of vLLM: what we read of objects that do not exist at start, so only `make check-vllm` checks it."""

Made = Mapping[type, Sequence[str]]
"""By class of vLLM: all arguments of its constructor, where our calls don't show them. For `make check-vllm` only."""


def missing(surface: Surface) -> list[str]:
    """What the running vLLM lacks of `surface`, in words; empty when it has all."""
    found = [_problem(owner, member) for owner, members in surface.items() for member in members]
    return [problem for problem in found if problem]


def missing_live(live: Live, made: object) -> list[str]:
    """What vLLM's object `made` lacks of `live`, in words."""
    names = [name for owner, given in live.items() if isinstance(made, owner) for name in given]
    kind = f"this vLLM's {type(made).__qualname__}"
    return [f"{kind} has no attribute {name}" for name in names if not hasattr(made, name)]


def _problem(owner: type, member: str) -> str:
    name, _, rest = member.partition("(")
    method = getattr(owner, name, None)
    if method is None:
        return f"this vLLM's {owner.__module__}.{owner.__qualname__} has no {name}"
    wanted = [one.strip() for one in rest.rstrip(")").split(",") if one.strip()]
    taken = inspect.signature(method).parameters if wanted else {}
    gone = [one for one in wanted if one not in taken]
    return f"this vLLM's {owner.__qualname__}.{name} takes no {', '.join(gone)}" if gone else ""
