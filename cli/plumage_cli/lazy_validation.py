"""Options that import pydantic only for values that need a check.

typer builds a pydantic adapter for each parameter, and that import takes longer than `plumage status` itself. Here a
value that already has its type is used without a check. Other values go to typer's own check. With a typer that lacks
the replaced attribute nothing changes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["make_lazy", "make_options_lazy"]

_ATTRIBUTE = "_runtime_param"
_PLAIN = (bool, str)


def make_options_lazy(command: Any) -> Any:
    """Make all parameters of a command lazy, also its `--help`, which typer makes for each call."""
    for parameter in command.params:
        make_lazy(parameter)
    make_help = command.get_help_option
    command.get_help_option = lambda ctx: make_lazy(make_help(ctx))
    return command


def make_lazy(parameter: Any) -> Any:
    """Let a parameter check only the values that need it. None stays None."""
    if hasattr(parameter, _ATTRIBUTE) and hasattr(parameter, "type_descriptor"):
        setattr(parameter, _ATTRIBUTE, _LazyParam())
    return parameter


class _LazyParam:
    """Replaces typer's `RuntimeParam`."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value for the command."""
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
