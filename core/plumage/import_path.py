"""Policies of your own: settings name a class as "package.module:Class" where they could name one of ours.

Only settings files and callers in Python may hold such a name. Manifests and requests over HTTP have lists of names,
so nobody can make a process import code by a manifest or a request.
"""

from __future__ import annotations

import importlib
import re

from plumage.errors import ConfigurationError

__all__ = ["is_import_path", "load_class", "require_attribute"]

_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def is_import_path(name: str) -> bool:
    """Whether `name` names a class to import; the names of our own policies have no colon."""
    return ":" in name


def load_class(name: str, kind: str, methods: tuple[str, ...]) -> type:
    """The class that "package.module:Class" names, from the Python path of this process.

    kind: for messages, such as "routing policy". methods: what its objects must be able to do. ConfigurationError says
    what is wrong: the form, the import, or the class."""
    if not _FORM.fullmatch(name):
        raise ConfigurationError(f"{kind} {name!r}: write package.module:Class")
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # whatever the module raises while it is imported
        raise ConfigurationError(f"{kind} {name!r} can't be imported: {error!r}") from error
    if not isinstance(found, type):
        raise ConfigurationError(f"{kind} {name!r}: {module} has no class {attribute}")
    if missing := [method for method in methods if not callable(getattr(found, method, None))]:
        raise ConfigurationError(f"{kind} {name!r} lacks {', '.join(missing)}: see docs/how-to/own-policy.md")
    return found


def require_attribute(made: object, what: str, name: str, kind: type) -> None:
    """ConfigurationError unless the policy that was made has an attribute `name` of that kind."""
    if not isinstance(getattr(made, name, None), kind):
        raise ConfigurationError(f"{what} must have an attribute {name}, of type {kind.__name__}")
