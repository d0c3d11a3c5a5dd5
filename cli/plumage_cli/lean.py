"""Options without pydantic: typer imports it to check values that need no check.

typer builds a pydantic adapter for each parameter, and that import takes longer than `plumage status` itself.
Values that have their type already are taken as they are here; all others go to typer's own check. A typer without the
attribute that this replaces checks as ever.
"""

from __future__ import annotations

from typing import Any

__all__ = ["spare_check", "spare_checks"]

_ATTRIBUTE = "_runtime_param"
_PLAIN = (bool, str)


def spare_checks(command: Any) -> Any:
    """The command, with parameters that check only what needs it. Its `--help` is made anew for each call."""
    for parameter in command.params:
        spare_check(parameter)
    make_help = command.get_help_option
    command.get_help_option = lambda ctx: spare_check(make_help(ctx))
    return command


def spare_check(parameter: Any) -> Any:
    """The parameter (None stays None), which checks only what needs it."""
    if hasattr(parameter, _ATTRIBUTE) and hasattr(parameter, "type_descriptor"):
        setattr(parameter, _ATTRIBUTE, _Lean())
    return parameter


class _Lean:
    """Stands for typer's `RuntimeParam`."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command gets it."""
        if value is None and not param.multiple and param.nargs != -1:
            return None
        descriptor = param.type_descriptor
        if descriptor.annotation in _PLAIN and type(value) is descriptor.annotation and not _has_rules(descriptor):
            return value
        from typer._coercion import build_runtime_param

        checked = build_runtime_param(descriptor)
        setattr(param, _ATTRIBUTE, checked)
        return checked.coerce(value, param=param, ctx=ctx)


def _has_rules(descriptor: Any) -> bool:
    info = descriptor.parameter_info
    return any(getattr(info, name, None) is not None for name in ("parser", "click_type"))
