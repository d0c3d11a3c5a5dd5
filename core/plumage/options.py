"""Options of policies, as manifests and settings name them, held against what a constructor takes.

They are checked before the call: a TypeError that comes out of it is a mistake of ours and stays one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import get_type_hints

import msgspec

from plumage.errors import ConfigurationError

__all__ = ["check_options", "option_names", "refuse_given"]


def check_options(
    what: str, make: Callable[..., object], options: Mapping[str, object], given: Collection[str] = ()
) -> None:
    """ConfigurationError, in words that begin with `what`, unless `make` takes each of `options`, by its name and of
    its type. given: the parameters that the caller fills in itself."""
    known = option_names(make, given)
    if unknown := [name for name in options if name not in known]:
        there = f"its options: {', '.join(known)}" if known else "it has none"
        raise ConfigurationError(f"{what} has no option {', '.join(sorted(unknown))}; {there}")
    types = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    for name, value in options.items():
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{what}, option {name}: {error}, got {value!r}") from error


def option_names(make: Callable[..., object], given: Collection[str] = ()) -> list[str]:
    """What settings may say of `make`. given: the parameters that its caller fills in itself."""
    return [name for name in _parameters(make) if name not in given]


@lru_cache(maxsize=256)  # settings are built for each reconcile, and inspect takes 100 µs
def _parameters(make: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(make).parameters)


def refuse_given(what: str, options: Collection[str], given: Collection[str], known: Collection[str] = ()) -> None:
    """Raises ConfigurationError where one of `options` is among `given`, the parameters that Plumage sets itself.

    As keywords beside those of the factory's caller they would be a TypeError.
    what: begins the message. known: the valid options, where the message can name them.
    """
    if taken := sorted(name for name in options if name in given):
        there = f"; its options: {', '.join(known)}" if known else ""
        raise ConfigurationError(f"{what} has no option {', '.join(taken)}: Plumage sets it; remove it{there}")
